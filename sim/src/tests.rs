//! The measured table, row by row, through the exported functions. One test at a time: they share
//! one device, as the calls of one process do.

use crate::abi::*;
use crate::driver::driver;
use crate::entry::resolve::{cuGetProcAddress, cuGetProcAddress_v2};
use crate::entry::table::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard};

macro_rules! result {
    ($name:ident($($arg:expr),*)) => { $name::plain($($arg),*) };
}

macro_rules! ok {
    ($name:ident($($arg:expr),*)) => { assert_eq!(result!($name($($arg),*)), 0, stringify!($name)) };
}

const LEGACY: StreamArg = StreamArg(0);
const G: u64 = GIB;

/// A primary context, and nothing else in use.
struct Fresh(#[allow(dead_code)] MutexGuard<'static, ()>);

fn fresh() -> Fresh {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    ok!(cuInit(0));
    let mut context = null_mut();
    ok!(cuDevicePrimaryCtxRetain(Out::from(&mut context), 0));
    ok!(cuCtxSetCurrent(context));
    assert_eq!(used(), 526 * MIB + 832 * KIB, "a bare context");
    Fresh(guard)
}

impl Drop for Fresh {
    fn drop(&mut self) {
        result!(cuDeviceGraphMemTrim(0));
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        if !std::thread::panicking() {
            assert_eq!(driver().devices.shared.used(0), 0, "a test left memory behind");
        }
    }
}

fn used() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(Out::from(&mut free), Out::from(&mut total)));
    (total - free) as u64
}

fn alloc(size: u64) -> Pointer {
    let mut pointer = 0;
    ok!(cuMemAlloc_v2(Out::from(&mut pointer), size as usize));
    pointer
}

/// Bytes that work adds to the device.
fn added(work: impl FnOnce()) -> u64 {
    let before = used();
    work();
    used() - before
}

fn device_prop() -> AllocationProp {
    let location = Location { kind: LOCATION_DEVICE, id: 0 };
    AllocationProp { kind: 1, handle_types: 0, location, win32: 0, flags: [0; 8] }
}

#[test]
fn rounding_of_plain_memory() {
    let _fresh = fresh();
    for (size, bytes, stride) in [
        (1, 2 * MIB, 512),
        (512, 2 * MIB, 512),
        (513, 2 * MIB, 1024),
        (64 * KIB, 4 * MIB, 64 * KIB),
        (MIB, 64 * MIB, MIB),
        (MIB + 1, 128 * MIB, 2 * MIB),
        (3 * MIB, 256 * MIB, 4 * MIB),
    ] {
        let mut list = Vec::new();
        assert_eq!(added(|| list = (0..64).map(|_| alloc(size)).collect()), bytes, "{size}");
        assert_eq!(list[1] - list[0], stride, "{size}");
        list.into_iter().for_each(|pointer| ok!(cuMemFree_v2(pointer)));
    }
    let (mut pointer, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(Out::from(&mut pointer), Out::from(&mut pitch), 1000, 1000, 4));
    assert_eq!(pitch, 1024);
    ok!(cuMemFree_v2(pointer));
    let mut many = Vec::new();
    assert_eq!(added(|| many = (0..100_000).map(|_| alloc(KIB)).collect()), 98 * MIB);
    many.into_iter().for_each(|pointer| ok!(cuMemFree_v2(pointer)));
}

#[test]
fn result_codes_are_those_of_the_driver() {
    let _fresh = fresh();
    let mut pointer = 77;
    assert_eq!(result!(cuMemFree_v2(0)), 0);
    assert_eq!(result!(cuMemFree_v2(0xdead000)), 1);
    assert_eq!(result!(cuMemAlloc_v2(Out::from(&mut pointer), 0)), 1);
    assert_eq!(result!(cuMemAlloc_v2(Out::from(&mut pointer), 1 << 45)), 2);
    assert_eq!(pointer, 77, "a refusal leaves the output alone");
    let again = alloc(MIB);
    ok!(cuMemFree_v2(again));
    assert_eq!(result!(cuMemFree_v2(again)), 1);
    assert_eq!(result!(cuMemCreate(Out::from(&mut pointer), 1000, In::from(&device_prop()), 0)), 1);
    assert_eq!(result!(cuMemFreeAsync(0xdead000, LEGACY)), 1);
    assert_eq!(result!(cuMemGetAddressRange_v2(Out::none(), Out::none(), 0xdead000)), 0);
    let to = Out::from(&mut pointer);
    assert_eq!(result!(cuMemGetAddressRange_v2(to, Out::none(), 0xdead000)), 500);
    assert_eq!(result!(cuDeviceGet(Out::from(&mut 0), 99)), 101);
    assert_eq!(result!(cuGetExportTable(Out::none(), In::none())), 500);
    ok!(cuMemGetInfo_v2(Out::none(), Out::from(&mut 0)));
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(Out::from(&mut pool), 0));
    assert_eq!(result!(cuMemPoolDestroy(pool)), 1);
    let without = std::thread::spawn(|| {
        let allocated = result!(cuMemAlloc_v2(Out::from(&mut 0), 1));
        [allocated, result!(cuCtxGetDevice(Out::from(&mut 0)))]
    });
    assert_eq!(without.join().unwrap(), [201, 201]);
}

fn attribute(pool: Handle, which: i32) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, which, Out::from(&mut value).cast()));
    value
}

#[test]
fn pools_grow_in_steps_and_keep_what_is_freed() {
    let _fresh = fresh();
    let (mut pool, mut pointer) = (null_mut(), 0);
    ok!(cuDeviceGetDefaultMemPool(Out::from(&mut pool), 0));
    let grown = added(|| ok!(cuMemAllocAsync(Out::from(&mut pointer), 100 << 20, LEGACY)));
    assert_eq!(grown, 128 * MIB);
    assert_eq!((attribute(pool, 5), attribute(pool, 7)), (128 * MIB, 100 * MIB));
    ok!(cuMemFreeAsync(pointer, LEGACY));
    assert_eq!(attribute(pool, 5), 128 * MIB, "kept until the stream is waited for");
    ok!(cuStreamSynchronize(LEGACY));
    assert_eq!(attribute(pool, 5), 0);
    let mut threshold = u64::MAX;
    ok!(cuMemPoolSetAttribute(pool, 4, Out::from(&mut threshold).cast()));
    ok!(cuMemAllocAsync(Out::from(&mut pointer), 1000, LEGACY));
    assert_eq!((attribute(pool, 5), attribute(pool, 7)), (32 * MIB, 1000));
    ok!(cuMemFreeAsync(pointer, LEGACY));
    ok!(cuStreamSynchronize(LEGACY));
    assert_eq!(attribute(pool, 5), 32 * MIB, "kept up to the threshold");
    // What a pool keeps unused is given up when the device is full.
    let big = alloc(23 * G + 470 * MIB);
    assert_eq!(attribute(pool, 5), 0);
    ok!(cuMemFree_v2(big));
    ok!(cuMemAllocAsync(Out::from(&mut pointer), 1000, LEGACY));
    ok!(cuMemFree_v2(pointer));
    ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(attribute(pool, 5), 0);
    threshold = 0;
    ok!(cuMemPoolSetAttribute(pool, 4, Out::from(&mut threshold).cast()));
}

#[test]
fn graph_memory_stays_until_it_is_trimmed() {
    let _fresh = fresh();
    let [mut graph, mut exec, mut first, mut last] = [null_mut(); 4];
    ok!(cuGraphCreate(Out::from(&mut graph), 0));
    let pool = PoolProps::of_device(0);
    let mut params =
        AllocNodeParams { pool, access: null(), access_count: 0, size: 200 << 20, pointer: 0 };
    let stages = [
        added(|| {
            let (to, of) = (Out::from(&mut first), Out::from(&mut params));
            ok!(cuGraphAddMemAllocNode(to, graph, In::none(), 0, of));
            let (to, behind) = (Out::from(&mut last), In::from(&first));
            ok!(cuGraphAddMemFreeNode(to, graph, behind, 1, params.pointer));
        }),
        added(|| ok!(cuGraphInstantiateWithFlags(Out::from(&mut exec), graph, 0))),
        added(|| ok!(cuGraphUpload(exec, LEGACY))),
        added(|| ok!(cuGraphLaunch(exec, LEGACY))),
        added(|| {
            ok!(cuGraphExecDestroy(exec));
            ok!(cuGraphDestroy(graph));
        }),
    ];
    assert_eq!(stages, [0, 0, 224 * MIB, 0, 0]);
    let mut reserved = 0u64;
    ok!(cuDeviceGetGraphMemAttribute(0, 2, Out::from(&mut reserved).cast()));
    assert_eq!(reserved, 224 * MIB);
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!(used(), 526 * MIB + 832 * KIB);
}

#[test]
fn capture_makes_nodes_and_refuses_what_waits() {
    let _fresh = fresh();
    let (mut stream, mut graph, mut exec, mut pointer) = (null_mut(), null_mut(), null_mut(), 0);
    ok!(cuStreamCreate(Out::from(&mut stream), 1));
    let arg = StreamArg(stream as usize);
    ok!(cuStreamBeginCapture_v2(arg, 0));
    assert_eq!(added(|| ok!(cuMemAllocAsync(Out::from(&mut pointer), 3 << 20, arg))), 0);
    ok!(cuMemsetD8Async(pointer, 5, 3 << 20, arg));
    ok!(cuStreamEndCapture(arg, Out::from(&mut graph)));
    ok!(cuGraphInstantiateWithFlags(Out::from(&mut exec), graph, 0));
    assert_eq!(added(|| ok!(cuGraphLaunch(exec, arg))), 32 * MIB);
    let mut back = [0u8; 4];
    ok!(cuMemcpyDtoH_v2(Out::from(back.as_mut_ptr()), pointer, 4));
    assert_eq!(back, [5; 4]);
    assert_eq!(result!(cuGraphLaunch(exec, arg)), 1, "its memory is still live");
    ok!(cuMemFree_v2(pointer));
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));

    ok!(cuStreamBeginCapture_v2(arg, 0));
    assert_eq!(result!(cuMemAlloc_v2(Out::from(&mut pointer), 4096)), 900);
    assert_eq!(result!(cuMemAllocAsync(Out::from(&mut pointer), 4096, arg)), 901);
    assert_eq!(result!(cuStreamSynchronize(arg)), 900);
    assert_eq!(result!(cuStreamEndCapture(arg, Out::from(&mut graph))), 901);
    ok!(cuStreamDestroy_v2(arg));
}

#[test]
fn arrays_take_what_was_measured() {
    let _fresh = fresh();
    let mut list = Vec::new();
    for (side, count, bytes) in [(4096, 1, 256 * MIB), (64, 64, 4 * MIB), (256, 64, 64 * MIB)] {
        let desc = ArrayDesc { width: side, height: side, format: 0x20, channels: 4 };
        let bytes_added = added(|| {
            for _ in 0..count {
                let mut array = null_mut();
                ok!(cuArrayCreate_v2(Out::from(&mut array), In::from(&desc)));
                list.push(array);
            }
        });
        assert_eq!(bytes_added, bytes, "{side}");
    }
    list.into_iter().for_each(|array| ok!(cuArrayDestroy(array)));
    let desc =
        Array3dDesc { width: 2048, height: 2048, depth: 0, format: 0x20, channels: 4, flags: 0 };
    let mut mipmapped = null_mut();
    let to = Out::from(&mut mipmapped);
    assert_eq!(added(|| ok!(cuMipmappedArrayCreate(to, In::from(&desc), 5))), 86 * MIB);
    ok!(cuMipmappedArrayDestroy(mipmapped));
}

#[test]
fn managed_memory_counts_when_touched() {
    let _fresh = fresh();
    let mut pointer = 0;
    assert_eq!(added(|| ok!(cuMemAllocManaged(Out::from(&mut pointer), 256 << 20, 1))), 0);
    let shown = || driver().devices.shared.processes(0)[0].1;
    let before = shown();
    assert_eq!(added(|| ok!(cuMemsetD8_v2(pointer, 1, 256 << 20))), 256 * MIB);
    assert_eq!(shown(), before, "NVML leaves it out");
    ok!(cuMemFree_v2(pointer));
}

#[test]
fn a_larger_stack_takes_memory_of_the_device() {
    let _fresh = fresh();
    let mut stack = 0;
    ok!(cuCtxGetLimit(Out::from(&mut stack), 0));
    assert_eq!(stack, 1024);
    assert_eq!(added(|| ok!(cuCtxSetLimit(0, 16 << 10))), 3960 * MIB);
    assert_eq!(added(|| ok!(cuCtxSetLimit(2, 512 << 20))), 0);
    ok!(cuCtxSetLimit(0, 1024));
    assert_eq!(used(), 526 * MIB + 832 * KIB);
    let mut second = null_mut();
    assert_eq!(added(|| ok!(cuCtxCreate_v2(Out::from(&mut second), 0, 0))), 523 * MIB + 576 * KIB);
    ok!(cuCtxDestroy_v2(second));
}

#[test]
fn virtual_memory_lives_until_its_last_reference() {
    let _fresh = fresh();
    let (mut handle, mut again, mut address) = (0, 0, 0);
    let size = 64usize << 20;
    let to = Out::from(&mut handle);
    assert_eq!(added(|| ok!(cuMemCreate(to, size, In::from(&device_prop()), 0))), 64 * MIB);
    ok!(cuMemAddressReserve(Out::from(&mut address), 2 * size, 0, 0, 0));
    let second = address + size as u64;
    ok!(cuMemMap(address, size, 0, handle, 0));
    ok!(cuMemMap(second, size, 0, handle, 0));
    assert_eq!(result!(cuMemsetD8_v2(address, 1, 16)), 1, "no access yet");
    let access = AccessDesc { location: device_prop().location, flags: 3 };
    ok!(cuMemSetAccess(address, 2 * size, In::from(&access), 1));
    ok!(cuMemsetD8_v2(address, 9, 16));
    let mut back = [0u8; 16];
    ok!(cuMemcpyDtoH_v2(Out::from(back.as_mut_ptr()), second, 16));
    assert_eq!(back, [9; 16], "two mappings of the same bytes");
    ok!(cuMemRetainAllocationHandle(Out::from(&mut again), address as *mut c_void));
    assert_eq!(again, handle);
    ok!(cuMemRelease(again));
    ok!(cuMemRelease(handle));
    assert_eq!(result!(cuMemRelease(handle)), 1);
    assert_eq!(result!(cuMemUnmap(address, 1 << 20)), 1, "no part of a mapping");
    ok!(cuMemUnmap(address, size));
    assert_eq!(used(), 526 * MIB + 832 * KIB + 64 * MIB, "one mapping is left");
    assert_eq!(result!(cuMemAddressFree(address, 2 * size)), 1);
    ok!(cuMemUnmap(address, 2 * size));
    ok!(cuMemAddressFree(address, 2 * size));
    assert_eq!(used(), 526 * MIB + 832 * KIB);
}

#[test]
fn copies_move_bytes() {
    let _fresh = fresh();
    let (one, two) = (alloc(MIB), alloc(4 * MIB));
    let sent: Vec<u8> = (0..=255).collect();
    let mut back = vec![0u8; 256];
    ok!(cuMemcpyHtoD_v2(one + 100, In::from(sent.as_ptr()), 256));
    ok!(cuMemcpyAsync(two + 3, one + 100, 256, LEGACY));
    ok!(cuMemcpyAsync(back.as_mut_ptr() as u64, two + 3, 256, LEGACY));
    assert_eq!(back, sent);
    let past_the_end = one + MIB - 1;
    assert_eq!(result!(cuMemcpyHtoD_v2(past_the_end, In::from(sent.as_ptr()), 2)), 1);
    ok!(cuMemsetD32_v2(one, 0x01020304, 4));
    ok!(cuMemcpyDtoH_v2(Out::from(back.as_mut_ptr()), one, 8));
    assert_eq!(back[..8], [4, 3, 2, 1, 4, 3, 2, 1]);
    ok!(cuMemFree_v2(one));
    ok!(cuMemFree_v2(two));
}

#[test]
fn a_context_takes_its_memory_with_it() {
    let _fresh = fresh();
    let (mut context, mut pooled) = (null_mut(), 0);
    ok!(cuCtxCreate_v2(Out::from(&mut context), 0, 0));
    alloc(100 * MIB);
    ok!(cuMemAllocAsync(Out::from(&mut pooled), 1 << 20, LEGACY));
    ok!(cuCtxDestroy_v2(context));
    assert_eq!(used(), 526 * MIB + 832 * KIB + 32 * MIB, "pool memory is not the context's");
    ok!(cuMemFree_v2(pooled));
}

#[test]
fn look_ups_as_measured() {
    let _fresh = fresh();
    let ask = |name: &std::ffi::CStr, version, flags| {
        let (mut out, mut status) = (7 as *mut c_void, -1);
        let (name, to) = (In::from(name.as_ptr()), Out::from(&mut out));
        let code = result!(cuGetProcAddress_v2(name, to, version, flags, Out::from(&mut status)));
        (code, out as usize, status)
    };
    assert_eq!(ask(c"cuNope", 12000, 0), (0, 0, 1));
    assert_eq!(ask(c"", 12000, 0), (0, 0, 1));
    assert_eq!(ask(c"cuMemAlloc_v2", 12000, 0), (0, 0, 1), "base names only");
    assert_eq!(ask(c"cuMemAllocAsync", 11000, 0), (0, 0, 2));
    assert_eq!(ask(c"cuMemAlloc", 99000, 0), (1, 7, -1));
    assert_eq!(ask(c"cuMemAlloc", 12000, 4), (1, 7, -1));
    assert_eq!(ask(c"cuStreamSynchronize", 2000, 2), (0, 0, 2));
    let at = |function: *const ()| (0, function as usize, 0);
    assert_eq!(ask(c"cuMemAlloc", 3020, 0), at(cuMemAlloc_v2::plain as *const ()));
    assert_eq!(ask(c"cuMemAlloc", 2000, 2), at(cuMemAlloc::plain as *const ()));
    assert_eq!(ask(c"cuGetProcAddress", 11030, 0), at(cuGetProcAddress::plain as *const ()));
    assert_eq!(ask(c"cuGetProcAddress", 12000, 0), at(cuGetProcAddress_v2::plain as *const ()));
    let twin = at(cuStreamSynchronize::twin as *const ());
    assert_eq!(ask(c"cuStreamSynchronize", 7000, 2), twin);
    let legacy = at(cuStreamSynchronize::plain as *const ());
    assert_eq!(ask(c"cuStreamSynchronize", 7000, 1), legacy);
}

#[test]
fn no_two_exports_share_an_address() {
    let mut all = Vec::new();
    crate::entry::table::add_exports(&mut all);
    crate::entry::resolve::add_exports(&mut all);
    all.sort_by_key(|export| export.address);
    for pair in all.windows(2) {
        assert_ne!(pair[0].address, pair[1].address, "{} {}", pair[0].symbol, pair[1].symbol);
    }
}

#[test]
fn threads_allocate_and_free() {
    let _fresh = fresh();
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(Out::from(&mut context)));
    let context = context as usize;
    let work = |thread: u64| {
        ok!(cuCtxSetCurrent(context as Handle));
        for round in 0..2000u64 {
            let (mut pooled, size) = (0, 1 + (round as usize % 5) * 65536);
            let plain = alloc((round * 7919 + thread) % (3 * MIB) + 1);
            ok!(cuMemAllocAsync(Out::from(&mut pooled), size, LEGACY));
            ok!(cuMemFreeAsync(pooled, LEGACY));
            ok!(cuMemFree_v2(plain));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    ok!(cuCtxSynchronize());
    assert_eq!(used(), 526 * MIB + 832 * KIB);
}
