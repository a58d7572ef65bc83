//! The driver's types, declared from their documented layout.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

pub(crate) use crate::param::{In, Out};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The device's page.
pub(crate) const PAGE: u64 = 2 * MIB;
/// Pools and graph memory grow by this much.
pub(crate) const POOL_STEP: u64 = 32 * MIB;

/// A context, array, graph, event, module and so on, as the program sees it.
pub(crate) type Handle = *mut c_void;
/// CUdeviceptr.
pub(crate) type Pointer = u64;

/// A stream argument. NULL means another stream in the per-thread variants of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct StreamArg(pub usize);

pub(crate) const STREAM_LEGACY: StreamArg = StreamArg(1);
pub(crate) const STREAM_PER_THREAD: StreamArg = StreamArg(2);

pub(crate) const LOCATION_DEVICE: i32 = 1;
pub(crate) const LOCATION_HOST: i32 = 2;
pub(crate) const LOCATION_HOST_NUMA: i32 = 3;
pub(crate) const LOCATION_HOST_NUMA_CURRENT: i32 = 4;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Location {
    pub kind: i32,
    pub id: i32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub kind: i32,
    pub handle_types: i32,
    pub location: Location,
    pub win32: usize,
    pub flags: [u8; 8],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub location: Location,
    pub flags: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub kind: i32,
    pub handle_types: i32,
    pub location: Location,
    pub win32: usize,
    pub max_size: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

impl PoolProps {
    /// Plain memory of the device with this ordinal.
    pub(crate) fn of_device(ordinal: i32) -> PoolProps {
        PoolProps {
            kind: 1,
            handle_types: 0,
            location: Location { kind: LOCATION_DEVICE, id: ordinal },
            win32: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocNodeParams {
    pub pool: PoolProps,
    pub access: *const AccessDesc,
    pub access_count: usize,
    pub size: usize,
    pub pointer: Pointer,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GraphNodeParams {
    pub kind: i32,
    pub reserved: [i32; 3],
    pub body: [u64; 29],
    pub reserved2: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ArrayDesc {
    pub width: usize,
    pub height: usize,
    pub format: i32,
    pub channels: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Array3dDesc {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: i32,
    pub channels: u32,
    pub flags: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HostNodeParams {
    pub function: Option<HostFunction>,
    pub data: *mut c_void,
}

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);
pub(crate) type StreamCallback = unsafe extern "C" fn(*mut c_void, i32, *mut c_void);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: StreamArg,
    pub attributes: *mut c_void,
    pub attribute_count: u32,
}

/// CUipcMemHandle, CUipcEventHandle, CUmemPoolPtrExportData: 64 bytes, passed by value.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Sealed(pub [u64; 8]);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MulticastProp {
    pub devices: u32,
    pub size: usize,
    pub handle_types: u64,
    pub flags: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Uuid(pub [u8; 16]);

/// A text that the program passes, or is given.
pub(crate) type Name = In<c_char>;

const _: () = {
    assert!(size_of::<AllocationProp>() == 32);
    assert!(size_of::<PoolProps>() == 88);
    assert!(size_of::<AllocNodeParams>() == 120);
    assert!(size_of::<GraphNodeParams>() == 256);
    assert!(size_of::<ArrayDesc>() == 24);
    assert!(size_of::<Array3dDesc>() == 40);
    assert!(size_of::<Sealed>() == 64);
    assert!(size_of::<MulticastProp>() == 32);
    assert!(size_of::<LaunchConfig>() == 56);
};
