//! Allocates and frees GPU memory with the common functions of the driver API.
//!
//!     cargo build --example take_memory
//!     vramtrace run target/debug/examples/take_memory
//!
//! Declares the functions and types that it uses: no CUDA headers and no bindings are needed. Exit status: 0
//! done, 1 a call failed, 2 no driver or no usable GPU.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use libloading::{Library, Symbol};

type CUresult = c_int;
type Pointer = u64;
type Handle = u64;
type Object = *mut c_void;

const MIB: usize = 1 << 20;
const NOT_SUPPORTED: CUresult = 801;

#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

const DEVICE_0: Location = Location { kind: 1, id: 0 };

#[repr(C)]
struct AllocationProp {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *const c_void,
    flags: [u8; 8],
}

#[repr(C)]
struct AccessDesc {
    location: Location,
    flags: c_int,
}

#[repr(C)]
struct PoolProps {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32: *const c_void,
    max_size: usize,
    reserved: [u8; 56],
}

#[repr(C)]
struct AllocNodeParams {
    pool: PoolProps,
    access: *const AccessDesc,
    access_count: usize,
    bytes: usize,
    pointer: Pointer,
}

#[repr(C)]
struct ArrayDesc {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

const FLOAT: c_int = 0x20;

/// `Err`: the name of the call that failed, and its result.
type Taken = Result<(), (&'static str, CUresult)>;

struct Driver(Library);

/// Calls a function of the driver by name. Returns from the caller if it fails.
macro_rules! call {
    ($driver:expr, $name:literal ( $($arg:expr => $type:ty),* )) => {{
        // SAFETY: the types are those of the driver's interface, version 11.4 and later.
        let result = unsafe {
            match $driver.0.get::<unsafe extern "C" fn($($type),*) -> CUresult>($name.as_bytes()) {
                Ok(function) => {
                    let function: Symbol<unsafe extern "C" fn($($type),*) -> CUresult> = function;
                    function($($arg),*)
                }
                Err(_) => NOT_SUPPORTED,
            }
        };
        if result != 0 {
            return Err(($name, result));
        }
    }};
}

fn pool_props() -> PoolProps {
    PoolProps {
        kind: 1,
        handle_types: 0,
        location: DEVICE_0,
        win32: null(),
        max_size: 0,
        reserved: [0; 56],
    }
}

fn enter(driver: &Driver) -> Taken {
    let mut context: Object = null_mut();
    call!(driver, "cuInit"(0 => c_uint));
    call!(driver, "cuDevicePrimaryCtxRetain"(&mut context => *mut Object, 0 => c_int));
    call!(driver, "cuCtxSetCurrent"(context => Object));
    Ok(())
}

fn linear(driver: &Driver) -> Taken {
    let mut pointer = 0;
    call!(driver, "cuMemAlloc_v2"(&mut pointer => *mut Pointer, 64 * MIB => usize));
    call!(driver, "cuMemFree_v2"(pointer => Pointer));
    Ok(())
}

fn pitched(driver: &Driver) -> Taken {
    let (mut pointer, mut pitch) = (0, 0);
    call!(driver, "cuMemAllocPitch_v2"(
        &mut pointer => *mut Pointer, &mut pitch => *mut usize,
        1000 => usize, 4096 => usize, 4 => c_uint
    ));
    call!(driver, "cuMemFree_v2"(pointer => Pointer));
    Ok(())
}

fn managed(driver: &Driver) -> Taken {
    let mut pointer = 0;
    call!(driver, "cuMemAllocManaged"(
        &mut pointer => *mut Pointer, 32 * MIB => usize, 1 => c_uint
    ));
    call!(driver, "cuMemFree_v2"(pointer => Pointer));
    Ok(())
}

fn pools(driver: &Driver) -> Taken {
    let (mut pointer, mut pool): (Pointer, Object) = (0, null_mut());
    let stream: Object = null_mut();
    call!(driver, "cuMemAllocAsync"(
        &mut pointer => *mut Pointer, 16 * MIB => usize, stream => Object
    ));
    call!(driver, "cuMemFreeAsync"(pointer => Pointer, stream => Object));
    call!(driver, "cuMemPoolCreate"(&mut pool => *mut Object, &pool_props() => *const PoolProps));
    call!(driver, "cuMemAllocFromPoolAsync"(
        &mut pointer => *mut Pointer, 48 * MIB => usize, pool => Object, stream => Object
    ));
    call!(driver, "cuMemFreeAsync"(pointer => Pointer, stream => Object));
    call!(driver, "cuStreamSynchronize"(stream => Object));
    call!(driver, "cuMemPoolDestroy"(pool => Object));
    Ok(())
}

fn virtual_memory(driver: &Driver) -> Taken {
    let bytes = 32 * MIB;
    let prop = AllocationProp {
        kind: 1,
        handle_types: 0,
        location: DEVICE_0,
        win32: null(),
        flags: [0; 8],
    };
    let access = AccessDesc { location: DEVICE_0, flags: 3 };
    let (mut address, mut handle): (Pointer, Handle) = (0, 0);
    call!(driver, "cuMemAddressReserve"(
        &mut address => *mut Pointer, bytes => usize, 0 => usize, 0 => Pointer, 0 => c_ulonglong
    ));
    call!(driver, "cuMemCreate"(
        &mut handle => *mut Handle, bytes => usize, &prop => *const AllocationProp,
        0 => c_ulonglong
    ));
    call!(driver, "cuMemMap"(
        address => Pointer, bytes => usize, 0 => usize, handle => Handle, 0 => c_ulonglong
    ));
    call!(driver, "cuMemSetAccess"(
        address => Pointer, bytes => usize, &access => *const AccessDesc, 1 => usize
    ));
    call!(driver, "cuMemRelease"(handle => Handle));
    call!(driver, "cuMemUnmap"(address => Pointer, bytes => usize));
    call!(driver, "cuMemAddressFree"(address => Pointer, bytes => usize));
    Ok(())
}

fn array(driver: &Driver) -> Taken {
    let desc = ArrayDesc { width: 1024, height: 1024, format: FLOAT, channels: 4 };
    let mut array: Object = null_mut();
    call!(driver, "cuArrayCreate_v2"(&mut array => *mut Object, &desc => *const ArrayDesc));
    call!(driver, "cuArrayDestroy"(array => Object));
    Ok(())
}

fn graph(driver: &Driver) -> Taken {
    let mut params = AllocNodeParams {
        pool: pool_props(),
        access: null(),
        access_count: 0,
        bytes: 100 * MIB,
        pointer: 0,
    };
    let (mut graph, mut node, mut exec): (Object, Object, Object) =
        (null_mut(), null_mut(), null_mut());
    call!(driver, "cuGraphCreate"(&mut graph => *mut Object, 0 => c_uint));
    call!(driver, "cuGraphAddMemAllocNode"(
        &mut node => *mut Object, graph => Object, null() => *const Object, 0 => usize,
        &mut params => *mut AllocNodeParams
    ));
    let after = node;
    call!(driver, "cuGraphAddMemFreeNode"(
        &mut node => *mut Object, graph => Object, &after => *const Object, 1 => usize,
        params.pointer => Pointer
    ));
    call!(driver, "cuGraphInstantiateWithFlags"(
        &mut exec => *mut Object, graph => Object, 0 => c_ulonglong
    ));
    call!(driver, "cuGraphLaunch"(exec => Object, null_mut() => Object));
    call!(driver, "cuStreamSynchronize"(null_mut() => Object));
    call!(driver, "cuGraphExecDestroy"(exec => Object));
    call!(driver, "cuGraphDestroy"(graph => Object));
    call!(driver, "cuDeviceGraphMemTrim"(0 => c_int));
    Ok(())
}

fn host(driver: &Driver) -> Taken {
    let mut pinned: *mut c_void = null_mut();
    call!(driver, "cuMemHostAlloc"(
        &mut pinned => *mut *mut c_void, 8 * MIB => usize, 0 => c_uint
    ));
    call!(driver, "cuMemFreeHost"(pinned => *mut c_void));
    Ok(())
}

fn main() -> ExitCode {
    // SAFETY: the driver's initialisers are those that every CUDA program runs.
    let driver = match unsafe { Library::new("libcuda.so.1") } {
        Ok(library) => Driver(library),
        Err(error) => {
            eprintln!("no driver: {error:?}");
            return ExitCode::from(2);
        }
    };
    if let Err((call, result)) = enter(&driver) {
        eprintln!("no usable GPU: {call}: error {result}");
        return ExitCode::from(2);
    }
    type Way = (&'static str, fn(&Driver) -> Taken);
    let ways: [Way; 8] = [
        ("linear memory", linear),
        ("pitched memory", pitched),
        ("managed memory", managed),
        ("pools", pools),
        ("virtual memory", virtual_memory),
        ("an array", array),
        ("a graph", graph),
        ("pinned host memory", host),
    ];
    let mut failed = false;
    for (name, take) in ways {
        match take(&driver) {
            Ok(()) => println!("{name}"),
            Err((call, NOT_SUPPORTED)) => println!("{name}: {call} is not supported here"),
            Err((call, result)) => {
                eprintln!("{name}: {call}: error {result}");
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
