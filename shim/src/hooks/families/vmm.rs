//! Virtual memory management (cuMemCreate and related functions): physical objects, their handles and
//! mappings.
//!
//! Each hook drops the object's references before the driver's call and settles them by its result
//! ([`crate::model::vmm`]). The end of an object is entered in the ledger and the file while the lock
//! of the objects is held.

use super::prelude::*;
use crate::hooks::call::accounting::{allocate, begin_free, enter, free_failed, given};
use crate::hooks::call::after_call::unfollowed;
use crate::hooks::call::attribution::sharing;
use crate::hooks::call::request::answered;
use crate::model::ledger::Removed;
use crate::model::vmm::{Dropped, Mapping, Object, Owner, Region, Settled, State, What};
use crate::runtime::reserve;
use core::ffi::c_void;
use vramtrace_format::Drift;

/// cuMemCreate.
pub fn create(
    call: Call<impl Row>,
    handle: Out<u64>,
    size: usize,
    prop: In<CUmemAllocationProp>,
) -> CUresult {
    // The driver refuses NULL in either place.
    let (Some(old), Some(prop)) = (handle.get(), prop.get()) else { return call.forward() };
    let (p, size) = (call.p, size as u64);
    let (what, device) = located(&prop.location);
    let target = Target { device, ..current_target(p) };
    let kind = if what == What::Host { Kind::HostPinned } else { Kind::Vmm };
    let request = Request { space: Space::Vmm, ..Request::new(call.api(), kind, target, size) };
    if p.vmm.lock().make_room().is_err() {
        return unfollowed(call, device);
    }
    let made = || handle.get().unwrap_or(0);
    let taken = || {
        let mut vmm = p.vmm.lock();
        let (object, stale) = vmm.created(made(), what, device, size);
        apply_settled(p, call.api(), &mut vmm, stale);
        (object, size)
    };
    allocate(call, &request, taken, |_| {
        let given = made();
        handle.set(old);
        let mut vmm = p.vmm.lock();
        if let Some(dropped) = vmm.begin_release(given) {
            // Ledger and file have been updated already.
            let _ = vmm.settle(dropped, true);
        }
        drop(vmm);
        if let Some(release) = driver().mem_release {
            // SAFETY: the driver has just given this handle.
            inside(|| unsafe { release(given) });
        }
    })
}

/// Kind of memory and device of an object. A location of an unknown type is on the unknown device,
/// never on device 0.
pub(in crate::hooks) fn located(location: &CUmemLocation) -> (What, DeviceId) {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => (What::Device, device_id(location.id)),
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => (What::Device, DeviceId(location.id as u8)),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => (What::Host, DeviceId::UNKNOWN),
        _ => (What::Device, DeviceId::UNKNOWN),
    }
}

/// A call that drops references: `begin` does so before it is made, by `real`; they are settled by its result.
pub(in crate::hooks) fn dropping(
    call: Call<impl Row>,
    begin: impl FnOnce(&mut State) -> Dropped,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let (p, api) = (call.p, call.api());
    let dropped = {
        let mut vmm = p.vmm.lock();
        let dropped = begin(&mut vmm);
        announce_ends(p, api, &mut vmm, &dropped);
        dropped
    };
    let result = real();
    settle(p, api, dropped, result);
    result
}

/// cuMemRelease.
pub fn release(call: Call<impl Row>, handle: u64) -> CUresult {
    let (p, mut is_known) = (call.p, false);
    let begin = |vmm: &mut State| {
        let dropped = vmm.begin_release(handle);
        is_known = dropped.is_some();
        dropped.unwrap_or_default()
    };
    let result = dropping(call, begin, || call.forward());
    if !is_known && result == CUDA_SUCCESS {
        p.ledger.drift(&p.trace_writer, Drift::UnknownFree, handle);
    }
    result
}

/// cuMemMap.
pub fn map(call: Call<impl Row>, ptr: u64, size: usize, offset: usize, handle: u64) -> CUresult {
    let (p, api) = (call.p, call.api());
    let held = {
        let mut vmm = p.vmm.lock();
        let object = vmm.by_handle(handle).and_then(|number| vmm.object(number));
        if let Some(device) = object.map(|object| object.device)
            // The address space is a tree that cannot reserve room in advance: it may grow from the reserve.
            && reserve::is_low()
        {
            drop(vmm);
            return unfollowed(call, device);
        }
        vmm.hold_handle(handle)
    };
    let result = call.forward();
    let target = current_target(p);
    answered(p, api, target, size as u64, result);
    let Some(object) = held else { return result };
    let mapping = Mapping::new(ptr, size as u64, offset as u64, object);
    let by = stack(p);
    let device = p.vmm.lock().object(object).filter(|object| is_new(object)).map(|o| o.device);
    // The size of an imported object is not known before it is mapped: it enters the ledger here.
    let entry = device.map(|device| {
        let size = mapping.offset.saturating_add(mapping.size);
        given(p, api, Kind::Imported, (Space::Vmm, object), size, Target { device, ..target })
    });
    let mut vmm = p.vmm.lock();
    let settled = if result == CUDA_SUCCESS {
        if let Some(object) = vmm.object_mut(object) {
            if let Some(entry) = entry.filter(|_| is_new(object)) {
                object.size = entry.size;
                enter(p, &entry);
            }
            // Memory that is unmapped later keeps its owner.
            if object.maker == StackId(0) {
                let entry = p.ledger.get(Space::Vmm, mapping.object);
                object.maker = entry.map_or(StackId(0), |entry| entry.stack);
            }
        }
        let settled = vmm.held_by_mapping(mapping, by);
        record_map(p, &vmm, &mapping, by);
        settled
    } else {
        vmm.drop_hold(object)
    };
    apply_settled(p, api, &mut vmm, settled);
    result
}

/// Whether it is an imported object that was not mapped yet.
fn is_new(object: &Object) -> bool {
    object.what == What::Imported && object.size == 0
}

/// cuMemUnmap.
pub fn unmap(call: Call<impl Row>, address: u64, size: usize) -> CUresult {
    let (p, size, stack) = (call.p, size as u64, stack(call.p));
    let begin = |vmm: &mut State| {
        let dropped = vmm.begin_unmap(address, size);
        if !dropped.is_empty() {
            p.trace_writer.record(&Event::Unmap { address, size, stack });
        }
        dropped
    };
    dropping(call, begin, || call.forward())
}

/// cuMemRetainAllocationHandle.
pub fn retain(call: Call<impl Row>, handle: Out<u64>, address: *mut c_void) -> CUresult {
    let p = call.p;
    let held = p.vmm.lock().hold_address(address as u64);
    let result = call.forward();
    let mut vmm = p.vmm.lock();
    let given = if result == CUDA_SUCCESS { handle.get() } else { None };
    // Where the mapping was not seen, the handle may be known.
    let held = held.or_else(|| vmm.hold_handle(given?));
    let settled = match (held, given) {
        (Some(object), Some(handle)) => vmm.held_by_handle(object, handle),
        (Some(object), None) => vmm.drop_hold(object),
        (None, _) => return result,
    };
    apply_settled(p, call.api(), &mut vmm, settled);
    result
}

/// cuMemImportFromShareableHandle.
pub fn import(call: Call<impl Row>, handle: Out<u64>) -> CUresult {
    gave(sharing(call), handle, |handle| {
        // SAFETY: integers and pointers, for which zeros are valid.
        let empty: CUmemAllocationProp = unsafe { core::mem::zeroed() };
        let prop = answer(empty, |prop| {
            let ask = driver().mem_get_allocation_properties_from_handle?;
            // SAFETY: the driver has just given the handle.
            Some(unsafe { ask(prop, handle) })
        });
        let device = prop.map_or(DeviceId::UNKNOWN, |prop| located(&prop.location).1);
        call.p.vmm.lock().imported(handle, device);
    })
}

/// Before the driver's call: drops the references of ties, and announces the objects that end.
pub(in crate::hooks) fn untie(
    p: &'static Process,
    api: Api,
    vmm: &mut State,
    owner: Owner,
    region: Option<Region>,
) -> Dropped {
    let dropped = vmm.begin_untie(owner, region);
    announce_ends(p, api, vmm, &dropped);
    dropped
}

/// Before the driver's call: removes the objects that it frees from the ledger, and records their end.
fn announce_ends(p: &'static Process, api: Api, vmm: &mut State, dropped: &Dropped) {
    for number in &dropped.ended {
        let removed = announce_end(p, api, *number);
        if let Some(object) = vmm.object_mut(*number) {
            object.parked = removed;
        }
    }
}

fn announce_end(p: &'static Process, api: Api, number: u64) -> Option<Removed> {
    begin_free(p, api, (Space::Vmm, number), |_| true)
}

/// After the driver's call: settles the references that were dropped before it.
pub(in crate::hooks) fn settle(p: &'static Process, api: Api, dropped: Dropped, result: CUresult) {
    let mut vmm = p.vmm.lock();
    let settled = vmm.settle(dropped, result == CUDA_SUCCESS);
    apply_settled(p, api, &mut vmm, settled);
}

/// Enters in the ledger, the trace and the cap which physical objects were freed, and which exist again
/// because the driver refused to free them.
pub(in crate::hooks) fn apply_settled(
    p: &'static Process,
    api: Api,
    vmm: &mut State,
    settled: Settled,
) {
    for (number, object) in settled.ended {
        if let Some(removed) = object.parked.or_else(|| announce_end(p, api, number)) {
            p.cap.went(removed.entry.device, Kind::Vmm, removed.bytes);
        }
    }
    for number in settled.revived {
        let parked = vmm.object_mut(number).and_then(|object| object.parked.take());
        if let Some(removed) = parked {
            free_failed(p, &removed);
        }
    }
    for mapping in settled.remapped {
        record_map(p, vmm, &mapping, StackId(0));
    }
}

fn record_map(p: &Process, vmm: &State, mapping: &Mapping, by: StackId) {
    // A multicast object is not in the ledger: its mappings show memory of other objects.
    if vmm.object(mapping.object).is_some_and(|object| object.what != What::Multicast) {
        p.trace_writer.record(&Event::Map {
            address: mapping.address,
            size: mapping.size,
            offset: mapping.offset,
            object: mapping.object,
            owner: StackId(0),
            stack: by,
        });
    }
    if let Some(sampling) = &p.block_sampling
        && let Some(object) = vmm.object(mapping.object)
    {
        sampling.memory_came(object.device, mapping.address, mapping.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_device_memory_is_vram() {
        let at = |kind, id| located(&CUmemLocation { kind, id });
        assert_eq!(at(1, 3), (What::Device, DeviceId(3)));
        assert_eq!(at(6, 0x0102), (What::Device, DeviceId(2)));
        assert_eq!(at(2, 0).0, What::Host);
        assert_eq!(at(3, 1).0, What::Host);
        assert_eq!(at(4, 0).0, What::Host);
        assert_eq!(at(99, 0), (What::Device, DeviceId::UNKNOWN));
        assert_eq!(at(1, -1), (What::Device, DeviceId::UNKNOWN));
    }
}
