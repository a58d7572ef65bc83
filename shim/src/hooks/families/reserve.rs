//! cuMemAddressReserve and cuMemAddressFree: addresses without memory. Nothing is charged for them.
//! Memory that is unmapped in them may be mapped again ([`vramtrace_format::address_space`]).

use super::prelude::*;
use crate::hooks::call::request::answered;

pub fn address_reserve(call: Call<impl Row>, ptr: Out<u64>, size: usize) -> CUresult {
    let p = call.p;
    let (size, target) = (size as u64, current_target(p));
    let result = answered(p, call.api(), target, size, call.forward());
    gave(result, ptr, |address| {
        let site = site_at(p, call.api(), None, target);
        let stack = stack(p);
        let mut vmm = p.vmm.lock();
        // Reservations that overlap it were freed by calls that were not seen.
        drop(vmm.space.reserve(address, size, site, stack));
        record_reserved(p, address, size, site, stack);
    })
}

fn record_reserved(p: &Process, address: u64, size: u64, site: SiteId, stack: StackId) {
    let (asleep, device) = (false, DeviceId::UNKNOWN);
    p.trace_writer.record(&Event::AddressReserve { asleep, device, address, size, site, stack });
}

pub fn address_free(call: Call<impl Row>, address: u64, size: usize) -> CUresult {
    let (p, size) = (call.p, size as u64);
    let announce = || p.trace_writer.record(&Event::AddressFree { address, size });
    let announced = {
        let mut vmm = p.vmm.lock();
        let freed = vmm.begin_free(address, size);
        if freed.is_some() {
            announce();
        }
        freed
    };
    let result = call.forward();
    let mut vmm = p.vmm.lock();
    match announced {
        Some(freed) if result != CUDA_SUCCESS => {
            vmm.space.restore(&freed);
            record_reserved(p, address, size, freed.reservation.site, freed.reservation.stack);
        }
        // The driver freed the range, so mappings that the model still has in it were removed unseen.
        None if result == CUDA_SUCCESS && vmm.space.free(address).is_some() => announce(),
        _ => {}
    }
    result
}
