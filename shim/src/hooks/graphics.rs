//! Buffers of OpenGL, Vulkan and Direct3D: another API's memory, shown to the program while the
//! resource is mapped.

use super::ipc::{book, size_at};
use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::hooks::accounting::freeing_site;
use crate::hooks::call::Call;
use crate::hooks::state::Process;
use crate::hooks::target::current_target;
use crate::runtime::fallible::list_of;
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{Event, Kind, Space};

/// A graphics resource shows its memory when its pointer is asked for, and takes it back when it
/// is unmapped or unregistered.
///
/// # Safety
/// As cuGraphicsResourceGetMappedPointer.
pub unsafe fn pointer(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut u64, *mut usize, GfxRes) -> CUresult>,
    dptr: *mut u64,
    size: *mut usize,
    resource: GfxRes,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(dptr, size, resource) };
    if result == CUDA_SUCCESS && !dptr.is_null() {
        // SAFETY: the driver has written it.
        let address = unsafe { *dptr };
        // SAFETY: as above.
        let bytes = if size.is_null() { size_at(address) } else { unsafe { *size as u64 } };
        let target = current_target(p);
        p.mapped_resources.insert(resource as u64, address);
        let known = p.ledger.get(Space::Device, address);
        if known.is_none_or(|entry| entry.kind != Kind::Imported) {
            book(p, call.api, Space::Device, address, bytes, target);
        }
    }
    result
}

/// # Safety
/// As cuGraphicsUnmapResources.
pub unsafe fn unmap(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(u32, *mut GfxRes, Stream) -> CUresult>,
    count: u32,
    resources: *mut GfxRes,
    stream: Stream,
) -> CUresult {
    let named = match resources.is_null() {
        true => 0,
        false => count as usize,
    };
    // SAFETY: the program's own call, with its arguments.
    let real = || unsafe { call.real(count, resources, stream) };
    // SAFETY: the program names so many of them.
    let list = list_of(named, (0..named).map(|n| unsafe { *resources.add(n) } as u64));
    // Without memory for it, what they show is seen until the process ends; no cap counts it.
    match list {
        Ok(list) => hide(p, call.api, &list, real),
        Err(NoMemory) => real(),
    }
}

/// # Safety
/// As cuGraphicsUnregisterResource.
pub unsafe fn unregister(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(GfxRes) -> CUresult>,
    resource: GfxRes,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    hide(p, call.api, &[resource as u64], || unsafe { call.real(resource) })
}

fn hide(
    p: &'static Process,
    api: Api,
    resources: &[u64],
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let taken = p.mapped_resources.remove_all(resources);
    let removed = list_of(
        taken.len(),
        taken.iter().filter_map(|(_, address)| {
            let removed =
                p.ledger.remove_if(&p.trace_writer, Space::Device, *address, |entry| {
                    entry.kind == Kind::Imported
                })?;
            let site = freeing_site(p, api, &removed.entry, 0);
            p.trace_writer.record(&Event::Free { key: *address, space: Space::Device, site });
            Some((removed, site))
        }),
    );
    let removed = removed.unwrap_or_default();
    let result = real();
    if result != CUDA_SUCCESS {
        p.mapped_resources.put_back(taken);
        for (removed, site) in removed {
            let key = removed.entry.key;
            p.ledger.restore(&p.trace_writer, &removed);
            p.trace_writer.record(&Event::FreeFailed { key, space: Space::Device, site, result });
        }
    }
    result
}
