//! Memory that another process or another API owns. It counts in no sum and under no cap. The ledger
//! holds it, since the same calls free it.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::accounting::{begin_free, enter, free_failed};
use crate::hooks::call::attribution::sharing;
use crate::hooks::call::request::site;
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::model::contexts::Target;
use crate::model::ledger::Entry;
use vramtrace_format::{DeviceId, Event, Kind, PoolId, Space};

/// Memory of this process that is exported to others. It is marked, because an allocator setting that
/// splits such allocations would break the export.
pub fn share(
    p: &'static Process,
    call: &Call<impl Function>,
    _handle: Out<CUipcMemHandle>,
    dptr: u64,
) -> CUresult {
    let result = call.forward();
    if result == CUDA_SUCCESS {
        p.exports.add(dptr);
        let site = site(p, call.api, None, current_target(p), PoolId(0), 0);
        let stack = crate::hooks::process::stacks::stack(p);
        p.trace_writer.record(&Event::Shared { address: dptr, site, stack });
    }
    result
}

/// Opens are counted by the driver: the same handle gives the same address again.
pub fn open(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u64>,
    _handle: CUipcMemHandle,
    _flags: u32,
) -> CUresult {
    gave(sharing(p, call.api, || call.forward()), dptr, |address| {
        if again(p, address) {
            return;
        }
        let (size, target) = (size_at(address), current_target(p));
        let entry = entry(p, call.api, Space::Device, address, size, target);
        let order = p.imports.order();
        // Another thread may have opened the same handle meanwhile.
        if !again(p, address) {
            enter(p, &entry);
        }
        drop(order);
    })
}

/// One more open of an address that is already here.
fn again(p: &'static Process, address: u64) -> bool {
    p.ledger.get(Space::Device, address).is_some_and(|entry| entry.kind == Kind::Imported)
        && p.ledger.add_refs(Space::Device, address, 1).is_some()
}

/// cuIpcCloseMemHandle.
pub fn close(p: &'static Process, call: &Call<impl Function>, dptr: u64) -> CUresult {
    release(p, call.api, dptr, || sharing(p, call.api, || call.forward()))
}

/// Drops one open of an imported address, the last one being its free. The driver refuses an address
/// that is no import.
fn release(
    p: &'static Process,
    api: Api,
    address: u64,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let order = p.imports.order();
    // In the order of the ledger: the driver gives the address again before this call has ended.
    let last = begin_free(p, api, (Space::Device, address), |entry| {
        entry.kind == Kind::Imported && entry.refs <= 1
    });
    let counted = match last {
        Some(_) => None,
        None => p
            .ledger
            .get(Space::Device, address)
            .filter(|entry| entry.kind == Kind::Imported)
            .and_then(|_| p.ledger.add_refs(Space::Device, address, -1)),
    };
    drop(order);
    let result = real();
    if result != CUDA_SUCCESS {
        match last {
            Some((removed, site)) => free_failed(p, &removed, site, result),
            None => {
                counted.and_then(|_| p.ledger.add_refs(Space::Device, address, 1));
            }
        }
    }
    result
}

hooks! { p, call:
    /// cuMemPoolImportPointer.
    pool_import_pointer(ptr: Out<u64>, pool: Pool, data: Out<CUmemPoolPtrExportData>) =
        gave(sharing(p, call.api, || call.forward()), ptr, |address| {
            let target = Target { device: device_of(address), ..current_target(p) };
            book(p, call.api, Space::Device, address, size_at(address), target);
        });
    /// Freed with cuMemFree; cuDestroyExternalMemory leaves it alone.
    external_buffer(dptr: Out<u64>, memory: ExtMem, descriptor: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>) =
        gave(sharing(p, call.api, || call.forward()), dptr, |address| {
            if let Some(descriptor) = descriptor.get() {
                book(p, call.api, Space::Device, address, descriptor.size, current_target(p));
            }
        });
    /// Freed with cuMipmappedArrayDestroy. Its size is not known.
    external_mipmap(
        array: Out<MArray>,
        memory: ExtMem,
        descriptor: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>,
    ) = gave(sharing(p, call.api, || call.forward()), array, |array| {
        book(p, call.api, Space::Array, array as u64, 0, current_target(p));
    });
}

pub(in crate::hooks) fn book(
    p: &'static Process,
    api: Api,
    space: Space,
    key: u64,
    size: u64,
    target: Target,
) {
    enter(p, &entry(p, api, space, key, size, target));
}

fn entry(
    p: &'static Process,
    api: Api,
    space: Space,
    key: u64,
    size: u64,
    target: Target,
) -> Entry {
    Entry {
        space,
        context: target.context,
        site: site(p, api, Some(Kind::Imported), target, PoolId(0), 0),
        stack: crate::hooks::process::stacks::stack(p),
        time_ns: p.clock.now_ns(),
        ..Entry::new(Kind::Imported, key, size, target.device)
    }
}

/// Bytes of the allocation that contains the address; 0: the driver gives no answer.
pub(in crate::hooks) fn size_at(address: u64) -> u64 {
    let (mut base, mut size) = (0, 0);
    let ask = driver().mem_get_address_range;
    let result = ask.map(|ask| inside(|| ask(&mut base, &mut size, address)));
    if result == Some(CUDA_SUCCESS) { size as u64 } else { 0 }
}

fn device_of(address: u64) -> DeviceId {
    let mut ordinal = -1i32;
    let result = driver().pointer_get_attribute.map(|ask| {
        let room = (&raw mut ordinal).cast();
        // SAFETY: room for the answer.
        inside(|| unsafe { ask(room, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) })
    });
    match result {
        Some(CUDA_SUCCESS) => crate::hooks::process::target::device_id(ordinal),
        _ => DeviceId::UNKNOWN,
    }
}
