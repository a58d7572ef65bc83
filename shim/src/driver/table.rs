//! The table of all interposed entry points.
//!
//! A line is
//!
//! ```text
//! name since (arguments) => hook;
//! ```
//!
//! * `name`: the exported symbol, exactly.
//! * `since`: the version that asks cuGetProcAddress for exactly this variant (3.2 is 3020); 0 for
//!   NVML, which has no such function. PyTorch's functions have none either: they are reached by
//!   dynamic linking only (see [`crate::hooks::families::torch_calls`]).
//! * `hook`: what happens at the call. `pass` forwards it to the driver and does nothing else; `note`
//!   also records once that it was used; `proc_address::..` handles cuGetProcAddress; `launch::..` is
//!   called for the first launch of a function only, and others go directly to the driver; anything
//!   else is a function in [`crate::hooks::families`], shaped as [`crate::hooks::call`] says.
//!
//! It generates the exports, the real pointers, the map from a driver's pointer to its hook, the list
//! that `doctor` prints and docs/COVERAGE.md. Adding an API function is one line.

/// Passes the whole table to the macro named by the argument.
macro_rules! table {
    ($with:ident) => {
        $with! {
            "A. Takes device memory"
            Create in Cuda {
                cuMemAlloc_v2 3020 (dptr: Out<u64>, bytesize: usize) => alloc::mem_alloc;
                cuMemAlloc 2000 (dptr: Out<u32>, bytesize: u32) => alloc::mem_alloc_v1;
                cuMemAllocPitch_v2 3020 (dptr: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) => alloc::mem_alloc_pitch;
                cuMemAllocPitch 2000 (dptr: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) => alloc::mem_alloc_pitch_v1;
                cuMemAllocManaged 6000 (dptr: Out<u64>, bytesize: usize, flags: u32) => alloc::mem_alloc_managed;
                cuMemAllocAsync 11020 (dptr: Out<u64>, bytesize: usize, stream: Stream) => ordered::alloc_async;
                cuMemAllocAsync_ptsz 11020 (dptr: Out<u64>, bytesize: usize, stream: Stream) => ordered::alloc_async_ptsz;
                cuMemAllocFromPoolAsync 11020 (dptr: Out<u64>, bytesize: usize, pool: Pool, stream: Stream) => ordered::alloc_from_pool_async;
                cuMemAllocFromPoolAsync_ptsz 11020 (dptr: Out<u64>, bytesize: usize, pool: Pool, stream: Stream) => ordered::alloc_from_pool_async;
                cuMemCreate 10020 (handle: Out<u64>, size: usize, prop: In<CUmemAllocationProp>, flags: u64) => vmm::create;
                cuArrayCreate_v2 3020 (array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) => array::create_2d;
                cuArrayCreate 2000 (array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR_v1>) => array::create_2d_v1;
                cuArray3DCreate_v2 3020 (array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) => array::create_3d;
                cuArray3DCreate 2000 (array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR_v1>) => array::create_3d_v1;
                cuMipmappedArrayCreate 5000 (array: Out<MArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) => array::create_mipmapped;
                cuMulticastCreate 12010 (handle: Out<u64>, prop: In<CUmulticastObjectProp>) => multicast::create;
            }
            "B. Pins host memory"
            Host in Cuda {
                cuMemAllocHost_v2 3020 (pp: Out<*mut c_void>, bytesize: usize) => host::alloc_host;
                cuMemAllocHost 2000 (pp: Out<*mut c_void>, bytesize: u32) => host::alloc_host_v1;
                cuMemHostAlloc 2020 (pp: Out<*mut c_void>, bytesize: usize, flags: u32) => host::host_alloc;
                cuMemHostRegister_v2 6050 (p: *mut c_void, bytesize: usize, flags: u32) => host::host_register;
                cuMemHostRegister 4000 (p: *mut c_void, bytesize: usize, flags: u32) => host::host_register;
                cuMemFreeHost 2000 (p: *mut c_void) => host::free_host;
                cuMemHostUnregister 4000 (p: *mut c_void) => host::free_host;
            }
            "C. Frees"
            Free in Cuda {
                cuMemFree_v2 3020 (dptr: u64) => alloc::mem_free;
                cuMemFree 2000 (dptr: u32) => alloc::mem_free_v1;
                cuMemFreeAsync 11020 (dptr: u64, stream: Stream) => ordered::free_async;
                cuMemFreeAsync_ptsz 11020 (dptr: u64, stream: Stream) => ordered::free_async_ptsz;
                cuMemRelease 10020 (handle: u64) => vmm::release;
                cuMemUnmap 10020 (ptr: u64, size: usize) => vmm::unmap;
                cuArrayDestroy 2000 (array: Array) => array::destroy;
                cuMipmappedArrayDestroy 5000 (array: MArray) => array::destroy;
            }
            "D. Virtual memory"
            Virtual in Cuda {
                cuMemAddressReserve 10020 (ptr: Out<u64>, size: usize, alignment: usize, addr: u64, flags: u64) => reserve::address_reserve;
                cuMemAddressFree 10020 (ptr: u64, size: usize) => reserve::address_free;
                cuMemMap 10020 (ptr: u64, size: usize, offset: usize, handle: u64, flags: u64) => vmm::map;
                cuMemMapArrayAsync 11010 (list: In<CUarrayMapInfo>, count: u32, stream: Stream) => sparse::map_array_async;
                cuMemMapArrayAsync_ptsz 11010 (list: In<CUarrayMapInfo>, count: u32, stream: Stream) => sparse::map_array_async;
                cuMemRetainAllocationHandle 11000 (handle: Out<u64>, addr: *mut c_void) => vmm::retain;
                cuMemGetAllocationGranularity 10020 (granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) => pass;
                cuMemGetAllocationPropertiesFromHandle 10020 (prop: *mut CUmemAllocationProp, handle: u64) => pass;
                cuMulticastBindMem 12010 (mc: u64, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64) => multicast::bind_mem;
                cuMulticastBindMem_v2 13010 (mc: u64, dev: i32, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64) => multicast::bind_mem_v2;
                cuMulticastBindAddr 12010 (mc: u64, mc_offset: usize, ptr: u64, size: usize, flags: u64) => multicast::bind_addr;
                cuMulticastBindAddr_v2 13010 (mc: u64, dev: i32, mc_offset: usize, ptr: u64, size: usize, flags: u64) => multicast::bind_addr_v2;
                cuMulticastUnbind 12010 (mc: u64, dev: i32, mc_offset: usize, size: usize) => multicast::unbind;
            }
            "E. Imports and exports"
            Share in Cuda {
                cuIpcGetMemHandle 4010 (handle: Out<CUipcMemHandle>, dptr: u64) => ipc::share;
                cuIpcOpenMemHandle_v2 11000 (dptr: Out<u64>, handle: CUipcMemHandle, flags: u32) => ipc::open;
                cuIpcOpenMemHandle 4010 (dptr: Out<u64>, handle: CUipcMemHandle, flags: u32) => ipc::open;
                cuIpcCloseMemHandle 4010 (dptr: u64) => ipc::close;
                cuMemExportToShareableHandle 10020 (shareable: *mut c_void, handle: u64, kind: CUmemAllocationHandleType, flags: u64) => pass;
                cuMemImportFromShareableHandle 10020 (handle: Out<u64>, os_handle: *mut c_void, kind: CUmemAllocationHandleType) => vmm::import;
                cuMemPoolExportToShareableHandle 11020 (shareable: *mut c_void, pool: Pool, kind: CUmemAllocationHandleType, flags: u64) => pass;
                cuMemPoolImportFromShareableHandle 11020 (pool: *mut Pool, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: u64) => pass;
                cuMemPoolExportPointer 11020 (data: *mut CUmemPoolPtrExportData, ptr: u64) => pass;
                cuMemPoolImportPointer 11020 (ptr: Out<u64>, pool: Pool, data: Out<CUmemPoolPtrExportData>) => ipc::pool_import_pointer;
                cuImportExternalMemory 10000 (memory: *mut ExtMem, descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) => pass;
                cuExternalMemoryGetMappedBuffer 10000 (dptr: Out<u64>, memory: ExtMem, descriptor: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>) => ipc::external_buffer;
                cuExternalMemoryGetMappedMipmappedArray 10000 (array: Out<MArray>, memory: ExtMem, descriptor: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>) => ipc::external_mipmap;
                cuDestroyExternalMemory 10000 (memory: ExtMem) => pass;
                cuGraphicsMapResources 3000 (count: u32, resources: *mut GfxRes, stream: Stream) => pass;
                cuGraphicsMapResources_ptsz 7000 (count: u32, resources: *mut GfxRes, stream: Stream) => pass;
                cuGraphicsUnmapResources 3000 (count: u32, resources: In<GfxRes>, stream: Stream) => graphics::unmap;
                cuGraphicsUnmapResources_ptsz 7000 (count: u32, resources: In<GfxRes>, stream: Stream) => graphics::unmap;
                cuGraphicsResourceGetMappedPointer_v2 3020 (dptr: Out<u64>, size: Out<usize>, resource: GfxRes) => graphics::pointer;
                cuGraphicsUnregisterResource 3000 (resource: GfxRes) => graphics::unregister;
                cuMemGetHandleForAddressRange 11070 (handle: *mut c_void, dptr: u64, size: usize, kind: CUmemRangeHandleType, flags: u64) => pass;
            }
            "F. Pools"
            Pools in Cuda {
                cuMemPoolCreate 11020 (pool: Out<Pool>, props: In<CUmemPoolProps>) => pool::create;
                cuMemPoolDestroy 11020 (pool: Pool) => pool::destroy;
                cuMemPoolTrimTo 11020 (pool: Pool, keep: usize) => pool::trim;
                cuMemPoolSetAttribute 11020 (pool: Pool, attribute: CUmemPool_attribute, value: *mut c_void) => pool::set_attribute;
                cuMemPoolGetAttribute 11020 (pool: Pool, attribute: CUmemPool_attribute, value: *mut c_void) => pass;
                cuDeviceGetDefaultMemPool 11020 (pool: Out<Pool>, dev: i32) => pool::get_of_device;
                cuDeviceGetMemPool 11020 (pool: Out<Pool>, dev: i32) => pool::get_of_device;
                cuDeviceSetMemPool 11020 (dev: i32, pool: Pool) => pool::set_of_device;
                cuMemGetDefaultMemPool 13000 (pool: Out<Pool>, location: In<CUmemLocation>, kind: CUmemAllocationType) => pool::get_of_location;
                cuMemGetMemPool 13000 (pool: Out<Pool>, location: In<CUmemLocation>, kind: CUmemAllocationType) => pool::get_of_location;
                cuMemSetMemPool 13000 (location: In<CUmemLocation>, kind: CUmemAllocationType, pool: Pool) => pool::set_of_location;
            }
            "G. Graph memory"
            Graphs in Cuda {
                cuGraphAddMemAllocNode 11040 (node: Out<Node>, graph: Graph, dependencies: In<Node>, count: usize, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) => node::add_mem_alloc_node;
                cuGraphAddMemFreeNode 11040 (node: *mut Node, graph: Graph, dependencies: *const Node, count: usize, dptr: u64) => pass;
                cuGraphAddNode 12020 (node: Out<Node>, graph: Graph, dependencies: In<Node>, count: usize, params: Out<CUgraphNodeParams>) => node::add_node;
                cuGraphAddNode_v2 12030 (node: Out<Node>, graph: Graph, dependencies: In<Node>, edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) => node::add_node_with_edges;
                cuGraphAddNode_v3 13040 (node: Out<Node>, graph: Graph, dependencies: In<Node>, edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>) => node::add_node_with_edges;
                cuGraphInstantiate 10000 (exec: Out<GraphExec>, graph: Graph, error: Out<Node>, log: Out<c_char>, size: usize) => graph::instantiate_v2;
                cuGraphInstantiate_v2 11000 (exec: Out<GraphExec>, graph: Graph, error: Out<Node>, log: Out<c_char>, size: usize) => graph::instantiate_v2;
                cuGraphInstantiateWithFlags 11040 (exec: Out<GraphExec>, graph: Graph, flags: u64) => graph::instantiate_with_flags;
                cuGraphInstantiateWithParams 12000 (exec: Out<GraphExec>, graph: Graph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>) => graph::instantiate_with_params;
                cuGraphInstantiateWithParams_ptsz 12000 (exec: Out<GraphExec>, graph: Graph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>) => graph::instantiate_with_params;
                cuGraphUpload 11010 (exec: GraphExec, stream: Stream) => graph::upload;
                cuGraphUpload_ptsz 11010 (exec: GraphExec, stream: Stream) => graph::upload;
                cuGraphLaunch 10000 (exec: GraphExec, stream: Stream) => graph::launch;
                cuGraphLaunch_ptsz 10000 (exec: GraphExec, stream: Stream) => graph::launch;
                cuGraphExecUpdate 10020 (exec: GraphExec, graph: Graph, error: Out<Node>, result: Out<i32>) => graph::exec_update;
                cuGraphExecUpdate_v2 12000 (exec: GraphExec, graph: Graph, info: *mut c_void) => graph::exec_update_v2;
                cuGraphExecKernelNodeSetParams 10010 (exec: GraphExec, node: Node, params: *mut c_void) => graph::set_params;
                cuGraphExecKernelNodeSetParams_v2 12000 (exec: GraphExec, node: Node, params: *mut c_void) => graph::set_params;
                cuGraphExecMemcpyNodeSetParams 10020 (exec: GraphExec, node: Node, params: *mut c_void, ctx: Ctx) => graph::set_params_in_context;
                cuGraphExecMemsetNodeSetParams 10020 (exec: GraphExec, node: Node, params: *mut c_void, ctx: Ctx) => graph::set_params_in_context;
                cuGraphExecHostNodeSetParams 10020 (exec: GraphExec, node: Node, params: *mut c_void) => graph::set_params;
                cuGraphExecChildGraphNodeSetParams 11010 (exec: GraphExec, node: Node, child: *mut c_void) => graph::set_params;
                cuGraphExecBatchMemOpNodeSetParams 11070 (exec: GraphExec, node: Node, params: *mut c_void) => graph::set_params;
                cuGraphExecNodeSetParams 12020 (exec: GraphExec, node: Node, params: *mut c_void) => graph::set_params;
                cuGraphExecDestroy 10000 (exec: GraphExec) => graph::exec_destroy;
                cuGraphDestroy 10000 (graph: Graph) => pass;
                cuDeviceGraphMemTrim 11040 (device: i32) => graph::trim;
                cuDeviceGetGraphMemAttribute 11040 (device: i32, attribute: CUgraphMem_attribute, value: *mut c_void) => pass;
                cuDeviceSetGraphMemAttribute 11040 (device: i32, attribute: CUgraphMem_attribute, value: *mut c_void) => pass;
            }
            "H. Frees by implication"
            Implied in Cuda {
                cuCtxDestroy_v2 4000 (ctx: Ctx) => context::destroy;
                cuCtxDestroy 2000 (ctx: Ctx) => context::destroy;
                cuCtxDetach 2000 (ctx: Ctx) => context::detach;
                cuDevicePrimaryCtxRelease_v2 11000 (dev: i32) => context::primary_release;
                cuDevicePrimaryCtxRelease 7000 (dev: i32) => context::primary_release;
                cuDevicePrimaryCtxReset_v2 11000 (dev: i32) => context::primary_reset;
                cuDevicePrimaryCtxReset 7000 (dev: i32) => context::primary_reset;
                cuModuleUnload 2000 (module: Module) => module::unload;
                cuLibraryUnload 12000 (library: Library) => module::library_unload;
                cuGreenCtxDestroy 12040 (ctx: GreenCtx) => context::green_destroy;
            }
            "I. Contexts, code and limits"
            Contexts in Cuda {
                cuDevicePrimaryCtxRetain 7000 (ctx: Out<Ctx>, dev: i32) => context::primary_retain;
                cuCtxCreate 2000 (ctx: Out<Ctx>, flags: u32, dev: i32) => context::create;
                cuCtxCreate_v2 3020 (ctx: Out<Ctx>, flags: u32, dev: i32) => context::create;
                cuCtxCreate_v3 11040 (ctx: Out<Ctx>, params: *mut CUexecAffinityParam, count: i32, flags: u32, dev: i32) => context::create_v3;
                cuCtxCreate_v4 12050 (ctx: Out<Ctx>, params: *mut CUctxCreateParams, flags: u32, dev: i32) => context::create_v4;
                cuCtxAttach 2000 (ctx: Out<Ctx>, flags: u32) => context::attach;
                cuGreenCtxCreate 12040 (ctx: Out<GreenCtx>, descriptor: CUdevResourceDesc, dev: i32, flags: u32) => context::green_create;
                cuModuleLoadData 2000 (module: Out<Module>, image: *const c_void) => module::load_data;
                cuModuleLoadDataEx 2010 (module: Out<Module>, image: *const c_void, count: u32, options: Out<CUjit_option>, values: Out<*mut c_void>) => module::load_data_ex;
                cuModuleLoad 2000 (module: Out<Module>, file: In<c_char>) => module::load;
                cuModuleLoadFatBinary 2000 (module: Out<Module>, image: *const c_void) => module::load_data;
                cuLibraryLoadData 12000 (library: Out<Library>, code: *const c_void, jit: Out<CUjit_option>, jit_values: Out<*mut c_void>, jit_count: u32, options: Out<CUlibraryOption>, values: Out<*mut c_void>, count: u32) => module::library_load_data;
                cuLibraryLoadFromFile 12000 (library: Out<Library>, file: In<c_char>, jit: Out<CUjit_option>, jit_values: Out<*mut c_void>, jit_count: u32, options: Out<CUlibraryOption>, values: Out<*mut c_void>, count: u32) => module::library_load_file;
                cuModuleGetFunction 2000 (function: Out<Function>, module: Module, name: In<c_char>) => module::get_function;
                cuModuleGetGlobal_v2 3020 (dptr: Out<u64>, bytes: Out<usize>, module: Module, name: In<c_char>) => module::get_global;
                cuModuleGetGlobal 2000 (dptr: Out<u32>, bytes: Out<u32>, module: Module, name: In<c_char>) => module::get_global_v1;
                cuLibraryGetGlobal 12000 (dptr: Out<u64>, bytes: Out<usize>, library: Library, name: In<c_char>) => module::library_get_global;
                cuLibraryGetManaged 12000 (dptr: Out<u64>, bytes: Out<usize>, library: Library, name: In<c_char>) => module::library_get_global;
                cuLibraryGetUnifiedFunction 12000 (function: Out<*mut c_void>, library: Library, symbol: In<c_char>) => module::library_get_unified;
                cuLibraryGetModule 12000 (module: Out<Module>, library: Library) => module::library_get_module;
                cuLibraryGetKernel 12000 (kernel: Out<Kernel>, library: Library, name: In<c_char>) => module::library_get_kernel;
                cuLibraryEnumerateKernels 12040 (kernels: Out<Kernel>, room: u32, library: Library) => module::library_enumerate;
                cuKernelGetFunction 12000 (function: Out<Function>, kernel: Kernel) => module::kernel_get_function;
                cuFuncLoad 12040 (function: Function) => module::func_load;
                cuCtxEnablePeerAccess 4000 (peer: Ctx, flags: u32) => context::enable_peer_access;
                cuCtxDisablePeerAccess 4000 (peer: Ctx) => context::disable_peer_access;
                cuCtxSetLimit 3010 (limit: CUlimit, value: usize) => context::set_limit;
            }
            "J. Reports memory"
            Report in Cuda {
                cuMemGetInfo_v2 3020 (free: Out<usize>, total: Out<usize>) => info::mem_get_info;
                cuMemGetInfo 2000 (free: Out<u32>, total: Out<u32>) => info::mem_get_info;
                cuDeviceTotalMem_v2 3020 (bytes: Out<usize>, dev: i32) => info::device_total_mem;
                cuDeviceTotalMem 2000 (bytes: Out<u32>, dev: i32) => info::device_total_mem;
                cuMemGetAddressRange_v2 3020 (base: *mut u64, size: *mut usize, dptr: u64) => pass;
                cuPointerGetAttribute 4000 (data: *mut c_void, attribute: CUpointer_attribute, ptr: u64) => pass;
                cuPointerGetAttributes 7000 (count: u32, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: u64) => pass;
                cuArrayGetMemoryRequirements 11060 (requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: Array, device: i32) => pass;
                cuMipmappedArrayGetMemoryRequirements 11060 (requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: MArray, device: i32) => pass;
                cuMemGetLocationInfo 13040 (ptr: u64, size: usize, summary: usize, sampling: usize, location: *mut CUmemLocation) => pass;
            }
            "K. Resolution and lifecycle"
            Lifecycle in Cuda {
                cuGetProcAddress 11030 (symbol: In<c_char>, pfn: Out<*mut c_void>, version: i32, flags: u64) => proc_address::v1;
                cuGetProcAddress_v2 12000 (symbol: In<c_char>, pfn: Out<*mut c_void>, version: i32, flags: u64, status: Out<CUdriverProcAddressQueryResult>) => proc_address::v2;
                cuGetExportTable 3000 (table: *mut *const c_void, id: *const CUuuid) => pass;
                cuInit 2000 (flags: u32) => context::init;
                cuDriverGetVersion 2020 (version: *mut i32) => pass;
                cuStreamBeginCapture 10000 (stream: Stream) => stream::begin_capture_v1;
                cuStreamBeginCapture_ptsz 10000 (stream: Stream) => stream::begin_capture_v1;
                cuStreamBeginCapture_v2 10010 (stream: Stream, mode: CUstreamCaptureMode) => stream::begin_capture;
                cuStreamBeginCapture_v2_ptsz 10010 (stream: Stream, mode: CUstreamCaptureMode) => stream::begin_capture;
                cuStreamBeginCaptureToGraph 12030 (stream: Stream, graph: Graph, dependencies: In<Node>, edges: In<CUgraphEdgeData>, count: usize, mode: CUstreamCaptureMode) => stream::begin_capture_to_graph;
                cuStreamBeginCaptureToGraph_ptsz 12030 (stream: Stream, graph: Graph, dependencies: In<Node>, edges: In<CUgraphEdgeData>, count: usize, mode: CUstreamCaptureMode) => stream::begin_capture_to_graph;
                cuStreamBeginRecaptureToGraph 13030 (stream: Stream, mode: CUstreamCaptureMode, graph: Graph, changed: *mut c_void, data: *mut c_void) => stream::begin_recapture;
                cuStreamBeginRecaptureToGraph_ptsz 13030 (stream: Stream, mode: CUstreamCaptureMode, graph: Graph, changed: *mut c_void, data: *mut c_void) => stream::begin_recapture;
                cuStreamBeginCaptureToCig 13010 (stream: Stream, params: *mut CUstreamCigCaptureParams) => stream::begin_cig;
                cuStreamBeginCaptureToCig_ptsz 13010 (stream: Stream, params: *mut CUstreamCigCaptureParams) => stream::begin_cig;
                cuStreamEndCaptureToCig 13010 (stream: Stream) => stream::end_cig;
                cuStreamEndCaptureToCig_ptsz 13010 (stream: Stream) => stream::end_cig;
                cuStreamEndCapture 10000 (stream: Stream, graph: Out<Graph>) => stream::end_capture;
                cuStreamGetCaptureInfo 10010 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>) => torch_streams::capture_info;
                cuStreamGetCaptureInfo_ptsz 10010 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>) => torch_streams::capture_info;
                cuStreamGetCaptureInfo_v2 11030 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, count: Out<usize>) => torch_streams::capture_info;
                cuStreamGetCaptureInfo_v2_ptsz 11030 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, count: Out<usize>) => torch_streams::capture_info;
                cuStreamGetCaptureInfo_v3 12030 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>) => torch_streams::capture_info;
                cuStreamGetCaptureInfo_v3_ptsz 12030 (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>) => torch_streams::capture_info;
                cuStreamSynchronize 2000 (stream: Stream) => stream::synchronize;
                cuStreamSynchronize_ptsz 7000 (stream: Stream) => stream::synchronize;
                cuEventSynchronize 2000 (event: Event) => stream::synchronize;
                cuCtxSynchronize 2000 () => stream::synchronize_context;
                cuCtxSynchronize_v2 13000 (ctx: Ctx) => stream::synchronize;
                cuStreamDestroy_v2 4000 (stream: Stream) => stream::destroy;
                cuStreamDestroy 2000 (stream: Stream) => stream::destroy;
                cuStreamEndCapture_ptsz 10000 (stream: Stream, graph: Out<Graph>) => stream::end_capture;
            }
            "M. May make the driver take memory for itself"
            ActivityGuard in Cuda {
                cuLaunchKernel 4000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::kernel;
                cuLaunchKernel_ptsz 7000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::kernel;
                cuLaunchKernelEx 11060 (config: *const CUlaunchConfig, function: Function, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::kernel_ex;
                cuLaunchKernelEx_ptsz 11060 (config: *const CUlaunchConfig, function: Function, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::kernel_ex;
                cuLaunchCooperativeKernel 9000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void) => launch::cooperative;
                cuLaunchCooperativeKernel_ptsz 9000 (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void) => launch::cooperative;
                cuLaunch 2000 (function: Function) => launch::plain;
                cuLaunchGrid 2000 (function: Function, width: i32, height: i32) => launch::grid;
                cuLaunchGridAsync 2000 (function: Function, width: i32, height: i32, stream: Stream) => launch::grid_async;
                cuStreamCreate 2000 (stream: Out<Stream>, flags: u32) => stream::create;
                cuStreamCreateWithPriority 5050 (stream: Out<Stream>, flags: u32, priority: i32) => stream::create_with_priority;
                cuGreenCtxStreamCreate 12050 (stream: Out<Stream>, green: GreenCtx, flags: u32, priority: i32) => stream::create_in_green;
                cuEventCreate 2000 (event: Out<Event>, flags: u32) => stream::create_event;
                cuEventDestroy_v2 4000 (event: Event) => stream::destroy_event;
                cuEventDestroy 2000 (event: Event) => stream::destroy_event;
            }
            "L. Seen, not followed"
            Noted in Cuda {
                cuCheckpointProcessCheckpoint 12080 (pid: i32, args: *mut CUcheckpointCheckpointArgs) => note;
                cuCheckpointProcessRestore 12080 (pid: i32, args: *mut CUcheckpointRestoreArgs) => note;
                cuLogicalEndpointBindMem 13030 (endpoint: CUlogicalEndpointId, dev: i32, offset: u64, handle: u64, mem_offset: u64, size: u64, flags: u64) => note;
                cuLogicalEndpointUnbind 13030 (endpoint: CUlogicalEndpointId, dev: i32, offset: u64, size: u64) => note;
                cuLogicalEndpointDestroy 13030 (endpoint: CUlogicalEndpointId) => note;
            }
            "NVML"
            Nvml in Nvml {
                nvmlDeviceGetMemoryInfo 0 (device: NvmlDevice, memory: Out<NvmlMemory>) => nvml::memory_info;
                nvmlDeviceGetMemoryInfo_v2 0 (device: NvmlDevice, memory: Out<NvmlMemory_v2>) => nvml::memory_info_v2;
                nvmlDeviceGetBAR1MemoryInfo 0 (device: NvmlDevice, memory: *mut NvmlMemory) => pass;
                nvmlDeviceGetComputeRunningProcesses 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo_v1) => pass;
                nvmlDeviceGetComputeRunningProcesses_v2 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetComputeRunningProcesses_v3 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetGraphicsRunningProcesses 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo_v1) => pass;
                nvmlDeviceGetGraphicsRunningProcesses_v2 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetGraphicsRunningProcesses_v3 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetMPSComputeRunningProcesses 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo_v1) => pass;
                nvmlDeviceGetMPSComputeRunningProcesses_v2 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetMPSComputeRunningProcesses_v3 0 (device: NvmlDevice, count: *mut u32, infos: *mut NvmlProcessInfo) => pass;
                nvmlDeviceGetRunningProcessDetailList 0 (device: NvmlDevice, list: *mut NvmlProcessDetailList) => pass;
                nvmlDeviceGetAccountingStats 0 (device: NvmlDevice, pid: u32, stats: *mut NvmlAccountingStats) => pass;
                nvmlDeviceGetAccountingStats_v2 0 (device: NvmlDevice, stats: *mut NvmlAccountingStats) => pass;
                nvmlDeviceGetMemoryLimits_v1 0 (device: NvmlDevice, limits: *mut NvmlMemoryLimits) => pass;
                nvmlDeviceSetMemoryLimits_v1 0 (device: NvmlDevice, limits: *mut NvmlMemoryLimits) => pass;
            }
            "PyTorch's allocator"
            Torch in Torch {
                _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE 0 (at: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u64) => torch::memory;
                _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE 0 (at: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u64) => torch::memory;
                _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE 0 (size: i64, allocated: usize, reserved: usize, device: u64) => torch::out_of_memory;
                _ZN2at15sequence_number17get_and_incrementEv 0 () => torch_nodes::made;
                _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE 0 (device: u64, stream: u64) => torch_streams::set_current;
                _ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm 0 (requested: u64) => torch_requests::divisions;
                _ZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig24roundup_power2_divisionsEm 0 (requested: u64) => torch_requests::divisions;
            }
        }
    };
}
pub(crate) use table;
