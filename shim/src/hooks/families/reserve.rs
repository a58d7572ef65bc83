//! cuMemAddressReserve and cuMemAddressFree: addresses without memory. Nothing is charged for them.
//! Memory that is unmapped in them may be mapped again ([`vramtrace_format::address_space`]).

use crate::driver::cuda::*;
use crate::driver::param::Out;
use crate::hooks::call::request::site;
use crate::hooks::call::{Call, Function, gave};
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use vramtrace_format::{Event, PoolId};

/// cuMemAddressReserve.
pub fn address_reserve(
    p: &'static Process,
    call: &Call<impl Function>,
    ptr: Out<u64>,
    size: usize,
    _alignment: usize,
    _addr: u64,
    _flags: u64,
) -> CUresult {
    gave(call.forward(), ptr, |address| {
        let size = size as u64;
        let site = site(p, call.api, None, current_target(p), PoolId(0), 0);
        let stack = stack(p);
        let mut vmm = p.vmm.lock();
        vmm.reserve(address, size, site, stack);
        let restored = false;
        p.trace_writer.record(&Event::AddressReserve { address, size, site, stack, restored });
    })
}

/// cuMemAddressFree.
pub fn address_free(
    p: &'static Process,
    call: &Call<impl Function>,
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
    let result = call.forward();
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
        // The driver freed the range, so mappings that the model still has in it were removed unseen.
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
