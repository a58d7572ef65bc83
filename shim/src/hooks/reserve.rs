//! cuMemAddressReserve and cuMemAddressFree: addresses without memory. Nothing is charged for them;
//! what is unmapped in them may come back ([`vramtrace_format::address_space`]).

use crate::driver::cuda::*;
use crate::hooks::accounting::site;
use crate::hooks::call::Call;
use crate::hooks::stacks::stack;
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use vramtrace_format::{Event, PoolId};

/// # Safety
/// As cuMemAddressReserve.
pub unsafe fn address_reserve(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, usize, usize, u64, u64) -> CUresult>,
    ptr: *mut u64,
    size: usize,
    alignment: usize,
    addr: u64,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's own call.
    let result = unsafe { call.real(ptr, size, alignment, addr, flags) };
    if result == CUDA_SUCCESS && !ptr.is_null() {
        // SAFETY: the driver has just written there.
        let address = unsafe { ptr.read() };
        let size = size as u64;
        let site = site(p, call.api, None, current_target(p), PoolId(0), 0);
        let stack = stack(p);
        let mut vmm = p.vmm.lock();
        vmm.reserve(address, size, site, stack);
        let restored = false;
        p.trace_writer.record(&Event::AddressReserve { address, size, site, stack, restored });
    }
    result
}

/// # Safety
/// As cuMemAddressFree.
pub unsafe fn address_free(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(u64, usize) -> CUresult>,
    ptr: u64,
    size: usize,
) -> CUresult {
    let bytes = size as u64;
    let announce = || p.trace_writer.record(&Event::AddressFree { address: ptr, size: bytes });
    let announced = {
        let mut vmm = p.vmm.lock();
        let freed = vmm.begin_free(ptr, bytes);
        if freed.is_some() {
            announce();
        }
        freed
    };
    // SAFETY: the program's own call.
    let result = unsafe { call.real(ptr, size) };
    match announced {
        Some(freed) if result != CUDA_SUCCESS => {
            let mut vmm = p.vmm.lock();
            vmm.take_back(&freed);
            let (site, stack) = (freed.reservation.site, freed.reservation.stack);
            p.trace_writer.record(&Event::AddressReserve {
                address: ptr,
                size: bytes,
                site,
                stack,
                restored: true,
            });
        }
        // The driver knows of no mapping where we do.
        None if result == CUDA_SUCCESS => {
            let mut vmm = p.vmm.lock();
            if vmm.freed(ptr) {
                announce();
            }
        }
        _ => {}
    }
    result
}
