//! Multicast objects: a handle without memory, to which the memory of other objects is bound.

use super::prelude::*;
use super::vmm::{apply_settled, dropping};
use crate::hooks::call::after_call::unfollowed;
use crate::hooks::call::attribution::sharing;
use crate::model::vmm::{Dropped, Owner, Region, State, What};
use crate::runtime::fallible::list_of;
use crate::runtime::hash_table::NoMemory;
use core::iter::once_with;

pub fn create(call: Call<impl Row>, handle: Out<u64>) -> CUresult {
    gave(sharing(call), handle, |handle| {
        let mut vmm = call.p.vmm.lock();
        let (_, stale) = vmm.created(handle, What::Multicast, DeviceId::UNKNOWN, 0);
        apply_settled(call.p, call.api(), &mut vmm, stale);
    })
}

/// cuMulticastBindMem: an object by its handle.
pub fn bind_mem(
    call: Call<impl Row>,
    mc: u64,
    device: Option<i32>,
    mc_offset: usize,
    handle: u64,
    size: usize,
) -> CUresult {
    bind(call, mc, device, mc_offset, |vmm| {
        let object = once_with(|| vmm.hold_handle(handle)).flatten();
        list_of(1, object.map(|object| (object, 0, size as u64)))
    })
}

/// cuMulticastBindAddr: what is mapped at an address.
pub fn bind_addr(
    call: Call<impl Row>,
    mc: u64,
    device: Option<i32>,
    mc_offset: usize,
    ptr: u64,
    size: usize,
) -> CUresult {
    bind(call, mc, device, mc_offset, |vmm| vmm.hold_range(ptr, size as u64))
}

/// A bind holds a reference on each object that it covers: `hold` returns them with their parts. `device` is `None` where the
/// call names none: then it is the device of the memory.
fn bind(
    call: Call<impl Row>,
    mc: u64,
    device: Option<i32>,
    mc_offset: usize,
    hold: impl FnOnce(&mut State) -> Result<Vec<(u64, u64, u64)>, NoMemory>,
) -> CUresult {
    let (p, api) = (call.p, call.api());
    let held = hold(&mut p.vmm.lock());
    let Ok(held) = held else { return unfollowed(call, current_target(p).device) };
    let result = sharing(call);
    let mut vmm = p.vmm.lock();
    let group = vmm.by_handle(mc).filter(|_| result == CUDA_SUCCESS);
    for (object, from, size) in held {
        let Some(group) = group else {
            let settled = vmm.drop_hold(object);
            apply_settled(p, api, &mut vmm, settled);
            continue;
        };
        let own = || vmm.object(object).map_or(DeviceId::UNKNOWN, |object| object.device);
        let lane = device.map_or_else(own, device_id).0.into();
        let region = Region::span(lane, mc_offset as u64 + from, size);
        vmm.held_by_tie(Owner::Multicast(group), region, object);
    }
    result
}

pub fn unbind(
    call: Call<impl Row>,
    mc: u64,
    device: i32,
    mc_offset: usize,
    size: usize,
) -> CUresult {
    let region = Region::span(device_id(device).0.into(), mc_offset as u64, size as u64);
    let begin = |vmm: &mut State| match vmm.by_handle(mc) {
        Some(group) => vmm.begin_untie(Owner::Multicast(group), Some(region)),
        None => Dropped::default(),
    };
    dropping(call, begin, || sharing(call))
}
