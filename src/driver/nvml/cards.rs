//! The cards with their processes, as nvidia-smi shows them.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use libloading::Library;
use vramtrace_format::uuid;

use super::super::Error;
use super::{Count, Plain, check, open};

type Handle = usize;
type TextOf = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
type HandleAt = unsafe extern "C" fn(c_uint, *mut Handle) -> c_int;
type MemoryOf = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
type UtilizationOf = unsafe extern "C" fn(Handle, *mut Utilization) -> c_int;
type ProcessesOf = unsafe extern "C" fn(Handle, *mut c_uint, *mut Process) -> c_int;
type SamplesOf = unsafe extern "C" fn(Handle, *mut Sample, *mut c_uint, c_ulonglong) -> c_int;

const INSUFFICIENT_SIZE: c_int = 7;
/// NVML's value for "not available".
const UNKNOWN_BYTES: u64 = u64::MAX;
/// Processes and samples of one card that are read.
const MOST: usize = 4096;

/// nvmlMemory_v2_t: `used` is without the bytes that the driver reserves, as in nvidia-smi.
#[repr(C)]
#[derive(Default)]
struct Memory {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// nvmlUtilization_t, percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// nvmlProcessInfo_t.
#[repr(C)]
#[derive(Clone, Default)]
struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// nvmlProcessUtilizationSample_t, percent.
#[repr(C)]
#[derive(Clone, Default)]
struct Sample {
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

/// NVML, initialised until the process ends. Its calls may never return: only a thread of its own makes them.
pub struct Cards {
    library: Library,
    /// Of each card the time of the latest sample of a process, µs.
    sampled_us: BTreeMap<u32, u64>,
    /// The latest sample by card and pid, percent, and when it was read.
    samples: BTreeMap<(u32, u32), (u32, Instant)>,
}

/// Samples are taken once a second or more often. After this time one says nothing about now.
const SAMPLE_LASTS: Duration = Duration::from_secs(3);

impl Cards {
    pub fn open() -> Result<Cards, Error> {
        let library = open()?;
        // SAFETY: the type of the library's interface.
        unsafe {
            let init = library.get::<Plain>(b"nvmlInit_v2").map_err(Error::NotFound)?;
            check("nvmlInit_v2", init())?;
        }
        Ok(Cards { library, sampled_us: BTreeMap::new(), samples: BTreeMap::new() })
    }

    /// All cards now. What NVML does not say of a card is left empty.
    pub fn read(&mut self) -> Result<Vec<CardFacts>, Error> {
        let mut devices = 0;
        // SAFETY: the types of the library's interface, and variables of our own.
        let handle_at = unsafe {
            let count = self.library.get::<Count>(b"nvmlDeviceGetCount_v2");
            check("nvmlDeviceGetCount_v2", count.map_err(Error::NotFound)?(&mut devices))?;
            let handle = self.library.get::<HandleAt>(b"nvmlDeviceGetHandleByIndex_v2");
            *handle.map_err(Error::NotFound)?
        };
        let mut cards = Vec::new();
        for index in 0..devices {
            let mut handle = 0;
            // SAFETY: a variable of our own.
            if unsafe { handle_at(index, &mut handle) } == 0
                && let Some(card) = self.card(index, handle)
            {
                cards.push(card);
            }
        }
        Ok(cards)
    }

    /// `None`: a card without a UUID cannot be matched with those of the processes.
    fn card(&mut self, index: u32, handle: Handle) -> Option<CardFacts> {
        let uuid = self.text(handle, "nvmlDeviceGetUUID")?;
        let uuid = uuid::parse(uuid.strip_prefix("GPU-")?)?;
        let memory = self.memory(handle).unwrap_or_default();
        let mut card = CardFacts {
            index,
            uuid,
            name: self.text(handle, "nvmlDeviceGetName").unwrap_or_default(),
            total: memory.total.saturating_sub(memory.reserved),
            used: memory.used,
            utilization: self.utilization(handle),
            processes: BTreeMap::new(),
        };
        for kind in ["Compute", "Graphics"] {
            for process in self.processes(handle, kind) {
                let known = card.processes.entry(process.pid).or_default();
                known.bytes = known.bytes.max(Some(process.used).filter(|n| *n != UNKNOWN_BYTES));
            }
        }
        self.add_samples(handle, &mut card);
        Some(card)
    }

    fn text(&self, handle: Handle, name: &str) -> Option<String> {
        let mut text = [0 as c_char; 128];
        // SAFETY: the type of these functions; the text keeps its last NUL.
        unsafe {
            let ask = self.library.get::<TextOf>(name.as_bytes()).ok()?;
            (ask(handle, text.as_mut_ptr(), text.len() as c_uint - 1) == 0)
                .then(|| CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
        }
    }

    fn memory(&self, handle: Handle) -> Option<Memory> {
        let version = 2 << 24 | size_of::<Memory>() as c_uint;
        let mut memory = Memory { version, ..Memory::default() };
        // SAFETY: the type of this version, and a variable of our own.
        unsafe {
            let ask = self.library.get::<MemoryOf>(b"nvmlDeviceGetMemoryInfo_v2").ok()?;
            (ask(handle, &mut memory) == 0).then_some(memory)
        }
    }

    fn utilization(&self, handle: Handle) -> Option<u32> {
        let mut found = Utilization::default();
        // SAFETY: the type of the library's interface, and a variable of our own.
        unsafe {
            let ask = self.library.get::<UtilizationOf>(b"nvmlDeviceGetUtilizationRates").ok()?;
            (ask(handle, &mut found) == 0).then_some(found.gpu)
        }
    }

    /// `kind`: Compute or Graphics. Versions 2 and 3 have the same list.
    fn processes(&self, handle: Handle, kind: &str) -> Vec<Process> {
        let find = |version: &str| {
            let name = format!("nvmlDeviceGet{kind}RunningProcesses_{version}");
            // SAFETY: the type of these two versions.
            unsafe { self.library.get::<ProcessesOf>(name.as_bytes()).ok() }
        };
        let Some(ask) = find("v3").or_else(|| find("v2")) else { return Vec::new() };
        // SAFETY: the list has room for as many as the count says.
        listed(|count, list| unsafe { ask(handle, count, list) })
    }

    fn add_samples(&mut self, handle: Handle, card: &mut CardFacts) {
        // SAFETY: the type of the library's interface.
        let ask = unsafe { self.library.get::<SamplesOf>(b"nvmlDeviceGetProcessUtilization") };
        let Ok(ask) = ask else { return };
        let since_us = self.sampled_us.get(&card.index).copied().unwrap_or(0);
        // SAFETY: the list has room for as many as the count says.
        let mut samples: Vec<Sample> =
            listed(|count, list| unsafe { ask(handle, list, count, since_us) });
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

/// A list of NVML: the count goes in as room and comes out as the number of entries. Empty on an error.
fn listed<T: Clone + Default>(ask: impl Fn(*mut c_uint, *mut T) -> c_int) -> Vec<T> {
    let mut list = vec![T::default(); 64];
    for _ in 0..3 {
        let mut count = list.len() as c_uint;
        match ask(&mut count, list.as_mut_ptr()) {
            0 => {
                list.truncate(count as usize);
                return list;
            }
            // Between two calls there may be more.
            INSUFFICIENT_SIZE => list.resize((count as usize + 16).clamp(64, MOST), T::default()),
            _ => break,
        }
    }
    Vec::new()
}
