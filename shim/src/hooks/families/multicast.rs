//! Multicast objects: a handle without memory, to which the memory of other objects is bound.

use super::vmm::{apply_settled, settle, untie};
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::hooks::call::after_call::unfollowed;
use crate::hooks::call::attribution::sharing;
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::{current_target, device_id};
use crate::model::vmm::{Dropped, Owner, Region, What};
use crate::runtime::fallible::{TryPush, vec_of};
use vramtrace_format::DeviceId;

hooks! { p, call:
    /// cuMulticastCreate.
    create(handle: Out<u64>, prop: In<CUmulticastObjectProp>) =
        gave(sharing(p, call.api, || call.forward()), handle, |handle| {
            let mut vmm = p.vmm.lock();
            let (_, stale) = vmm.created(handle, What::Multicast, DeviceId::UNKNOWN, 0);
            apply_settled(p, call.api, &mut vmm, stale, CUDA_SUCCESS);
        });
    /// cuMulticastBindMem.
    bind_mem(mc: u64, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64) =
        bind(p, call, mc, None, mc_offset, Memory::Handle(handle, size));
    /// cuMulticastBindMem_v2.
    bind_mem_v2(
        mc: u64, device: i32, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64
    ) = bind(p, call, mc, Some(device), mc_offset, Memory::Handle(handle, size));
    /// cuMulticastBindAddr.
    bind_addr(mc: u64, mc_offset: usize, ptr: u64, size: usize, flags: u64) =
        bind(p, call, mc, None, mc_offset, Memory::Address(ptr, size));
    /// cuMulticastBindAddr_v2.
    bind_addr_v2(mc: u64, device: i32, mc_offset: usize, ptr: u64, size: usize, flags: u64) =
        bind(p, call, mc, Some(device), mc_offset, Memory::Address(ptr, size));
}

/// What is bound: an object by its handle, or what is mapped at an address.
enum Memory {
    Handle(u64, usize),
    Address(u64, usize),
}

/// A bind holds a reference on each object that it covers. `device` is `None` where the call names
/// none: then it is the device of the memory.
fn bind(
    p: &'static Process,
    call: &Call<impl Function>,
    mc: u64,
    device: Option<i32>,
    mc_offset: usize,
    memory: Memory,
) -> CUresult {
    let held = {
        let mut vmm = p.vmm.lock();
        match memory {
            Memory::Handle(handle, size) => vec_of(1).map(|mut held| {
                let object = vmm.hold_handle(handle);
                let _ = object.map(|object| held.try_push((object, 0, size as u64)));
                held
            }),
            Memory::Address(ptr, size) => vmm.hold_range(ptr, size as u64),
        }
    };
    let Ok(held) = held else {
        return unfollowed(p, current_target(p).device).unwrap_or_else(|| call.forward());
    };
    let result = sharing(p, call.api, || call.forward());
    let mut vmm = p.vmm.lock();
    let group = vmm.by_handle(mc).filter(|_| result == CUDA_SUCCESS);
    for (object, from, size) in held {
        let Some(group) = group else {
            let settled = vmm.drop_hold(object);
            apply_settled(p, call.api, &mut vmm, settled, result);
            continue;
        };
        let own = || vmm.object(object).map_or(DeviceId::UNKNOWN, |object| object.device);
        let lane = lane(device.map_or_else(own, device_id));
        let region = Region::span(lane, mc_offset as u64 + from, size);
        vmm.held_by_tie(Owner::Multicast(group), region, object);
    }
    result
}

fn lane(device: DeviceId) -> u64 {
    device.0.into()
}

/// cuMulticastUnbind.
pub fn unbind(
    p: &'static Process,
    call: &Call<impl Function>,
    mc: u64,
    device: i32,
    mc_offset: usize,
    size: usize,
) -> CUresult {
    let region = Region::span(lane(device_id(device)), mc_offset as u64, size as u64);
    let dropped = {
        let mut vmm = p.vmm.lock();
        match vmm.by_handle(mc) {
            Some(group) => untie(p, call.api, &mut vmm, Owner::Multicast(group), Some(region)),
            None => Dropped::default(),
        }
    };
    let result = sharing(p, call.api, || call.forward());
    settle(p, call.api, dropped, result);
    result
}
