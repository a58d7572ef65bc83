//! The real functions of the driver that the recorder calls, and how such a list is made.
//!
//! `None` where the driver is too old to have it. A thread that is not inside a hook raises the
//! guard around them with [`crate::driver::depth::inside`].

use super::api::Home;
use super::cuda::*;
use crate::driver::depth::inside;
use crate::driver::pointers;
use crate::runtime::elf::Object;
use core::ffi::{c_char, c_void};
use once_cell::race::OnceRef;

/// Defines `struct $table`: functions of a library of NVIDIA's.
macro_rules! functions {
    ($table:ident: $( $field:ident: $symbol:literal ( $($arg:ident: $ty:ty),* ) $($unsafe:ident)?; )*) => {
        pub struct $table {
            $( #[doc = $symbol] pub $field: Option<$($unsafe)? extern "C-unwind" fn($($arg: $ty),*) -> CUresult>, )*
        }

        impl $table {
            pub const NONE: $table = $table { $( $field: None, )* };

            /// Those that the library has.
            pub fn of(library: &Object) -> $table {
                $table { $(
                    $field: library.function($symbol.as_bytes())
                        // SAFETY: the library's function of that name, with the type that it documents. One that
                        // is not unsafe checks every number, and writes only where references lead.
                        .map(|address| unsafe { core::mem::transmute(address) }),
                )* }
            }
        }
    };
}
pub(super) use functions;

functions! { Driver:
    // Sound with any arguments of these types.
    ctx_get_current: "cuCtxGetCurrent" (ctx: &mut Ctx);
    ctx_get_device: "cuCtxGetDevice" (device: &mut Device);
    ctx_get_limit: "cuCtxGetLimit" (value: &mut usize, limit: u32);
    ctx_pop_current: "cuCtxPopCurrent_v2" (ctx: &mut Ctx);
    primary_ctx_get_state: "cuDevicePrimaryCtxGetState" (device: Device, flags: &mut u32, active: &mut i32);
    driver_get_version: "cuDriverGetVersion" (version: &mut i32);
    device_get: "cuDeviceGet" (device: &mut Device, ordinal: i32);
    device_get_uuid: "cuDeviceGetUuid" (uuid: &mut CUuuid, device: Device);
    device_get_uuid_v2: "cuDeviceGetUuid_v2" (uuid: &mut CUuuid, device: Device);
    device_get_attribute: "cuDeviceGetAttribute" (value: &mut i32, attribute: u32, device: Device);
    device_total_mem: "cuDeviceTotalMem_v2" (bytes: &mut usize, device: Device);
    device_get_mem_pool: "cuDeviceGetMemPool" (pool: &mut Pool, device: Device);
    device_get_graph_mem_attribute: "cuDeviceGetGraphMemAttribute" (device: Device, attribute: u32, value: &mut u64);
    mem_get_info: "cuMemGetInfo_v2" (free: &mut usize, total: &mut usize);
    mem_get_address_range: "cuMemGetAddressRange_v2" (base: &mut DevicePtr, size: &mut usize, ptr: DevicePtr);
    // Handles must be alive, and pointers lead to what the function or the attribute documents.
    ctx_push_current: "cuCtxPushCurrent_v2" (ctx: Ctx) unsafe;
    device_get_name: "cuDeviceGetName" (name: *mut c_char, length: i32, device: Device) unsafe;
    mem_pool_get_attribute: "cuMemPoolGetAttribute" (pool: Pool, attribute: u32, value: *mut c_void) unsafe;
    mem_get_allocation_properties_from_handle: "cuMemGetAllocationPropertiesFromHandle" (prop: *mut CUmemAllocationProp, handle: MemHandle) unsafe;
    array_destroy: "cuArrayDestroy" (array: Array) unsafe;
    mipmapped_array_destroy: "cuMipmappedArrayDestroy" (array: MArray) unsafe;
    graph_get_nodes: "cuGraphGetNodes" (graph: Graph, nodes: *mut Node, count: *mut usize) unsafe;
    graph_node_get_type: "cuGraphNodeGetType" (node: Node, kind: *mut u32) unsafe;
    graph_mem_alloc_node_get_params: "cuGraphMemAllocNodeGetParams" (node: Node, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) unsafe;
    graph_mem_free_node_get_params: "cuGraphMemFreeNodeGetParams" (node: Node, address: *mut DevicePtr) unsafe;
    graph_child_graph_node_get_graph: "cuGraphChildGraphNodeGetGraph" (node: Node, graph: *mut Graph) unsafe;
    mem_free: "cuMemFree_v2" (ptr: DevicePtr) unsafe;
    mem_release: "cuMemRelease" (handle: MemHandle) unsafe;
    pointer_get_attribute: "cuPointerGetAttribute" (data: *mut c_void, attribute: u32, ptr: DevicePtr) unsafe;
    func_get_attribute: "cuFuncGetAttribute" (value: *mut i32, attribute: u32, function: Function) unsafe;
    func_get_name: "cuFuncGetName" (name: *mut *const c_char, function: Function) unsafe;
    kernel_get_attribute: "cuKernelGetAttribute" (value: *mut i32, attribute: u32, kernel: Kernel, device: Device) unsafe;
    kernel_get_name: "cuKernelGetName" (name: *mut *const c_char, kernel: Kernel) unsafe;
    library_get_kernel_count: "cuLibraryGetKernelCount" (count: *mut u32, library: Library) unsafe;
    stream_is_capturing: "cuStreamIsCapturing" (stream: Stream, status: *mut CUstreamCaptureStatus) unsafe;
    stream_get_ctx: "cuStreamGetCtx" (stream: Stream, ctx: *mut Ctx) unsafe;
}

/// Asks the driver by `ask`, which names one of its functions and the place of the answer, `value` before. `None`: the driver
/// lacks the function, or it refuses.
#[inline(always)]
pub fn answer<T>(mut value: T, ask: impl FnOnce(&mut T) -> Option<CUresult>) -> Option<T> {
    (inside(|| ask(&mut value)) == Some(CUDA_SUCCESS)).then_some(value)
}

static DRIVER: OnceRef<Driver> = OnceRef::new();

/// The driver's functions; all `None` while no libcuda is in the process.
pub fn driver() -> &'static Driver {
    DRIVER.get().unwrap_or_else(resolve)
}

#[cold]
fn resolve() -> &'static Driver {
    let found = pointers::find(Home::Cuda).then(|| Home::Cuda.object()).flatten();
    let Some(library) = found else { return &Driver::NONE };
    // Of racing threads one table is used; the others are leaked, since they may be in use.
    let fresh = Box::leak(Box::new(Driver::of(&library)));
    let _ = DRIVER.set(fresh);
    fresh
}
