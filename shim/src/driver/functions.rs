//! The real functions of the driver that the recorder calls.
//!
//! `None` where the driver is too old to have it. A thread that is not inside a hook raises the
//! guard around them with [`crate::driver::depth::inside`].

use super::api::Home;
use super::cuda::*;
use crate::driver::pointers;
use core::ffi::{c_char, c_void};
use once_cell::race::OnceRef;

macro_rules! driver {
    (
        safe { $( $safe:ident: $named:literal ( $($given:ident: $of:ty),* ); )* }
        unsafe { $( $field:ident: $symbol:literal ( $($arg:ident: $ty:ty),* ); )* }
    ) => {
        #[derive(Default)]
        pub struct Driver {
            $( #[doc = $named] pub $safe: Option<extern "C-unwind" fn($($given: $of),*) -> CUresult>, )*
            $( #[doc = $symbol] pub $field: Option<unsafe extern "C-unwind" fn($($arg: $ty),*) -> CUresult>, )*
        }

        impl Driver {
            const NONE: Driver = Driver { $( $safe: None, )* $( $field: None, )* };

            fn resolve() -> Driver {
                Driver {
                    $(
                        $safe: pointers::by_name(Home::Cuda, $named)
                            // SAFETY: the driver's function of that name, with the type that it
                            // documents. It checks every number, and writes only where references lead.
                            .map(|address| unsafe { core::mem::transmute(address) }),
                    )*
                    $(
                        $field: pointers::by_name(Home::Cuda, $symbol)
                            // SAFETY: the driver's function of that name, with the type that it documents.
                            .map(|address| unsafe { core::mem::transmute(address) }),
                    )*
                }
            }
        }
    };
}

driver! {
    // Sound with any arguments of these types.
    safe {
        ctx_get_current: "cuCtxGetCurrent" (ctx: &mut Ctx);
        ctx_get_device: "cuCtxGetDevice" (device: &mut Device);
        ctx_get_limit: "cuCtxGetLimit" (value: &mut usize, limit: CUlimit);
        ctx_pop_current: "cuCtxPopCurrent_v2" (ctx: &mut Ctx);
        primary_ctx_get_state: "cuDevicePrimaryCtxGetState" (device: Device, flags: &mut u32, active: &mut i32);
        driver_get_version: "cuDriverGetVersion" (version: &mut i32);
        device_get: "cuDeviceGet" (device: &mut Device, ordinal: i32);
        device_get_count: "cuDeviceGetCount" (count: &mut i32);
        device_get_uuid: "cuDeviceGetUuid" (uuid: &mut CUuuid, device: Device);
        device_get_uuid_v2: "cuDeviceGetUuid_v2" (uuid: &mut CUuuid, device: Device);
        device_get_attribute: "cuDeviceGetAttribute" (value: &mut i32, attribute: u32, device: Device);
        device_total_mem: "cuDeviceTotalMem_v2" (bytes: &mut usize, device: Device);
        device_get_default_mem_pool: "cuDeviceGetDefaultMemPool" (pool: &mut Pool, device: Device);
        device_get_mem_pool: "cuDeviceGetMemPool" (pool: &mut Pool, device: Device);
        device_get_graph_mem_attribute: "cuDeviceGetGraphMemAttribute" (device: Device, attribute: CUgraphMem_attribute, value: &mut u64);
        mem_get_info: "cuMemGetInfo_v2" (free: &mut usize, total: &mut usize);
        mem_get_address_range: "cuMemGetAddressRange_v2" (base: &mut DevicePtr, size: &mut usize, ptr: DevicePtr);
    }
    // Handles must be alive, and pointers lead to what the function or the attribute documents.
    unsafe {
        ctx_get_id: "cuCtxGetId" (ctx: Ctx, id: *mut u64);
        ctx_push_current: "cuCtxPushCurrent_v2" (ctx: Ctx);
        ctx_from_green: "cuCtxFromGreenCtx" (ctx: *mut Ctx, green: GreenCtx);
        device_get_name: "cuDeviceGetName" (name: *mut c_char, length: i32, device: Device);
        device_get_pci_bus_id: "cuDeviceGetPCIBusId" (id: *mut c_char, length: i32, device: Device);
        mem_pool_get_attribute: "cuMemPoolGetAttribute" (pool: Pool, attribute: CUmemPool_attribute, value: *mut c_void);
        mem_get_allocation_properties_from_handle: "cuMemGetAllocationPropertiesFromHandle" (prop: *mut CUmemAllocationProp, handle: MemHandle);
        array_destroy: "cuArrayDestroy" (array: Array);
        mipmapped_array_destroy: "cuMipmappedArrayDestroy" (array: MArray);
        graph_get_nodes: "cuGraphGetNodes" (graph: Graph, nodes: *mut Node, count: *mut usize);
        graph_node_get_type: "cuGraphNodeGetType" (node: Node, kind: *mut u32);
        graph_mem_alloc_node_get_params: "cuGraphMemAllocNodeGetParams" (node: Node, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
        graph_mem_free_node_get_params: "cuGraphMemFreeNodeGetParams" (node: Node, address: *mut DevicePtr);
        graph_child_graph_node_get_graph: "cuGraphChildGraphNodeGetGraph" (node: Node, graph: *mut Graph);
        mem_free: "cuMemFree_v2" (ptr: DevicePtr);
        mem_release: "cuMemRelease" (handle: MemHandle);
        pointer_get_attribute: "cuPointerGetAttribute" (data: *mut c_void, attribute: CUpointer_attribute, ptr: DevicePtr);
        func_get_attribute: "cuFuncGetAttribute" (value: *mut i32, attribute: u32, function: Function);
        func_get_name: "cuFuncGetName" (name: *mut *const c_char, function: Function);
        kernel_get_attribute: "cuKernelGetAttribute" (value: *mut i32, attribute: u32, kernel: Kernel, device: Device);
        kernel_get_name: "cuKernelGetName" (name: *mut *const c_char, kernel: Kernel);
        library_get_kernel_count: "cuLibraryGetKernelCount" (count: *mut u32, library: Library);
        stream_is_capturing: "cuStreamIsCapturing" (stream: Stream, status: *mut CUstreamCaptureStatus);
        stream_is_capturing_ptsz: "cuStreamIsCapturing_ptsz" (stream: Stream, status: *mut CUstreamCaptureStatus);
        stream_get_ctx: "cuStreamGetCtx" (stream: Stream, ctx: *mut Ctx);
        stream_get_ctx_ptsz: "cuStreamGetCtx_ptsz" (stream: Stream, ctx: *mut Ctx);
    }
}

static DRIVER: OnceRef<Driver> = OnceRef::new();

/// The driver's functions; all `None` while no libcuda is in the process.
pub fn driver() -> &'static Driver {
    DRIVER.get().unwrap_or_else(resolve)
}

#[cold]
fn resolve() -> &'static Driver {
    static NONE: Driver = Driver::NONE;
    if !pointers::find(Home::Cuda) {
        return &NONE;
    }
    // Of racing threads one table is used; the others are leaked, since they may be in use.
    let fresh = Box::leak(Box::new(Driver::resolve()));
    let _ = DRIVER.set(fresh);
    fresh
}
