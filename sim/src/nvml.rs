//! NVML: devices, their memory, the processes on them. Its ordinals know nothing of
//! CUDA_VISIBLE_DEVICES.

use crate::device::{self, Devices};
use crate::param::{In, Out};
use std::ffi::{c_char, c_uint};
use std::sync::atomic::{AtomicI32, Ordering::*};

type Result = std::result::Result<(), i32>;

const UNINITIALIZED: i32 = 1;
const INVALID_ARGUMENT: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;
const DRIVER_NOT_LOADED: i32 = 9;
const INSUFFICIENT_SIZE: i32 = 7;
const GPU_IS_LOST: i32 = 15;
const VERSION_MISMATCH: i32 = 25;

/// The memory of a process that NVML does not know.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Handles are the index plus this, so that NULL and garbage are refused.
const HANDLE: usize = 0x6e00_0000;
const DRIVER_TEXT: &str = "580.00";

static USERS: AtomicI32 = AtomicI32::new(0);

fn devices() -> std::result::Result<&'static Devices, i32> {
    if USERS.load(Relaxed) <= 0 {
        return Err(UNINITIALIZED);
    }
    device::devices().map_err(|_| DRIVER_NOT_LOADED)
}

fn index(handle: usize) -> std::result::Result<usize, i32> {
    let devices = devices()?;
    handle.checked_sub(HANDLE).filter(|&index| index < devices.count).ok_or(INVALID_ARGUMENT)
}

fn put<T>(out: Out<T>, value: T) -> Result {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    out.set(value);
    Ok(())
}

fn put_text(out: Out<c_char>, length: c_uint, text: &str) -> Result {
    if out.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if (length as usize) < text.len() + 1 {
        return Err(INSUFFICIENT_SIZE);
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        out.at(at).set(byte as c_char);
    }
    Ok(())
}

fn text(from: In<c_char>) -> std::result::Result<String, i32> {
    from.text().map_err(|_| INVALID_ARGUMENT)
}

macro_rules! nvml {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            let run = || -> Result { $body };
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(Ok(())) => 0,
                Ok(Err(code)) => code,
                Err(_) => 999,
            }
        }
    )*};
}

#[repr(C)]
struct MemoryV1 {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
struct ProcessV2 {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

#[repr(C)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

#[repr(C)]
struct Sample {
    pid: u32,
    time_us: u64,
    gpu: u32,
    memory: u32,
    encoder: u32,
    decoder: u32,
}

/// Copies a list the NVML way: the count comes in as room and goes out as need.
fn put_list<T>(count: Out<c_uint>, room: Out<T>, list: Vec<T>) -> Result {
    let fits = count.get().map_err(|_| INVALID_ARGUMENT)? as usize;
    count.set(list.len() as c_uint);
    if list.is_empty() {
        return Ok(());
    }
    if fits < list.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    if room.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    for (at, item) in list.into_iter().enumerate() {
        room.at(at).set(item);
    }
    Ok(())
}

fn processes<T>(handle: usize, make: fn(u32, u64) -> T) -> std::result::Result<Vec<T>, i32> {
    let index = index(handle)?;
    let list = devices()?.shared.processes(index);
    fail_late()?;
    if let Some(delay) = delay() {
        std::thread::sleep(delay);
    }
    // As seen from a container: other numbers than the processes know themselves by.
    let strangers = is_set_to("strangers") || is_set_to("strangers-exclusive");
    let beside = if strangers { 1 << 22 } else { 0 };
    let figure = |used| if is_set_to("no-figures") { NOT_AVAILABLE } else { used };
    Ok(list.into_iter().map(|(pid, used)| make(pid + beside, figure(used))).collect())
}

fn process_v2(pid: u32, used: u64) -> ProcessV2 {
    ProcessV2 { pid, used, gpu_instance: u32::MAX, compute_instance: u32::MAX }
}

/// `VRAMTRACE_SIM_NVML`: `absent`; `strangers` where it knows other pids than the processes do, `strangers-exclusive`
/// the same on cards that one process at a time can use;
/// `no-figures` where it knows no memory by process, as on WSL2; `slow` as with many processes on a
/// device, `slow:US` with a time in microseconds.
fn is_set_to(how: &str) -> bool {
    std::env::var_os("VRAMTRACE_SIM_NVML").is_some_and(|value| value == how)
}

/// What a list takes.
fn delay() -> Option<std::time::Duration> {
    let setting = std::env::var("VRAMTRACE_SIM_NVML").ok()?;
    let us = match setting.split_once(':') {
        None if setting == "slow" => 5000,
        Some(("slow", us)) => us.parse().ok()?,
        _ => return None,
    };
    Some(std::time::Duration::from_micros(us))
}

/// `hangs:N` and `lost:N`: N lists are given, then the calls hang or fail.
fn fail_late() -> Result {
    static LISTS: AtomicI32 = AtomicI32::new(0);
    let setting = std::env::var("VRAMTRACE_SIM_NVML").unwrap_or_default();
    let Some((how, after)) = setting.split_once(':') else { return Ok(()) };
    if LISTS.fetch_add(1, Relaxed) < after.parse().unwrap_or(0) {
        return Ok(());
    }
    match how {
        "hangs" => loop {
            std::thread::park();
        },
        "lost" => Err(GPU_IS_LOST),
        _ => Ok(()),
    }
}

/// `busy:N`: the utilization of every card and process, percent.
fn busy() -> u32 {
    let setting = std::env::var("VRAMTRACE_SIM_NVML").unwrap_or_default();
    setting.strip_prefix("busy:").and_then(|percent| percent.parse().ok()).unwrap_or(0)
}

fn init() -> Result {
    if is_set_to("absent") {
        return Err(DRIVER_NOT_LOADED);
    }
    device::devices().map_err(|_| DRIVER_NOT_LOADED)?;
    USERS.fetch_add(1, Relaxed);
    Ok(())
}

nvml! {
    nvmlInit_v2() { init() }
    nvmlShutdown() {
        devices()?;
        USERS.fetch_sub(1, Relaxed);
        Ok(())
    }

    nvmlSystemGetDriverVersion(out: Out<c_char>, length: c_uint) {
        devices()?;
        put_text(out, length, DRIVER_TEXT)
    }

    nvmlDeviceGetCount_v2(out: Out<c_uint>) { put(out, devices()?.count as c_uint) }

    nvmlDeviceGetHandleByIndex_v2(at: c_uint, out: Out<usize>) {
        index(HANDLE + at as usize)?;
        put(out, HANDLE + at as usize)
    }

    nvmlDeviceGetHandleByUUID(uuid: In<c_char>, out: Out<usize>) {
        let (uuid, count) = (text(uuid)?, devices()?.count);
        let found = (0..count).find(|&index| device::uuid_text(index) == uuid);
        put(out, HANDLE + found.ok_or(NOT_FOUND)?)
    }

    nvmlDeviceGetName(handle: usize, out: Out<c_char>, length: c_uint) {
        index(handle)?;
        put_text(out, length, device::NAME)
    }

    nvmlDeviceGetUUID(handle: usize, out: Out<c_char>, length: c_uint) {
        put_text(out, length, &device::uuid_text(index(handle)?))
    }

    nvmlDeviceGetMemoryInfo(handle: usize, out: Out<MemoryV1>) {
        let (index, devices) = (index(handle)?, devices()?);
        let total = devices.bytes + device::RESERVED;
        let free = devices.bytes - devices.shared.used(index);
        put(out, MemoryV1 { total, free, used: total - free })
    }

    nvmlDeviceGetMemoryInfo_v2(handle: usize, out: Out<MemoryV2>) {
        let (index, devices) = (index(handle)?, devices()?);
        let version = out.cast::<u32>().get().map_err(|_| INVALID_ARGUMENT)?;
        if version != 2 << 24 | size_of::<MemoryV2>() as u32 {
            return Err(VERSION_MISMATCH);
        }
        let used = devices.shared.used(index);
        put(out, MemoryV2 {
            version,
            total: devices.bytes + device::RESERVED,
            reserved: device::RESERVED,
            free: devices.bytes - used,
            used,
        })
    }

    nvmlDeviceGetComputeRunningProcesses_v3(handle: usize, count: Out<c_uint>, to: Out<ProcessV2>) {
        put_list(count, to, processes(handle, process_v2)?)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v3(handle: usize, count: Out<c_uint>, to: Out<ProcessV2>) {
        index(handle)?;
        put_list(count, to, Vec::new())
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v3(handle: usize, count: Out<c_uint>, to: Out<ProcessV2>) {
        index(handle)?;
        put_list(count, to, Vec::new())
    }

    nvmlDeviceGetUtilizationRates(handle: usize, out: Out<Utilization>) {
        index(handle)?;
        put(out, Utilization { gpu: busy(), memory: 0 })
    }

    nvmlDeviceGetProcessUtilization(
        handle: usize,
        to: Out<Sample>,
        count: Out<c_uint>,
        since_us: u64
    ) {
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        let time_us = now.unwrap_or_default().as_micros() as u64;
        let list = processes(handle, |pid, _| pid)?;
        if busy() == 0 || list.is_empty() || time_us <= since_us {
            return Err(NOT_FOUND);
        }
        let sample = |pid| Sample { pid, time_us, gpu: busy(), memory: 0, encoder: 0, decoder: 0 };
        put_list(count, to, list.into_iter().map(sample).collect())
    }

    nvmlDeviceGetMigMode(handle: usize, _current: Out<c_uint>, _pending: Out<c_uint>) {
        index(handle)?;
        Err(NOT_SUPPORTED)
    }
}
