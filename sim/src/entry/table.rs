//! The list of the driver's functions: kind, the CUDA version that brought it, name,
//! arguments, what does it. `early` ones need no cuInit; `ptsz` and `ptds` ones have a twin under
//! that suffix for the per-thread default stream. Only cuGetProcAddress, which looks functions up in
//! this list, is not in it (`resolve`).

use crate::abi::*;
use crate::entry::export::{entries, export, table};
use crate::{
    array, capture, context, copy, device_calls, driver, graph, heap, host, ipc, launch, managed,
    module, pool, stream, vmm,
};
use std::ffi::{c_char, c_void};

#[rustfmt::skip]
table! {
    // Start, version, tables.
    early 2000 cuInit(flags: u32) = driver::init;
    early 2020 cuDriverGetVersion(out: Out<i32>) = device_calls::driver_version;
    early 3000 cuGetExportTable(out: Out<In<c_void>>, id: In<Uuid>) = device_calls::export_table;
    // Devices.
    call 2000 cuDeviceGet(out: Out<i32>, ordinal: i32) = device_calls::get;
    call 2000 cuDeviceGetCount(out: Out<i32>) = device_calls::count;
    call 2000 cuDeviceGetName(out: Out<c_char>, length: i32, device: i32) = device_calls::name;
    call 9020 cuDeviceGetUuid(out: Out<Uuid>, device: i32) = device_calls::uuid;
    call 11040 cuDeviceGetUuid_v2(out: Out<Uuid>, device: i32) = device_calls::uuid;
    call 2000 cuDeviceTotalMem(out: Out<u32>, device: i32) = device_calls::total_v1;
    call 3020 cuDeviceTotalMem_v2(out: Out<usize>, device: i32) = device_calls::total;
    call 2000 cuDeviceGetAttribute(out: Out<i32>, attribute: i32, device: i32) = device_calls::attribute;
    // Contexts.
    call 7000 cuDevicePrimaryCtxRetain(out: Out<Handle>, device: i32) = context::primary_retain;
    call 11000 cuDevicePrimaryCtxRelease_v2(device: i32) = context::primary_release;
    call 11000 cuDevicePrimaryCtxReset_v2(device: i32) = context::primary_reset;
    call 7000 cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) = context::primary_get_state;
    call 3020 cuCtxCreate_v2(out: Out<Handle>, flags: u32, device: i32) = context::create;
    call 4000 cuCtxDestroy_v2(context: Handle) = context::destroy;
    call 4000 cuCtxSetCurrent(context: Handle) = context::set_current;
    call 4000 cuCtxGetCurrent(out: Out<Handle>) = context::get_current;
    call 4000 cuCtxPushCurrent_v2(context: Handle) = context::push_current;
    call 4000 cuCtxPopCurrent_v2(out: Out<Handle>) = context::pop_current;
    call 2000 cuCtxGetDevice(out: Out<i32>) = context::get_device;
    call 2000 cuCtxSynchronize() = context::synchronize;
    call 13000 cuCtxSynchronize_v2(context: Handle) = context::synchronize_v2;
    call 3010 cuCtxGetLimit(out: Out<usize>, limit: i32) = context::get_limit;
    call 3010 cuCtxSetLimit(limit: i32, value: usize) = context::set_limit;
    call 5050 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) = context::priority_range;
    // Device memory.
    call 2000 cuMemAlloc() = device_calls::unsupported;
    call 3020 cuMemAlloc_v2(out: Out<Pointer>, size: usize) = heap::alloc;
    call 3020 cuMemAllocPitch_v2(out: Out<Pointer>, pitch: Out<usize>, width: usize, height: usize, element: u32) = heap::alloc_pitch;
    call 6000 cuMemAllocManaged(out: Out<Pointer>, size: usize, flags: u32) = managed::alloc;
    call 2000 cuMemFree() = device_calls::unsupported;
    call 3020 cuMemFree_v2(pointer: Pointer) = heap::free;
    call 2000 cuMemGetInfo(free: Out<u32>, total: Out<u32>) = heap::get_info_v1;
    call 3020 cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) = heap::get_info;
    call 3020 cuMemGetAddressRange_v2(base: Out<Pointer>, size: Out<usize>, pointer: Pointer) = heap::address_range;
    call 4000 cuPointerGetAttribute(data: Out<c_void>, attribute: i32, pointer: Pointer) = heap::pointer_attribute;
    // Host memory.
    call 3020 cuMemAllocHost_v2(out: Out<Handle>, size: usize) = host::alloc;
    call 2020 cuMemHostAlloc(out: Out<Handle>, size: usize, flags: u32) = host::alloc_flags;
    call 2000 cuMemFreeHost(pointer: Handle) = host::free;
    call 6050 cuMemHostRegister_v2(pointer: Handle, size: usize, flags: u32) = host::register;
    call 4000 cuMemHostUnregister(pointer: Handle) = host::unregister;
    // Stream-ordered memory and pools.
    ptsz 11020 cuMemAllocAsync(out: Out<Pointer>, size: usize, stream: StreamArg) = pool::alloc_async;
    ptsz 11020 cuMemAllocFromPoolAsync(out: Out<Pointer>, size: usize, pool: Handle, stream: StreamArg) = pool::alloc_from_pool_async;
    ptsz 11020 cuMemFreeAsync(pointer: Pointer, stream: StreamArg) = pool::free_async;
    call 11020 cuMemPoolCreate(out: Out<Handle>, props: In<PoolProps>) = pool::create;
    call 11020 cuMemPoolDestroy(pool: Handle) = pool::destroy;
    call 11020 cuMemPoolTrimTo(pool: Handle, keep: usize) = pool::trim_to;
    call 11020 cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: Out<c_void>) = pool::set_attribute;
    call 11020 cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: Out<c_void>) = pool::get_attribute;
    call 11020 cuDeviceGetDefaultMemPool(out: Out<Handle>, device: i32) = pool::of_device;
    call 11020 cuDeviceGetMemPool(out: Out<Handle>, device: i32) = pool::of_device;
    // Virtual memory management.
    call 10020 cuMemCreate(out: Out<u64>, size: usize, prop: In<AllocationProp>, flags: u64) = vmm::create;
    call 10020 cuMemRelease(handle: u64) = vmm::release;
    call 11000 cuMemRetainAllocationHandle(out: Out<u64>, address: Handle) = vmm::retain;
    call 10020 cuMemAddressReserve(out: Out<Pointer>, size: usize, align: usize, wanted: Pointer, flags: u64) = vmm::address_reserve;
    call 10020 cuMemAddressFree(pointer: Pointer, size: usize) = vmm::address_free;
    call 10020 cuMemMap(pointer: Pointer, size: usize, offset: usize, handle: u64, flags: u64) = vmm::map;
    call 10020 cuMemUnmap(pointer: Pointer, size: usize) = vmm::unmap;
    call 10020 cuMemSetAccess(pointer: Pointer, size: usize, list: In<AccessDesc>, count: usize) = vmm::set_access;
    call 10020 cuMemGetAllocationGranularity(out: Out<usize>, prop: In<AllocationProp>, option: i32) = vmm::granularity;
    call 10020 cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProp>, handle: u64) = vmm::properties;
    call 12010 cuMulticastCreate(out: Out<u64>, prop: In<MulticastProp>) = vmm::multicast_create;
    call 12010 cuMulticastAddDevice(handle: u64, device: i32) = vmm::multicast_add_device;
    call 12010 cuMulticastBindMem(handle: u64, at: usize, member: u64, offset: usize, size: usize, flags: u64) = vmm::multicast_bind;
    call 12010 cuMulticastUnbind(handle: u64, device: i32, at: usize, size: usize) = vmm::multicast_unbind;
    // Between processes.
    call 4010 cuIpcGetMemHandle(out: Out<Sealed>, pointer: Pointer) = ipc::get_handle;
    call 11000 cuIpcOpenMemHandle_v2(out: Out<Pointer>, handle: Sealed, flags: u32) = ipc::open_handle;
    call 4010 cuIpcCloseMemHandle(pointer: Pointer) = ipc::close_handle;
    call 10020 cuMemExportToShareableHandle(out: Out<c_void>, handle: u64, kind: i32, flags: u64) = ipc::export;
    call 10020 cuMemImportFromShareableHandle(out: Out<u64>, from: Handle, kind: i32) = ipc::import_shareable;
    call 11020 cuMemPoolExportToShareableHandle(out: Out<c_void>, pool: Handle, kind: i32, flags: u64) = ipc::export_pool;
    call 11020 cuMemPoolImportFromShareableHandle(out: Out<Handle>, from: Handle, kind: i32, flags: u64) = ipc::import_pool;
    call 11020 cuMemPoolExportPointer(out: Out<Sealed>, pointer: Pointer) = ipc::export_pointer;
    call 11020 cuMemPoolImportPointer(out: Out<Pointer>, pool: Handle, data: Out<Sealed>) = ipc::import_pointer;
    // Arrays.
    call 3020 cuArrayCreate_v2(out: Out<Handle>, desc: In<ArrayDesc>) = array::create;
    call 3020 cuArray3DCreate_v2(out: Out<Handle>, desc: In<Array3dDesc>) = array::create_3d;
    call 2000 cuArrayDestroy(array: Handle) = array::destroy;
    call 5000 cuMipmappedArrayCreate(out: Out<Handle>, desc: In<Array3dDesc>, levels: u32) = array::mipmapped_create;
    call 5000 cuMipmappedArrayDestroy(array: Handle) = array::destroy;
    // Copies.
    ptsz 4000 cuMemcpyAsync(to: Pointer, from: Pointer, size: usize, stream: StreamArg) = copy::any_async;
    ptds 3020 cuMemcpyHtoD_v2(to: Pointer, from: In<u8>, size: usize) = copy::host_to_device;
    ptds 3020 cuMemcpyDtoH_v2(to: Out<u8>, from: Pointer, size: usize) = copy::device_to_host;
    ptsz 3020 cuMemcpyHtoDAsync_v2(to: Pointer, from: Pointer, size: usize, stream: StreamArg) = copy::any_async;
    ptsz 3020 cuMemcpyDtoHAsync_v2(to: Pointer, from: Pointer, size: usize, stream: StreamArg) = copy::any_async;
    ptds 3020 cuMemsetD8_v2(at: Pointer, value: u8, count: usize) = copy::fill8;
    ptds 3020 cuMemsetD32_v2(at: Pointer, value: u32, count: usize) = copy::fill32;
    ptsz 3020 cuMemsetD8Async(at: Pointer, value: u8, count: usize, stream: StreamArg) = copy::fill8_async;
    // Streams and events.
    call 2000 cuStreamCreate(out: Out<Handle>, flags: u32) = stream::create;
    call 5050 cuStreamCreateWithPriority(out: Out<Handle>, flags: u32, priority: i32) = stream::create_with_priority;
    call 4000 cuStreamDestroy_v2(stream: StreamArg) = stream::destroy;
    ptsz 2000 cuStreamSynchronize(stream: StreamArg) = stream::synchronize;
    ptsz 3020 cuStreamWaitEvent(stream: StreamArg, event: Handle, flags: u32) = stream::wait_event;
    ptsz 5000 cuStreamAddCallback(stream: StreamArg, function: Option<StreamCallback>, data: Handle, flags: u32) = stream::callback;
    ptsz 10000 cuLaunchHostFunc(stream: StreamArg, function: Option<HostFunction>, data: Handle) = stream::host_function;
    ptsz 9020 cuStreamGetCtx(stream: StreamArg, out: Out<Handle>) = stream::get_ctx;
    call 2000 cuEventCreate(out: Out<Handle>, flags: u32) = stream::event_create;
    call 4000 cuEventDestroy_v2(event: Handle) = stream::event_destroy;
    ptsz 2000 cuEventRecord(event: Handle, stream: StreamArg) = stream::event_record;
    call 2000 cuEventSynchronize(event: Handle) = stream::event_synchronize;
    // Capture.
    ptsz 10010 cuStreamBeginCapture_v2(stream: StreamArg, mode: i32) = capture::begin;
    ptsz 13030 cuStreamBeginRecaptureToGraph(stream: StreamArg, mode: i32, graph: Handle, changed: Handle, data: Handle) = capture::begin_recapture;
    ptsz 10000 cuStreamEndCapture(stream: StreamArg, out: Out<Handle>) = capture::end;
    ptsz 10000 cuStreamIsCapturing(stream: StreamArg, out: Out<i32>) = capture::is_capturing;
    ptsz 11030 cuStreamGetCaptureInfo_v2(stream: StreamArg, out: Out<i32>, id: Out<u64>, graph: Out<Handle>, list: Out<In<Handle>>, count: Out<usize>) = capture::info_v2;
    // Graphs.
    call 10000 cuGraphCreate(out: Out<Handle>, flags: u32) = graph::create;
    call 10000 cuGraphDestroy(graph: Handle) = graph::destroy;
    call 10000 cuGraphAddEmptyNode(out: Out<Handle>, graph: Handle, list: In<Handle>, count: usize) = graph::add_empty;
    call 10000 cuGraphAddHostNode(out: Out<Handle>, graph: Handle, list: In<Handle>, count: usize, params: In<HostNodeParams>) = graph::add_host;
    call 11040 cuGraphAddMemAllocNode(out: Out<Handle>, graph: Handle, list: In<Handle>, count: usize, params: Out<AllocNodeParams>) = graph::add_alloc;
    call 11040 cuGraphAddMemFreeNode(out: Out<Handle>, graph: Handle, list: In<Handle>, count: usize, pointer: Pointer) = graph::add_free;
    call 12020 cuGraphAddNode(out: Out<Handle>, graph: Handle, list: In<Handle>, count: usize, params: Out<GraphNodeParams>) = graph::add_any;
    call 12030 cuGraphAddNode_v2(out: Out<Handle>, graph: Handle, list: In<Handle>, data: In<u8>, count: usize, params: Out<GraphNodeParams>) = graph::add_any_v2;
    call 13040 cuGraphAddNode_v3(out: Out<Handle>, graph: Handle, list: In<Handle>, data: In<u8>, count: usize, params: Out<GraphNodeParams>) = graph::add_any_v2;
    call 10000 cuGraphNodeGetType(node: Handle, out: Out<i32>) = graph::node_type;
    call 11040 cuGraphMemAllocNodeGetParams(node: Handle, out: Out<AllocNodeParams>) = graph::alloc_params;
    call 11040 cuGraphMemFreeNodeGetParams(node: Handle, out: Out<Pointer>) = graph::free_params;
    call 10000 cuGraphGetNodes(graph: Handle, out: Out<Handle>, count: Out<usize>) = graph::get_nodes;
    call 11040 cuGraphInstantiateWithFlags(out: Out<Handle>, graph: Handle, flags: u64) = launch::instantiate_flags;
    ptsz 11010 cuGraphUpload(exec: Handle, stream: StreamArg) = launch::upload;
    ptsz 10000 cuGraphLaunch(exec: Handle, stream: StreamArg) = launch::launch;
    call 10000 cuGraphExecDestroy(exec: Handle) = launch::exec_destroy;
    call 12000 cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: Out<[u64; 3]>) = launch::exec_update;
    call 11040 cuDeviceGraphMemTrim(device: i32) = launch::trim;
    call 11040 cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, out: Out<c_void>) = launch::get_attribute;
    // Code.
    call 2000 cuModuleLoadData(out: Out<Handle>, image: In<c_void>) = module::load_data;
    call 2000 cuModuleUnload(module: Handle) = module::unload;
    call 2000 cuModuleGetFunction(out: Out<Handle>, module: Handle, name: Name) = module::get_function;
    call 12000 cuLibraryLoadData(out: Out<Handle>, image: In<c_void>, options: Out<i32>, values: Out<Handle>, count: u32, more: Out<i32>, more_values: Out<Handle>, more_count: u32) = module::library_load_data;
    call 12000 cuLibraryGetKernel(out: Out<Handle>, library: Handle, name: Name) = module::get_function;
    call 12040 cuLibraryGetKernelCount(out: Out<u32>, library: Handle) = module::count;
    call 12000 cuKernelGetFunction(out: Out<Handle>, kernel: Handle) = module::kernel_function;
    call 12030 cuKernelGetName(out: Out<Name>, kernel: Handle) = module::entry_name;
    call 12000 cuKernelGetAttribute(out: Out<i32>, attribute: i32, kernel: Handle, device: i32) = module::kernel_attribute;
    call 2020 cuFuncGetAttribute(out: Out<i32>, attribute: i32, function: Handle) = module::attribute;
    call 12030 cuFuncGetName(out: Out<Name>, function: Handle) = module::entry_name;
    ptsz 4000 cuLaunchKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: StreamArg, params: Out<Handle>, extra: Out<Handle>) = module::launch;
    ptsz 11060 cuLaunchKernelEx(config: In<LaunchConfig>, function: Handle, params: Out<Handle>, extra: Out<Handle>) = module::launch_ex;
}
