//! The C types of the driver's and NVML's interface, as far as the table and the hooks need them.
//!
//! Declared here: only fields that are read have names, and sizes are asserted. Handles are opaque
//! pointers, enums are their integers.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

use core::ffi::{c_char, c_void};

/// What every entry point returns (NVML's return codes too).
pub type CUresult = i32;

pub const CUDA_SUCCESS: CUresult = 0;
pub const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
pub const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
pub const CUDA_ERROR_DEINITIALIZED: CUresult = 4;
pub const CUDA_ERROR_NO_DEVICE: CUresult = 100;
pub const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;

pub const NVML_ERROR_LIBRARY_NOT_FOUND: CUresult = 12;
pub const NVML_ERROR_FUNCTION_NOT_FOUND: CUresult = 13;

/// A device ordinal.
pub type Device = i32;
/// A device address.
pub type DevicePtr = u64;
/// A VMM physical object.
pub type MemHandle = u64;

pub type Ctx = *mut c_void;
pub type GreenCtx = *mut c_void;
pub type Stream = *mut c_void;
pub type Event = *mut c_void;
pub type Pool = *mut c_void;
pub type Array = *mut c_void;
pub type MArray = *mut c_void;
pub type Graph = *mut c_void;
pub type GraphExec = *mut c_void;
pub type Node = *mut c_void;
pub type ExtMem = *mut c_void;
pub type Module = *mut c_void;
pub type Library = *mut c_void;
/// A function of a module: one context's.
pub type Function = *mut c_void;
/// A kernel of a library: any context's.
pub type Kernel = *mut c_void;
pub type NvmlDevice = *mut c_void;

pub type CUstreamCaptureStatus = u32;

pub const CU_LIMIT_STACK_SIZE: u32 = 0;
pub const CU_LIMIT_MALLOC_HEAP_SIZE: u32 = 2;

pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
pub const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: u32 = 4;
/// The id's lowest byte is the device.
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: u32 = 6;

pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: u32 = 5;
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: u32 = 7;

pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: u32 = 0;
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: u32 = 2;

pub const CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: u32 = 9;

pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: i32 = 10;
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: i32 = 11;

pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
pub const CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;

pub const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;

pub const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: u32 = 16;
pub const CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;

/// Declares C structs and asserts their sizes.
macro_rules! structs {
    ($( $(#[$meta:meta])* $size:literal $name:ident { $($(#[$doc:meta])* $field:ident: $ty:ty),* $(,)? } )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $($(#[$doc])* pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structs! {
    16 CUuuid { bytes: [u8; 16] }
    8 CUmemLocation { kind: u32, id: i32 }
    8 CUmemAllocFlags { compression: u8, gpu_direct_rdma: u8, usage: u16, reserved: [u8; 4] }
    32 CUmemAllocationProp {
        kind: u32,
        handle_types: u32,
        location: CUmemLocation,
        win32: *mut c_void,
        flags: CUmemAllocFlags,
    }
    88 CUmemPoolProps {
        alloc_type: u32,
        handle_types: u32,
        location: CUmemLocation,
        win32: *mut c_void,
        /// 0 = the driver's default.
        max_size: usize,
        usage: u16,
        reserved: [u8; 54],
    }
    /// Passed by value, on the stack.
    64 CUipcMemHandle { reserved: [c_char; 64] }
    120 CUDA_MEM_ALLOC_NODE_PARAMS {
        pool_props: CUmemPoolProps,
        access_descs: *const c_void,
        access_desc_count: usize,
        bytesize: usize,
        /// Written by the driver.
        dptr: u64,
    }
    /// `union_` starts with a [`CUDA_MEM_ALLOC_NODE_PARAMS`] for a memory node, with the address
    /// for a free node.
    256 CUgraphNodeParams { kind: i32, reserved: [i32; 3], union_: [u64; 29], reserved2: u64 }
    32 CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: u64,
        upload_stream: Stream,
        error_node: Node,
        result: i32,
    }
    24 CUDA_ARRAY_DESCRIPTOR { width: usize, height: usize, format: u32, channels: u32 }
    16 CUDA_ARRAY_DESCRIPTOR_v1 { width: u32, height: u32, format: u32, channels: u32 }
    40 CUDA_ARRAY3D_DESCRIPTOR {
        width: usize,
        height: usize,
        depth: usize,
        format: u32,
        channels: u32,
        flags: u32,
    }
    24 CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: u32,
        height: u32,
        depth: u32,
        format: u32,
        channels: u32,
        flags: u32,
    }
    96 CUarrayMapInfo { words: [u64; 12] }
    88 CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
        offset: u64,
        size: u64,
        flags: u32,
        reserved: [u32; 16],
    }
    24 NvmlMemory { total: u64, free: u64, used: u64 }
    /// `version` is set by the caller: 0x0200_0028.
    40 NvmlMemory_v2 { version: u32, total: u64, reserved: u64, free: u64, used: u64 }
}

const _: () = {
    assert!(core::mem::offset_of!(CUmemAllocationProp, flags) == 24);
    assert!(core::mem::offset_of!(CUmemPoolProps, max_size) == 24);
    assert!(core::mem::offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, access_descs) == 88);
    assert!(core::mem::offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize) == 104);
    assert!(core::mem::offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr) == 112);
    assert!(core::mem::offset_of!(CUgraphNodeParams, union_) == 16);
};
