//! The table of all interposed entry points.
//!
//! A line is
//!
//! ```text
//! name since, other_name since: (arguments) => {hook(arguments)}
//! ```
//!
//! * `name`: the exported symbol, exactly. Functions with one hook whose arguments are passed alike are on one line: older
//!   variants, those of the per-thread default stream, and those of handles of another kind.
//! * `since`: the version that asks cuGetProcAddress for exactly this variant (3.2 is 3020); 0 for
//!   NVML, which has no such function. PyTorch's functions have none either: they are reached by
//!   dynamic linking only (see [`crate::hooks::families::torch_calls`]).
//! * `hook`: what happens at the call. `note` forwards it to the driver, and records once that it was used; `proc_address::resolve` handles cuGetProcAddress; anything else is a
//!   function in [`crate::hooks::families`], shaped as [`crate::hooks::call`] says, with those of the arguments that
//!   it takes. `launch::first` is called for the first launch of a function only: others go directly to the driver.
//!
//! It generates the exports, the real pointers, the list
//! that `doctor` prints and docs/COVERAGE.md. Adding an API function is one line.

/// Passes the whole table to the macro named by the argument.
macro_rules! table {
    ($with:ident) => {
        $with! {
            "A. Takes device memory"
            Create in Cuda {
                cuMemAlloc_v2 3020: (dptr: Out<u64>, bytesize: usize) => {alloc::linear(Kind::Device, dptr, bytesize)}
                cuMemAlloc 2000: (dptr: Out<u32>, bytesize: u32) => {alloc::linear(Kind::Device, dptr, bytesize as usize)}
                cuMemAllocPitch_v2 3020: (dptr: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) => {alloc::pitched(dptr, pitch, width, height)}
                cuMemAllocPitch 2000: (dptr: Out<u32>, pitch: Out<u32>, width: u32, height: u32, element: u32) => {alloc::pitched(dptr, pitch, width as usize, height as usize)}
                cuMemAllocManaged 6000: (dptr: Out<u64>, bytesize: usize, flags: u32) => {alloc::linear(Kind::Managed, dptr, bytesize)}
                cuMemAllocAsync 11020, cuMemAllocAsync_ptsz 11020: (dptr: Out<u64>, bytesize: usize, stream: Stream) => {ordered::allocate(dptr, bytesize, null_mut(), stream)}
                cuMemAllocFromPoolAsync 11020, cuMemAllocFromPoolAsync_ptsz 11020: (dptr: Out<u64>, bytesize: usize, pool: Pool, stream: Stream) => {ordered::allocate(dptr, bytesize, pool, stream)}
                cuMemCreate 10020: (handle: Out<u64>, size: usize, prop: In<CUmemAllocationProp>, flags: u64) => {vmm::create(handle, size, prop)}
                cuArrayCreate_v2 3020: (array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>) => {array::create(array, descriptor)}
                cuArrayCreate 2000: (array: Out<Array>, descriptor: In<CUDA_ARRAY_DESCRIPTOR_v1>) => {array::create(array, descriptor)}
                cuArray3DCreate_v2 3020: (array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>) => {array::create(array, descriptor)}
                cuArray3DCreate 2000: (array: Out<Array>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR_v1>) => {array::create(array, descriptor)}
                cuMipmappedArrayCreate 5000: (array: Out<MArray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>, levels: u32) => {array::create_mipmapped(array, descriptor, levels)}
                cuMulticastCreate 12010: (handle: Out<u64>, prop: *mut c_void) => {multicast::create(handle)}
            }
            "B. Pins host memory"
            Host in Cuda {
                cuMemAllocHost_v2 3020: (pp: Out<*mut c_void>, bytesize: usize) => {host::pin(pp, bytesize)}
                cuMemAllocHost 2000: (pp: Out<*mut c_void>, bytesize: u32) => {host::pin(pp, bytesize as usize)}
                cuMemHostAlloc 2020: (pp: Out<*mut c_void>, bytesize: usize, flags: u32) => {host::pin(pp, bytesize)}
                cuMemHostRegister_v2 6050, cuMemHostRegister 4000: (p: *mut c_void, bytesize: usize, flags: u32) => {host::register(p, bytesize)}
                cuMemFreeHost 2000, cuMemHostUnregister 4000: (p: *mut c_void) => {host::unpin(p)}
            }
            "C. Frees"
            Free in Cuda {
                cuMemFree_v2 3020: (dptr: u64) => {alloc::free(dptr)}
                cuMemFree 2000: (dptr: u32) => {alloc::free(dptr.into())}
                cuMemFreeAsync 11020, cuMemFreeAsync_ptsz 11020: (dptr: u64, stream: Stream) => {ordered::free(dptr, stream)}
                cuMemRelease 10020: (handle: u64) => {vmm::release(handle)}
                cuMemUnmap 10020: (ptr: u64, size: usize) => {vmm::unmap(ptr, size)}
                cuArrayDestroy 2000, cuMipmappedArrayDestroy 5000: (array: Array) => {array::destroy(array)}
            }
            "D. Virtual memory"
            Virtual in Cuda {
                cuMemAddressReserve 10020: (ptr: Out<u64>, size: usize, alignment: usize, addr: u64, flags: u64) => {reserve::address_reserve(ptr, size)}
                cuMemAddressFree 10020: (ptr: u64, size: usize) => {reserve::address_free(ptr, size)}
                cuMemSetAccess 10020: (ptr: u64, size: usize, access: *const c_void, count: usize) => {pass}
                cuMemMap 10020: (ptr: u64, size: usize, offset: usize, handle: u64, flags: u64) => {vmm::map(ptr, size, offset, handle)}
                cuMemMapArrayAsync 11010, cuMemMapArrayAsync_ptsz 11010: (list: In<CUarrayMapInfo>, count: u32, stream: Stream) => {sparse::map_array_async(list, count)}
                cuMemRetainAllocationHandle 11000: (handle: Out<u64>, addr: *mut c_void) => {vmm::retain(handle, addr)}
                cuMulticastBindMem 12010: (mc: u64, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64) => {multicast::bind_mem(mc, None, mc_offset, handle, size)}
                cuMulticastBindMem_v2 13010: (mc: u64, dev: i32, mc_offset: usize, handle: u64, offset: usize, size: usize, flags: u64) => {multicast::bind_mem(mc, Some(dev), mc_offset, handle, size)}
                cuMulticastBindAddr 12010: (mc: u64, mc_offset: usize, ptr: u64, size: usize, flags: u64) => {multicast::bind_addr(mc, None, mc_offset, ptr, size)}
                cuMulticastBindAddr_v2 13010: (mc: u64, dev: i32, mc_offset: usize, ptr: u64, size: usize, flags: u64) => {multicast::bind_addr(mc, Some(dev), mc_offset, ptr, size)}
                cuMulticastUnbind 12010: (mc: u64, dev: i32, mc_offset: usize, size: usize) => {multicast::unbind(mc, dev, mc_offset, size)}
            }
            "E. Imports and exports"
            Share in Cuda {
                cuIpcGetMemHandle 4010: (handle: Out<CUipcMemHandle>, dptr: u64) => {ipc::share(dptr)}
                cuIpcOpenMemHandle_v2 11000, cuIpcOpenMemHandle 4010: (dptr: Out<u64>, handle: CUipcMemHandle, flags: u32) => {ipc::open(dptr)}
                cuIpcCloseMemHandle 4010: (dptr: u64) => {ipc::close(dptr)}
                cuMemImportFromShareableHandle 10020: (handle: Out<u64>, os_handle: *mut c_void, kind: u32) => {vmm::import(handle)}
                cuMemPoolImportPointer 11020: (ptr: Out<u64>, pool: Pool, data: *mut c_void) => {ipc::pool_import_pointer(ptr)}
                cuExternalMemoryGetMappedBuffer 10000: (dptr: Out<u64>, memory: ExtMem, descriptor: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>) => {ipc::external_buffer(dptr, descriptor)}
                cuExternalMemoryGetMappedMipmappedArray 10000: (array: Out<MArray>, memory: ExtMem, descriptor: *mut c_void) => {ipc::external_mipmap(array)}
            }
            "F. Pools"
            Pools in Cuda {
                cuMemPoolCreate 11020: (pool: Out<Pool>, props: In<CUmemPoolProps>) => {pool::create(pool, props)}
                cuMemPoolDestroy 11020: (pool: Pool) => {pool::destroy(pool)}
                cuMemPoolTrimTo 11020: (pool: Pool, keep: usize) => {pool::change(pool)}
                cuMemPoolSetAttribute 11020: (pool: Pool, attribute: u32, value: *mut c_void) => {pool::change(pool)}
                cuDeviceGetDefaultMemPool 11020, cuDeviceGetMemPool 11020: (pool: Out<Pool>, dev: i32) => {pool::get_of_device(pool, dev)}
                cuDeviceSetMemPool 11020: (dev: i32, pool: Pool) => {pool::set}
                cuMemGetDefaultMemPool 13000, cuMemGetMemPool 13000: (pool: Out<Pool>, location: In<CUmemLocation>, kind: u32) => {pool::get_of_location(pool, location, kind)}
                cuMemSetMemPool 13000: (location: In<CUmemLocation>, kind: u32, pool: Pool) => {pool::set}
            }
            "G. Graph memory"
            Graphs in Cuda {
                cuGraphAddMemAllocNode 11040: (node: Out<Node>, graph: Graph, dependencies: In<Node>, count: usize, params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>) => {node::add_mem_alloc_node(params)}
                cuGraphAddNode 12020: (node: Out<Node>, graph: Graph, dependencies: In<Node>, count: usize, params: Out<CUgraphNodeParams>) => {node::add_node(params)}
                cuGraphAddNode_v2 12030, cuGraphAddNode_v3 13040: (node: Out<Node>, graph: Graph, dependencies: In<Node>, edges: *mut c_void, count: usize, params: Out<CUgraphNodeParams>) => {node::add_node(params)}
                cuGraphInstantiate 10000, cuGraphInstantiate_v2 11000: (exec: Out<GraphExec>, graph: Graph, error: Out<Node>, log: Out<c_char>, size: usize) => {graph::instantiate(exec, graph, 0)}
                cuGraphInstantiateWithFlags 11040: (exec: Out<GraphExec>, graph: Graph, flags: u64) => {graph::instantiate(exec, graph, flags)}
                cuGraphInstantiateWithParams 12000, cuGraphInstantiateWithParams_ptsz 12000: (exec: Out<GraphExec>, graph: Graph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>) => {graph::instantiate_with_params(exec, graph, params)}
                cuGraphUpload 11010, cuGraphUpload_ptsz 11010: (exec: GraphExec, stream: Stream) => {graph::upload(exec)}
                cuGraphLaunch 10000, cuGraphLaunch_ptsz 10000: (exec: GraphExec, stream: Stream) => {graph::launch(exec, stream)}
                cuGraphExecUpdate 10020: (exec: GraphExec, graph: Graph, error: Out<Node>, result: Out<i32>) => {graph::update(exec)}
                cuGraphExecUpdate_v2 12000: (exec: GraphExec, graph: Graph, info: *mut c_void) => {graph::update(exec)}
                cuGraphExecDestroy 10000: (exec: GraphExec) => {graph::exec_destroy(exec)}
                cuDeviceGraphMemTrim 11040: (device: i32) => {graph::trim(device)}
            }
            "H. Frees by implication"
            Implied in Cuda {
                cuCtxDestroy_v2 4000, cuCtxDestroy 2000: (ctx: Ctx) => {context::destroy(ctx)}
                cuCtxDetach 2000: (ctx: Ctx) => {context::detach(ctx)}
                cuDevicePrimaryCtxRelease_v2 11000, cuDevicePrimaryCtxRelease 7000: (dev: i32) => {context::primary_release(dev)}
                cuDevicePrimaryCtxReset_v2 11000, cuDevicePrimaryCtxReset 7000: (dev: i32) => {context::primary_reset(dev)}
                cuModuleUnload 2000: (module: Module) => {module::unload}
                cuLibraryUnload 12000: (library: Library) => {module::library_unload(library)}
                cuGreenCtxDestroy 12040: (ctx: GreenCtx) => {context::green_destroy(ctx)}
            }
            "I. Contexts, code and limits"
            Contexts in Cuda {
                cuDevicePrimaryCtxRetain 7000: (ctx: Out<Ctx>, dev: i32) => {context::primary_retain(ctx, dev)}
                cuCtxCreate 2000, cuCtxCreate_v2 3020: (ctx: Out<Ctx>, flags: u32, dev: i32) => {context::create(ctx, dev)}
                cuCtxCreate_v3 11040: (ctx: Out<Ctx>, params: *mut c_void, count: i32, flags: u32, dev: i32) => {context::create(ctx, dev)}
                cuCtxCreate_v4 12050: (ctx: Out<Ctx>, params: *mut c_void, flags: u32, dev: i32) => {context::create(ctx, dev)}
                cuCtxAttach 2000: (ctx: Out<Ctx>, flags: u32) => {context::attach(ctx)}
                cuGreenCtxCreate 12040: (ctx: Out<GreenCtx>, descriptor: *mut c_void, dev: i32, flags: u32) => {context::green_create(ctx, dev)}
                cuModuleLoadData 2000, cuModuleLoadFatBinary 2000, cuLibraryGetModule 12000: (module: Out<Module>, of: *const c_void) => {module::load}
                cuModuleLoadDataEx 2010: (module: Out<Module>, image: *const c_void, count: u32, options: Out<u32>, values: Out<*mut c_void>) => {module::load}
                cuModuleLoad 2000: (module: Out<Module>, file: In<c_char>) => {module::load_named(file)}
                cuLibraryLoadData 12000: (library: Out<Library>, code: *const c_void, jit: Out<u32>, jit_values: Out<*mut c_void>, jit_count: u32, options: Out<u32>, values: Out<*mut c_void>, count: u32) => {module::load}
                cuLibraryLoadFromFile 12000: (library: Out<Library>, file: In<c_char>, jit: Out<u32>, jit_values: Out<*mut c_void>, jit_count: u32, options: Out<u32>, values: Out<*mut c_void>, count: u32) => {module::load_named(file)}
                cuModuleGetFunction 2000, cuLibraryGetUnifiedFunction 12000: (function: Out<Function>, module: Module, name: In<c_char>) => {module::load_named(name)}
                cuModuleGetGlobal_v2 3020, cuModuleGetGlobal 2000, cuLibraryGetGlobal 12000, cuLibraryGetManaged 12000: (dptr: *mut c_void, bytes: *mut c_void, module: Module, name: In<c_char>) => {module::load_named(name)}
                cuLibraryGetKernel 12000: (kernel: Out<Kernel>, library: Library, name: In<c_char>) => {module::library_get_kernel(kernel, library)}
                cuLibraryEnumerateKernels 12040: (kernels: Out<Kernel>, room: u32, library: Library) => {module::library_enumerate(kernels, room, library)}
                cuKernelGetFunction 12000: (function: Out<Function>, kernel: Kernel) => {module::kernel_get_function(function, kernel)}
                cuFuncLoad 12040: (function: Function) => {module::func_load(function)}
                cuCtxEnablePeerAccess 4000: (peer: Ctx, flags: u32) => {context::change_peer_access(peer)}
                cuCtxDisablePeerAccess 4000: (peer: Ctx) => {context::change_peer_access(peer)}
                cuCtxSetLimit 3010: (limit: u32, value: usize) => {context::set_limit(limit, value)}
            }
            "J. Reports memory"
            Report in Cuda {
                cuMemGetInfo_v2 3020: (free: Out<usize>, total: Out<usize>) => {info::mem_get_info(free, total)}
                cuMemGetInfo 2000: (free: Out<u32>, total: Out<u32>) => {info::mem_get_info(free, total)}
                cuDeviceTotalMem_v2 3020: (bytes: Out<usize>, dev: i32) => {info::device_total_mem(bytes, dev)}
                cuDeviceTotalMem 2000: (bytes: Out<u32>, dev: i32) => {info::device_total_mem(bytes, dev)}
            }
            "K. Resolution and lifecycle"
            Lifecycle in Cuda {
                cuGetProcAddress 11030: (symbol: In<c_char>, pfn: Out<*mut c_void>, version: i32, flags: u64) => {proc_address::resolve(symbol, pfn, flags)}
                cuGetProcAddress_v2 12000: (symbol: In<c_char>, pfn: Out<*mut c_void>, version: i32, flags: u64, status: Out<u32>) => {proc_address::resolve(symbol, pfn, flags)}
                cuInit 2000: (flags: u32) => {context::init}
                cuStreamBeginCapture 10000, cuStreamBeginCapture_ptsz 10000: (stream: Stream) => {stream::begin_capture(stream)}
                cuStreamBeginCapture_v2 10010, cuStreamBeginCapture_v2_ptsz 10010: (stream: Stream, mode: u32) => {stream::begin_capture(stream)}
                cuStreamBeginCaptureToGraph 12030, cuStreamBeginCaptureToGraph_ptsz 12030: (stream: Stream, graph: Graph, dependencies: In<Node>, edges: *mut c_void, count: usize, mode: u32) => {stream::begin_capture(stream)}
                cuStreamBeginRecaptureToGraph 13030, cuStreamBeginRecaptureToGraph_ptsz 13030: (stream: Stream, mode: u32, graph: Graph, changed: *mut c_void, data: *mut c_void) => {stream::begin_capture(stream)}
                cuStreamBeginCaptureToCig 13010, cuStreamBeginCaptureToCig_ptsz 13010: (stream: Stream, params: *mut c_void) => {stream::begin_capture(stream)}
                cuStreamEndCaptureToCig 13010, cuStreamEndCaptureToCig_ptsz 13010: (stream: Stream) => {stream::end_capture(stream)}
                cuStreamEndCapture 10000, cuStreamEndCapture_ptsz 10000: (stream: Stream, graph: Out<Graph>) => {stream::end_capture(stream)}
                cuStreamGetCaptureInfo 10010, cuStreamGetCaptureInfo_ptsz 10010: (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>) => {torch_streams::capture_info(status, id)}
                cuStreamGetCaptureInfo_v2 11030, cuStreamGetCaptureInfo_v2_ptsz 11030: (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, count: Out<usize>) => {torch_streams::capture_info(status, id)}
                cuStreamGetCaptureInfo_v3 12030, cuStreamGetCaptureInfo_v3_ptsz 12030: (stream: Stream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<Graph>, dependencies: Out<*const Node>, edges: *mut c_void, count: Out<usize>) => {torch_streams::capture_info(status, id)}
                cuStreamSynchronize 2000, cuStreamSynchronize_ptsz 7000, cuEventSynchronize 2000, cuCtxSynchronize_v2 13000: (object: *mut c_void) => {stream::synchronize}
                cuCtxSynchronize 2000: () => {stream::synchronize}
                cuEventCreate 2000: (event: Out<*mut c_void>, flags: u32) => {pass}
                cuStreamDestroy_v2 4000, cuStreamDestroy 2000: (stream: Stream) => {stream::destroy(stream)}
            }
            "M. May make the driver take memory for itself"
            ActivityGuard in Cuda {
                cuLaunchKernel 4000, cuLaunchKernel_ptsz 7000: (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void, extra: *mut *mut c_void) => {launch::first(function)}
                cuLaunchKernelEx 11060, cuLaunchKernelEx_ptsz 11060: (config: *const c_void, function: Function, params: *mut *mut c_void, extra: *mut *mut c_void) => {launch::first(function)}
                cuLaunchCooperativeKernel 9000, cuLaunchCooperativeKernel_ptsz 9000: (function: Function, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32, stream: Stream, params: *mut *mut c_void) => {launch::first(function)}
                cuLaunch 2000: (function: Function) => {launch::first(function)}
                cuLaunchGrid 2000: (function: Function, width: i32, height: i32) => {launch::first(function)}
                cuLaunchGridAsync 2000: (function: Function, width: i32, height: i32, stream: Stream) => {launch::first(function)}
                cuStreamCreate 2000: (stream: Out<Stream>, flags: u32) => {stream::create}
                cuStreamCreateWithPriority 5050: (stream: Out<Stream>, flags: u32, priority: i32) => {stream::create}
                cuGreenCtxStreamCreate 12050: (stream: Out<Stream>, green: GreenCtx, flags: u32, priority: i32) => {stream::create}
            }
            "L. Seen, not followed"
            Noted in Cuda {
                cuCheckpointProcessCheckpoint 12080, cuCheckpointProcessRestore 12080: (pid: i32, args: *mut c_void) => {note}
                cuLogicalEndpointBindMem 13030: (endpoint: u64, dev: i32, offset: u64, handle: u64, mem_offset: u64, size: u64, flags: u64) => {note}
                cuLogicalEndpointUnbind 13030: (endpoint: u64, dev: i32, offset: u64, size: u64) => {note}
                cuLogicalEndpointDestroy 13030: (endpoint: u64) => {note}
            }
            "NVML"
            Nvml in Nvml {
                nvmlDeviceGetMemoryInfo 0: (device: NvmlDevice, memory: Out<NvmlMemory>) => {nvml::memory_info(device, memory)}
                nvmlDeviceGetMemoryInfo_v2 0: (device: NvmlDevice, memory: Out<NvmlMemory_v2>) => {nvml::memory_info_v2(device, memory)}
            }
            "PyTorch's allocator"
            Torch in Torch {
                _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE 0: (at: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u64) => {torch::memory(at, size, allocated, reserved, device)}
                _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE 0: (at: *mut c_void, size: i64, allocated: usize, reserved: usize, device: u64) => {torch::memory(at, size, allocated, reserved, device)}
                _ZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig24roundup_power2_divisionsEm 0: (requested: u64) => {torch_requests::divisions(requested)}
                _ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm 0: (requested: u64) => {torch_requests::divisions(requested)}
                _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE 0: (size: i64, allocated: usize, reserved: usize, device: u64) => {torch::out_of_memory(size, allocated, reserved, device)}
                _ZN2at15sequence_number17get_and_incrementEv 0: () => {torch_nodes::made()}
                _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE 0: (device: u64, stream: u64) => {torch_streams::set_current(device, stream)}
            }
        }
    };
}
pub(crate) use table;
