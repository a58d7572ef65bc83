//! NVML: what `doctor` checks of it, and what `top` shows of the cards.

#[cfg(feature = "top")]
pub mod cards;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::Error;

type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type Handle = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int;
type Memory = unsafe extern "C" fn(*mut c_void, *mut MemoryInfo) -> c_int;
type Processes = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int;

/// The driver version and the devices that NVML reports.
#[derive(Clone, Debug)]
pub struct Nvml {
    pub driver_version: String,
    pub devices: u32,
    /// Those that answer.
    pub cards: Vec<Card>,
}

/// What is in use on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    pub index: u32,
    pub used_bytes: u64,
    /// Processes that compute, and those that draw.
    pub computing: usize,
    pub drawing: usize,
    /// False: processes are not listed, or without their memory.
    pub has_figures: bool,
}

/// As `nvmlDeviceGetMemoryInfo_v2` fills it. What the driver reserves is not in use, other than before.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryInfo {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Its size, and the number of its form.
const MEMORY_VERSION: c_uint = size_of::<MemoryInfo>() as c_uint | 2 << 24;

/// As `nvmlDeviceGetComputeRunningProcesses_v3` fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The memory of a process that NVML does not know.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Processes of a card that are looked at.
const PROCESSES: usize = 256;

fn check(name: &'static str, result: c_int) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        result => Err(Error::Nvml { name, result }),
    }
}

fn open() -> Result<Library, Error> {
    // SAFETY: NVML's initialisers are those that nvidia-smi runs.
    unsafe { Library::new("libnvidia-ml.so.1") }.map_err(Error::NotFound)
}

pub fn ask() -> Result<Nvml, Error> {
    let library = open()?;
    // SAFETY: the types are those of the library's interface; the text keeps its last NUL.
    unsafe {
        let find = Error::NotFound;
        let init = library.get::<Plain>(b"nvmlInit_v2").map_err(find)?;
        let version = library.get::<Text>(b"nvmlSystemGetDriverVersion").map_err(find)?;
        let count = library.get::<Count>(b"nvmlDeviceGetCount_v2").map_err(find)?;
        let shutdown = library.get::<Plain>(b"nvmlShutdown").map_err(find)?;
        check("nvmlInit_v2", init())?;
        let (mut text, mut devices) = ([0 as c_char; 96], 0);
        let found = check(
            "nvmlSystemGetDriverVersion",
            version(text.as_mut_ptr(), text.len() as c_uint - 1),
        )
        .and_then(|()| check("nvmlDeviceGetCount_v2", count(&mut devices)));
        let cards = (0..devices).filter_map(|index| card(&library, index)).collect();
        shutdown();
        found?;
        let driver_version = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        Ok(Nvml { driver_version, devices, cards })
    }
}

/// `None`: the card, or a driver that is too old, does not answer.
///
/// # Safety
/// The library is NVML, initialised.
unsafe fn card(library: &Library, index: u32) -> Option<Card> {
    // SAFETY: the types are those of the library's interface, of the version that the names tell.
    unsafe {
        let handle = library.get::<Handle>(b"nvmlDeviceGetHandleByIndex_v2").ok()?;
        let memory = library.get::<Memory>(b"nvmlDeviceGetMemoryInfo_v2").ok()?;
        let mut device = std::ptr::null_mut();
        let mut info = MemoryInfo { version: MEMORY_VERSION, ..MemoryInfo::default() };
        check("", handle(index, &mut device)).ok()?;
        check("", memory(device, &mut info)).ok()?;
        let computing = processes(library, b"nvmlDeviceGetComputeRunningProcesses_v3", device);
        let drawing = processes(library, b"nvmlDeviceGetGraphicsRunningProcesses_v3", device);
        let known = |list: &Vec<ProcessInfo>| list.iter().all(|it| it.used != NOT_AVAILABLE);
        Some(Card {
            index,
            used_bytes: info.used,
            has_figures: computing.as_ref().is_some_and(known),
            computing: computing.map_or(0, |list| list.len()),
            drawing: drawing.map_or(0, |list| list.len()),
        })
    }
}

/// # Safety
/// The library is NVML, the device one of its handles, and the function fills `ProcessInfo`.
unsafe fn processes(
    library: &Library,
    name: &[u8],
    device: *mut c_void,
) -> Option<Vec<ProcessInfo>> {
    let mut list = vec![ProcessInfo::default(); PROCESSES];
    let mut count = PROCESSES as c_uint;
    // SAFETY: as the caller says; there is room for so many.
    let result = unsafe {
        let list_of = library.get::<Processes>(name).ok()?;
        list_of(device, &mut count, list.as_mut_ptr())
    };
    list.truncate(count as usize);
    // Of more than there is room for, none is known.
    const INSUFFICIENT_SIZE: c_int = 7;
    match result {
        0 => Some(list),
        INSUFFICIENT_SIZE => Some(vec![ProcessInfo::default(); count as usize]),
        _ => None,
    }
}
