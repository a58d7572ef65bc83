//! NVML: the cards with their processes, as nvidia-smi shows them. The types are those of its interface, of the versions
//! that the names tell.

// `metrics` and `top` are the users of a part of it.
#![cfg_attr(not(feature = "metrics"), allow(dead_code))]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use libloading::Library;
use vramtrace_format::uuid;

use super::{Error, call, text};

type Handle = usize;
/// A function that writes a value of what its first argument names.
type ValueOf<A, T> = unsafe extern "C" fn(A, *mut T) -> c_int;
type TextOf = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
type ListOf<T> = unsafe extern "C" fn(Handle, *mut c_uint, *mut T) -> c_int;
type SamplesOf = unsafe extern "C" fn(Handle, *mut NvmlSample, *mut c_uint, c_ulonglong) -> c_int;

/// The lists of the processes that compute and of those that draw: versions 3 and 2, which have the same type.
const LISTS: [[&str; 2]; 2] = [
    ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
    ["nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"],
];
/// NVML has no sample of any process since that time.
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
/// NVML's value for "not available".
const UNKNOWN_BYTES: u64 = u64::MAX;
/// Maximum number of entries of a list that are read.
const MAX_ENTRIES: usize = 4096;
/// Samples are taken once a second or more often. After this time one says nothing about now.
const SAMPLE_LASTS: Duration = Duration::from_secs(3);

/// nvmlMemory_v2_t: `used` is without the bytes that the driver reserves, as in nvidia-smi.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NvmlMemory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// nvmlProcessInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NvmlProcess {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// nvmlUtilization_t, percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// nvmlProcessUtilizationSample_t, percent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NvmlSample {
    pid: c_uint,
    time_us: u64,
    gpu: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardFacts {
    /// NVML's index, which CUDA_VISIBLE_DEVICES does not change.
    pub index: u32,
    pub uuid: [u8; 16],
    pub name: String,
    pub total: u64,
    pub used: u64,
    /// Percent of the last sample period in which a kernel ran.
    pub utilization: Option<u32>,
    /// NVML gives samples of processes, and one without a sample used no time. False with MIG.
    pub tells_utilization: bool,
    /// By pid in NVML's pid namespace.
    pub processes: BTreeMap<u32, CardProcess>,
}

/// What NVML knows of one process on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CardProcess {
    /// As nvidia-smi shows them. `None`: NVML does not say.
    pub bytes: Option<u64>,
    /// Percent of the last sample period. `None`: no sample.
    pub utilization: Option<u32>,
}

/// Reads the cards. NVML's calls may never return: what must go on makes them on a thread for that alone.
pub struct Cards {
    library: Library,
    /// Of each card the time of the latest sample of a process, µs.
    sampled_us: BTreeMap<u32, u64>,
    /// The latest sample by card and pid, percent, and when it was read.
    samples: BTreeMap<(u32, u32), (u32, Instant)>,
}

impl Cards {
    pub fn open() -> Result<Cards, Error> {
        // SAFETY: NVML's initialisers are those that nvidia-smi runs.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.map_err(Error::NotFound)?;
        // SAFETY: the type of the function.
        unsafe {
            call(&library, "nvmlInit_v2", |init: unsafe extern "C" fn() -> c_int| init())?;
        }
        Ok(Cards { library, sampled_us: BTreeMap::new(), samples: BTreeMap::new() })
    }

    /// The value that a function writes. `None`: there is no such function, or it fails.
    ///
    /// # Safety
    /// [`ValueOf`] with these types is the type of the function with this name.
    unsafe fn value<A, T>(&self, name: &'static str, of: A, mut value: T) -> Option<T> {
        // SAFETY: as the caller says; the value is our own.
        let asked = unsafe { call(&self.library, name, |ask: ValueOf<A, T>| ask(of, &mut value)) };
        asked.ok().map(|()| value)
    }

    pub fn driver_version(&self) -> Result<String, Error> {
        type Version = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
        let name = "nvmlSystemGetDriverVersion";
        // SAFETY: the type of the function; there is room for so many bytes.
        text(|to, room| unsafe { call(&self.library, name, |get: Version| get(to, room)) })
    }

    /// All cards now. What NVML does not say of a card is left empty.
    pub fn read(&mut self) -> Result<Vec<CardFacts>, Error> {
        type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
        let mut devices = 0;
        // SAFETY: the type of the function, and a variable of our own.
        unsafe {
            call(&self.library, "nvmlDeviceGetCount_v2", |get: Count| get(&mut devices))?;
        }
        Ok((0..devices).filter_map(|index| self.card(index)).collect())
    }

    /// `None`: a card without a UUID cannot be matched with those of the processes.
    fn card(&mut self, index: u32) -> Option<CardFacts> {
        let version = 2 << 24 | size_of::<NvmlMemory>() as c_uint;
        let memory = NvmlMemory { version, ..NvmlMemory::default() };
        // SAFETY: the types of these functions.
        let (handle, memory, utilization) = unsafe {
            let handle: Handle = self.value("nvmlDeviceGetHandleByIndex_v2", index, 0)?;
            let rates = Utilization::default();
            (
                handle,
                self.value("nvmlDeviceGetMemoryInfo_v2", handle, memory).unwrap_or_default(),
                self.value("nvmlDeviceGetUtilizationRates", handle, rates).map(|rates| rates.gpu),
            )
        };
        let uuid = self.text(handle, "nvmlDeviceGetUUID")?;
        let mut card = CardFacts {
            index,
            uuid: uuid::parse(uuid.strip_prefix("GPU-")?)?,
            name: self.text(handle, "nvmlDeviceGetName").unwrap_or_default(),
            total: memory.total.saturating_sub(memory.reserved),
            used: memory.used,
            utilization,
            tells_utilization: false,
            processes: BTreeMap::new(),
        };
        for process in LISTS.into_iter().flat_map(|names| self.listed(handle, names)) {
            let known = card.processes.entry(process.pid).or_default();
            let bytes = Some(process.used).filter(|bytes| *bytes != UNKNOWN_BYTES);
            known.bytes = known.bytes.max(bytes);
        }
        self.add_samples(handle, &mut card);
        Some(card)
    }

    fn text(&self, handle: Handle, name: &'static str) -> Option<String> {
        // SAFETY: the type of these functions; there is room for so many bytes.
        text(|to, room| unsafe { call(&self.library, name, |get: TextOf| get(handle, to, room)) })
            .ok()
    }

    /// The running processes of a kind.
    fn listed(&self, handle: Handle, names: [&'static str; 2]) -> Vec<NvmlProcess> {
        let ask = |name| {
            // SAFETY: the type of these functions; the list has room for as many as the count says.
            list(|count, list| unsafe {
                call(&self.library, name, |ask: ListOf<NvmlProcess>| ask(handle, count, list))
            })
        };
        match ask(names[0]) {
            Err(Error::NotFound(_)) => ask(names[1]).unwrap_or_default(),
            found => found.unwrap_or_default(),
        }
    }

    fn add_samples(&mut self, handle: Handle, card: &mut CardFacts) {
        let name = "nvmlDeviceGetProcessUtilization";
        let since_us = self.sampled_us.get(&card.index).copied().unwrap_or(0);
        // SAFETY: the type of the function; the list has room for as many as the count says.
        let samples = list(|count, list| unsafe {
            call(&self.library, name, |ask: SamplesOf| ask(handle, list, count, since_us))
        });
        card.tells_utilization =
            matches!(samples, Ok(_) | Err(Error::Call { result: NOT_FOUND, .. }));
        let mut samples = samples.unwrap_or_default();
        samples.sort_by_key(|sample| sample.time_us);
        let now = Instant::now();
        self.samples.retain(|_, (_, read)| now - *read < SAMPLE_LASTS);
        for sample in samples.iter().filter(|sample| sample.time_us > since_us) {
            self.samples.insert((card.index, sample.pid), (sample.gpu.min(100), now));
        }
        for (pid, process) in &mut card.processes {
            process.utilization = self.samples.get(&(card.index, *pid)).map(|(part, _)| *part);
        }
        if let Some(last) = samples.last() {
            self.sampled_us.insert(card.index, last.time_us.max(since_us));
        }
    }
}

/// A list of NVML: the count goes in as room and comes out as the number of entries.
fn list<T: Clone + Default>(
    ask: impl Fn(*mut c_uint, *mut T) -> Result<(), Error>,
) -> Result<Vec<T>, Error> {
    let mut list = vec![T::default(); 64];
    for attempt in 1.. {
        let mut count = list.len() as c_uint;
        match ask(&mut count, list.as_mut_ptr()) {
            // Between two calls there may be more.
            Err(Error::Call { result: INSUFFICIENT_SIZE, .. }) if attempt < 3 => {
                list.resize((count as usize + 16).clamp(64, MAX_ENTRIES), T::default());
            }
            answer => {
                answer?;
                list.truncate(count as usize);
                break;
            }
        }
    }
    Ok(list)
}
