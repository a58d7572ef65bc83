//! Virtual memory management (cuMemCreate and related functions): physical objects, their handles and
//! mappings.
//!
//! Each hook drops the object's references before the driver's call and settles them by its result
//! ([`crate::model::vmm`]). The end of an object is entered in the ledger and the file while the lock
//! of the objects is held.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::accounting::{allocate, begin_free, enter, free_failed, freeing_site};
use crate::hooks::call::after_call::{stop_without_host_memory, unfollowed};
use crate::hooks::call::attribution::sharing;
use crate::hooks::call::request::{Request, refuse_unrecordable, site};
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::target::device_id;
use crate::model::contexts::Target;
use crate::model::ledger::{Entry, Removed};
use crate::model::vmm::{Dropped, Mapping, Object, Owner, Region, Settled, State, What};
use core::ffi::c_void;
use vramtrace_format::{DeviceId, Drift, Event, Kind, PoolId, Space, StackId};

/// cuMemCreate.
pub fn create(
    p: &'static Process,
    call: &Call<impl Function>,
    handle: Out<u64>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    _flags: u64,
) -> CUresult {
    // The driver refuses NULL in either place.
    let (Some(old), Some(prop)) = (handle.get(), prop.get()) else { return call.forward() };
    let (what, device) = located(&prop.location);
    let target = Target { device, ..current_target(p) };
    let real = || call.forward();
    let counted = || {
        let handle = handle.get().unwrap_or(0);
        let mut vmm = p.vmm.lock();
        let (object, stale) = vmm.created(handle, what, device, size as u64);
        apply_settled(p, call.api, &mut vmm, stale, 0);
        object
    };
    let kind = if what == What::Host { Kind::HostPinned } else { Kind::Vmm };
    let size = size as u64;
    let request = Request { space: Space::Vmm, ..Request::new(call.api, kind, target, size) };
    if p.vmm.lock().make_room().is_err() {
        stop_without_host_memory(p);
        return match p.cap.must_count(device) {
            true => refuse_unrecordable(p, &request),
            false => real(),
        };
    }
    allocate(
        p,
        &request,
        real,
        || (counted(), size),
        |_| {
            let given = handle.get().unwrap_or(0);
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
        },
    )
}

/// Kind of memory and device of an object. A location of an unknown type is on the unknown device,
/// never on device 0.
fn located(location: &CUmemLocation) -> (What, DeviceId) {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => (What::Device, device_id(location.id)),
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => (What::Device, DeviceId(location.id as u8)),
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => (What::Host, DeviceId::UNKNOWN),
        _ => (What::Device, DeviceId::UNKNOWN),
    }
}

/// cuMemRelease.
pub fn release(p: &'static Process, call: &Call<impl Function>, handle: u64) -> CUresult {
    let dropped = {
        let mut vmm = p.vmm.lock();
        let dropped = vmm.begin_release(handle);
        if let Some(dropped) = &dropped {
            announce_ends(p, call.api, &mut vmm, dropped);
        }
        dropped
    };
    let result = call.forward();
    match dropped {
        Some(dropped) => settle(p, call.api, dropped, result),
        None if result == CUDA_SUCCESS => {
            p.ledger.drift(&p.trace_writer, Drift::UnknownFree, handle);
        }
        None => {}
    }
    result
}

/// cuMemMap.
pub fn map(
    p: &'static Process,
    call: &Call<impl Function>,
    ptr: u64,
    size: usize,
    offset: usize,
    handle: u64,
    _flags: u64,
) -> CUresult {
    let real = || call.forward();
    let held = {
        let mut vmm = p.vmm.lock();
        let object = vmm.by_handle(handle).and_then(|number| vmm.object(number));
        if let Some(device) = object.map(|object| object.device)
            && vmm.make_room_to_map().is_err()
        {
            drop(vmm);
            return unfollowed(p, device).unwrap_or_else(real);
        }
        vmm.hold_handle(handle)
    };
    let result = real();
    let Some(object) = held else { return result };
    let mapping = Mapping::new(ptr, size as u64, offset as u64, object);
    let target = current_target(p);
    let by = stack(p);
    let device =
        p.vmm.lock().object(object).filter(|object| is_new_import(object)).map(|o| o.device);
    let entry = device.map(|device| unsized_import(p, call.api, Target { device, ..target }, by));
    let mut vmm = p.vmm.lock();
    let settled = if result == CUDA_SUCCESS {
        if let Some(entry) = entry {
            enter_mapped_import(p, &mut vmm, &mapping, entry);
        }
        note_maker(p, &mut vmm, object);
        let settled = vmm.held_by_mapping(mapping, by);
        record_map(p, &vmm, &mapping, by);
        settled
    } else {
        vmm.drop_hold(object)
    };
    apply_settled(p, call.api, &mut vmm, settled, result);
    result
}

/// Stores the stack that created the object, so that memory which is unmapped later keeps its owner.
fn note_maker(p: &'static Process, vmm: &mut State<Removed>, number: u64) {
    if let Some(object) = vmm.object_mut(number)
        && object.maker == StackId(0)
        && let Some(entry) = p.ledger.get(Space::Vmm, number)
    {
        object.maker = entry.stack;
    }
}

/// Whether it is an imported object that was not mapped yet.
fn is_new_import(object: &Object<Removed>) -> bool {
    object.what == What::Imported && object.size == 0
}

/// The entry of an imported object that no cap counts, without its key and size.
fn unsized_import(p: &'static Process, api: Api, target: Target, stack: StackId) -> Entry {
    Entry {
        space: Space::Vmm,
        context: target.context,
        site: site(p, api, Some(Kind::Imported), target, PoolId(0), 0),
        stack,
        ..Entry::new(Kind::Imported, 0, 0, target.device)
    }
}

/// An imported object enters the ledger when it is first mapped, since its size is not known before.
fn enter_mapped_import(
    p: &'static Process,
    vmm: &mut State<Removed>,
    mapping: &Mapping,
    entry: Entry,
) {
    let Some(object) = vmm.object_mut(mapping.object) else { return };
    if is_new_import(object) {
        object.size = mapping.offset.saturating_add(mapping.size);
        let (key, time_ns) = (mapping.object, p.clock.now_ns());
        let entry = Entry { key, size: object.size, time_ns, ..entry };
        enter(p, &entry);
    }
}

/// cuMemUnmap.
pub fn unmap(p: &'static Process, call: &Call<impl Function>, ptr: u64, size: usize) -> CUresult {
    let by = stack(p);
    let dropped = {
        let mut vmm = p.vmm.lock();
        let dropped = vmm.begin_unmap(ptr, size as u64);
        if !dropped.is_empty() {
            p.trace_writer.record(&Event::Unmap { address: ptr, size: size as u64, stack: by });
            announce_ends(p, call.api, &mut vmm, &dropped);
        }
        dropped
    };
    let result = call.forward();
    settle(p, call.api, dropped, result);
    result
}

/// cuMemRetainAllocationHandle.
pub fn retain(
    p: &'static Process,
    call: &Call<impl Function>,
    handle: Out<u64>,
    address: *mut c_void,
) -> CUresult {
    let held = p.vmm.lock().hold_address(address as u64);
    let result = call.forward();
    let mut vmm = p.vmm.lock();
    let given = if result == CUDA_SUCCESS { handle.get() } else { None };
    let settled = match (held, given) {
        (Some(object), Some(handle)) => vmm.held_by_handle(object, handle),
        (Some(object), None) => vmm.drop_hold(object),
        // The mapping was not seen, but the handle is known.
        (None, Some(handle)) => match vmm.hold_handle(handle) {
            Some(object) => vmm.held_by_handle(object, handle),
            None => return result,
        },
        (None, None) => return result,
    };
    apply_settled(p, call.api, &mut vmm, settled, result);
    result
}

hooks! { p, call:
    /// cuMemImportFromShareableHandle.
    import(handle: Out<u64>, os_handle: *mut c_void, kind: CUmemAllocationHandleType) =
        gave(sharing(p, call.api, || call.forward()), handle, |handle| {
            let device = device_of(handle).unwrap_or(DeviceId::UNKNOWN);
            p.vmm.lock().imported(handle, device);
        });
}

fn device_of(handle: u64) -> Option<DeviceId> {
    let ask = driver().mem_get_allocation_properties_from_handle?;
    let mut prop = core::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
    // SAFETY: `prop` has room for the answer. All of its fields are numbers and pointers, for which
    // zeros are valid.
    let (result, prop) = unsafe { (inside(|| ask(prop.as_mut_ptr(), handle)), prop.assume_init()) };
    (result == CUDA_SUCCESS).then(|| located(&prop.location).1)
}

/// Before the driver's call: drops the references of ties, and announces the objects that end.
pub(in crate::hooks) fn untie(
    p: &'static Process,
    api: Api,
    vmm: &mut State<Removed>,
    owner: Owner,
    region: Option<Region>,
) -> Dropped {
    let dropped = vmm.begin_untie(owner, region);
    announce_ends(p, api, vmm, &dropped);
    dropped
}

/// Before the driver's call: removes the objects that it frees from the ledger, and records their end.
pub(in crate::hooks) fn announce_ends(
    p: &'static Process,
    api: Api,
    vmm: &mut State<Removed>,
    dropped: &Dropped,
) {
    for number in &dropped.ended {
        let removed = announce_end(p, api, *number);
        if let Some(object) = vmm.object_mut(*number) {
            object.parked = removed;
        }
    }
}

fn announce_end(p: &'static Process, api: Api, number: u64) -> Option<Removed> {
    begin_free(p, api, (Space::Vmm, number), |_| true).map(|(removed, _)| removed)
}

/// After the driver's call: settles the references that were dropped before it.
pub(in crate::hooks) fn settle(p: &'static Process, api: Api, dropped: Dropped, result: CUresult) {
    let mut vmm = p.vmm.lock();
    let settled = vmm.settle(dropped, result == CUDA_SUCCESS);
    apply_settled(p, api, &mut vmm, settled, result);
}

/// Enters in the ledger, the trace and the cap which physical objects were freed, and which exist again
/// because the driver refused to free them.
pub(in crate::hooks) fn apply_settled(
    p: &'static Process,
    api: Api,
    vmm: &mut State<Removed>,
    settled: Settled<Removed>,
    result: CUresult,
) {
    for (number, object) in settled.ended {
        if let Some(removed) = object.parked.or_else(|| announce_end(p, api, number)) {
            p.cap.went(removed.entry.device, Kind::Vmm, removed.bytes);
        }
    }
    for number in settled.revived {
        let parked = vmm.object_mut(number).and_then(|object| object.parked.take());
        if let Some(removed) = parked {
            let site = freeing_site(p, api, &removed.entry, 0);
            free_failed(p, &removed, site, result);
        }
    }
    for mapping in settled.remapped {
        record_map(p, vmm, &mapping, StackId(0));
    }
}

fn record_map(p: &Process, vmm: &State<Removed>, mapping: &Mapping, by: StackId) {
    // A multicast object is not in the ledger: its mappings show memory of other objects.
    if vmm.object(mapping.object).is_some_and(|object| object.what != What::Multicast) {
        p.trace_writer.record(&Event::Map {
            address: mapping.address,
            size: mapping.size,
            offset: mapping.offset,
            object: mapping.object,
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
