//! Memory that another process or another API owns. It counts in no sum and under no cap. The ledger
//! holds it, since the same calls free it.

use super::prelude::*;
use crate::hooks::call::accounting::{begin_free, enter, free_failed, given};
use crate::hooks::call::attribution::sharing;

/// Memory of this process that is exported to others. It is marked, because an allocator setting that
/// splits such allocations would break the export.
pub fn share(call: Call<impl Row>, dptr: u64) -> CUresult {
    let (p, result) = (call.p, call.forward());
    if result == CUDA_SUCCESS {
        p.exports.add(dptr);
        let site = site_at(p, call.api(), None, current_target(p));
        p.trace_writer.record(&Event::Shared { address: dptr, site, stack: stack(p) });
    }
    result
}

/// Opens are counted by the driver: the same handle gives the same address again.
pub fn open(call: Call<impl Row>, dptr: Out<u64>) -> CUresult {
    let p = call.p;
    gave(sharing(call), dptr, |address| {
        let (size, target) = (size_at(address), current_target(p));
        let entry = given(p, call.api(), Kind::Imported, (Space::Device, address), size, target);
        let order = p.imports.lock();
        if !count_opens(p, address, 1) {
            enter(p, &entry);
        }
        drop(order);
    })
}

/// Whether the address is of memory that was imported.
fn is_import(p: &Process, address: u64) -> bool {
    let known = p.ledger.get(Space::Device, address);
    known.is_some_and(|entry| entry.kind == Kind::Imported)
}

/// One more open of an address that is here, or one less. False: it is not here.
fn count_opens(p: &Process, address: u64, more: i32) -> bool {
    is_import(p, address) && p.ledger.add_refs(Space::Device, address, more).is_some()
}

/// cuIpcCloseMemHandle. The last one of an address is its free. The driver refuses an address that is no import.
pub fn close(call: Call<impl Row>, address: u64) -> CUresult {
    let p = call.p;
    let order = p.imports.lock();
    // In the order of the ledger: the driver gives the address again before this call has ended.
    let last = begin_free(p, call.api(), (Space::Device, address), |entry| {
        entry.kind == Kind::Imported && entry.refs <= 1
    });
    let is_counted = last.is_none() && count_opens(p, address, -1);
    drop(order);
    let result = sharing(call);
    if result != CUDA_SUCCESS {
        match last {
            Some(removed) => free_failed(p, &removed),
            None if is_counted => drop(p.ledger.add_refs(Space::Device, address, 1)),
            None => {}
        }
    }
    result
}

pub fn pool_import_pointer(call: Call<impl Row>, ptr: Out<u64>) -> CUresult {
    gave(sharing(call), ptr, |address| {
        let device = answer(-1, |ordinal| {
            let room = (&raw mut *ordinal).cast();
            let ask = driver().pointer_get_attribute?;
            // SAFETY: room for the answer, which is an integer.
            Some(unsafe { ask(room, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) })
        });
        let device = device_id(device.unwrap_or(-1));
        let target = Target { device, ..current_target(call.p) };
        import(call, (Space::Device, address), size_at(address), target);
    })
}

/// Freed with cuMemFree; cuDestroyExternalMemory leaves it alone.
pub fn external_buffer(
    call: Call<impl Row>,
    dptr: Out<u64>,
    descriptor: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
) -> CUresult {
    gave(sharing(call), dptr, |address| {
        if let Some(descriptor) = descriptor.get() {
            import(call, (Space::Device, address), descriptor.size, current_target(call.p));
        }
    })
}

/// Freed with cuMipmappedArrayDestroy. Its size is not known.
pub fn external_mipmap(call: Call<impl Row>, array: Out<MArray>) -> CUresult {
    gave(sharing(call), array, |array| {
        import(call, (Space::Array, array as u64), 0, current_target(call.p));
    })
}

/// The call has given memory of others.
fn import(call: Call<impl Row>, at: (Space, u64), size: u64, target: Target) {
    enter(call.p, &given(call.p, call.api(), Kind::Imported, at, size, target));
}

/// Bytes of the allocation that contains the address; 0: the driver gives no answer.
fn size_at(address: u64) -> u64 {
    let mut base = 0;
    let size = answer(0, |size| Some(driver().mem_get_address_range?(&mut base, size, address)));
    size.unwrap_or(0) as u64
}
