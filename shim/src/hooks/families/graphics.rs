//! Buffers of OpenGL, Vulkan and Direct3D: another API's memory, shown to the program while the
//! resource is mapped.

use super::ipc::{book, size_at};
use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::hooks::call::accounting::{begin_free, free_failed};
use crate::hooks::call::{Call, Function, gave};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::runtime::fallible::list_of;
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{Kind, Space};

/// The memory of a graphics resource is visible to the program from the query of its pointer until
/// the resource is unmapped or unregistered.
pub fn pointer(
    p: &'static Process,
    call: &Call<impl Function>,
    dptr: Out<u64>,
    size: Out<usize>,
    resource: GfxRes,
) -> CUresult {
    gave(call.forward(), dptr, |address| {
        let bytes = size.get().map_or_else(|| size_at(address), |size| size as u64);
        let target = current_target(p);
        p.mapped_resources.insert(resource as u64, address);
        let known = p.ledger.get(Space::Device, address);
        if known.is_none_or(|entry| entry.kind != Kind::Imported) {
            book(p, call.api, Space::Device, address, bytes, target);
        }
    })
}

/// cuGraphicsUnmapResources.
pub fn unmap(
    p: &'static Process,
    call: &Call<impl Function>,
    count: u32,
    resources: In<GfxRes>,
    _stream: Stream,
) -> CUresult {
    let named = match resources.is_null() {
        true => 0,
        false => count as usize,
    };
    let real = || call.forward();
    let resource = |n: usize| resources.at(n).get().map_or(0, |resource| resource as u64);
    let list = list_of(named, (0..named).map(resource));
    // Without host memory for the list the mapped memory stays in the ledger until the process ends; no
    // cap counts it.
    match list {
        Ok(list) => remove_mapped(p, call.api, &list, real),
        Err(NoMemory) => real(),
    }
}

/// cuGraphicsUnregisterResource.
pub fn unregister(p: &'static Process, call: &Call<impl Function>, resource: GfxRes) -> CUresult {
    remove_mapped(p, call.api, &[resource as u64], || call.forward())
}

/// Makes the call that unmaps or unregisters resources, and removes their memory from the ledger.
fn remove_mapped(
    p: &'static Process,
    api: Api,
    resources: &[u64],
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let taken = p.mapped_resources.remove_all(resources);
    let remove = |(_, address): &(u64, u64)| {
        begin_free(p, api, (Space::Device, *address), |entry| entry.kind == Kind::Imported)
    };
    let removed = list_of(taken.len(), taken.iter().filter_map(remove)).unwrap_or_default();
    let result = real();
    if result != CUDA_SUCCESS {
        p.mapped_resources.put_back(taken);
        removed.iter().for_each(|(removed, site)| free_failed(p, removed, *site, result));
    }
    result
}
