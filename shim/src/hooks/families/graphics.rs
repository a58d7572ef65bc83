//! Buffers of OpenGL, Vulkan and Direct3D: another API's memory, shown to the program while the
//! resource is mapped.

use super::ipc::{import, is_import, size_at};
use super::prelude::*;
use crate::hooks::call::accounting::{begin_free, free_failed};
use crate::runtime::fallible::list_of;

/// The memory of a graphics resource is visible to the program from the query of its pointer until
/// the resource is unmapped or unregistered.
pub fn pointer(
    call: Call<impl Row>,
    dptr: Out<u64>,
    size: Out<usize>,
    resource: GfxRes,
) -> CUresult {
    gave(call.forward(), dptr, |address| {
        let (p, target) = (call.p, current_target(call.p));
        // Without host memory the mapped memory stays in the ledger until the process ends.
        let _ = p.mapped_resources.lock().insert(resource as u64, address);
        if !is_import(p, address) {
            let bytes = size.get().map_or_else(|| size_at(address), |size| size as u64);
            import(call, (Space::Device, address), bytes, target);
        }
    })
}

/// cuGraphicsUnmapResources.
pub fn unmap(call: Call<impl Row>, count: u32, resources: In<GfxRes>) -> CUresult {
    let number = if resources.is_null() { 0 } else { count as usize };
    let resource = |n: usize| resources.at(n).get().map_or(0, |resource| resource as u64);
    // Without host memory for the list the mapped memory stays in the ledger until the process ends; no
    // cap counts it.
    remove_mapped(call, &list_of(number, (0..number).map(resource)).unwrap_or_default())
}

/// cuGraphicsUnregisterResource.
pub fn unregister(call: Call<impl Row>, resource: GfxRes) -> CUresult {
    remove_mapped(call, &[resource as u64])
}

/// Makes the call that unmaps or unregisters resources, and removes their memory from the ledger.
fn remove_mapped(call: Call<impl Row>, resources: &[u64]) -> CUresult {
    let p = call.p;
    let taken = {
        let mut mapped = p.mapped_resources.lock();
        let taken = resources.iter().filter_map(|known| Some((*known, mapped.remove(known)?)));
        list_of(resources.len(), taken).unwrap_or_default()
    };
    let remove = |(_, address): &(u64, u64)| {
        let is_import = |entry: &Entry| entry.kind == Kind::Imported;
        begin_free(p, call.api(), (Space::Device, *address), is_import)
    };
    let removed = list_of(taken.len(), taken.iter().filter_map(remove)).unwrap_or_default();
    let result = call.forward();
    if result != CUDA_SUCCESS {
        for (resource, address) in taken {
            let _ = p.mapped_resources.lock().insert(resource, address);
        }
        removed.iter().for_each(|removed| free_failed(p, removed));
    }
    result
}
