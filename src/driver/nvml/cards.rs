//! The cards with their processes, as nvidia-smi shows them.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use vramtrace_format::uuid;

use super::super::Error;
use super::calls::{Calls, Handle, listed, text};

type TextOf = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
type UtilizationOf = unsafe extern "C" fn(Handle, *mut Utilization) -> c_int;
type MigModeOf = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int;
type SamplesOf = unsafe extern "C" fn(Handle, *mut Sample, *mut c_uint, c_ulonglong) -> c_int;

/// NVML has no sample of any process since that time.
const NOT_FOUND: c_int = 6;

/// nvmlUtilization_t, percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
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

/// Reads the cards. NVML's calls may never return: only a thread of its own makes them.
pub struct Cards {
    calls: Calls,
    /// Of each card the time of the latest sample of a process, µs.
    sampled_us: BTreeMap<u32, u64>,
    /// The latest sample by card and pid, percent, and when it was read.
    samples: BTreeMap<(u32, u32), (u32, Instant)>,
}

/// Samples are taken once a second or more often. After this time one says nothing about now.
const SAMPLE_LASTS: Duration = Duration::from_secs(3);

impl Cards {
    pub fn open() -> Result<Cards, Error> {
        let calls = Calls::open()?;
        Ok(Cards { calls, sampled_us: BTreeMap::new(), samples: BTreeMap::new() })
    }

    /// All cards now. What NVML does not say of a card is left empty.
    pub fn read(&mut self) -> Result<Vec<CardFacts>, Error> {
        let devices = self.calls.count()?;
        Ok((0..devices).filter_map(|index| self.card(index)).collect())
    }

    /// `None`: a card without a UUID cannot be matched with those of the processes.
    fn card(&mut self, index: u32) -> Option<CardFacts> {
        let handle = self.calls.handle(index)?;
        let uuid = self.text(handle, "nvmlDeviceGetUUID")?;
        let uuid = uuid::parse(uuid.strip_prefix("GPU-")?)?;
        let memory = self.calls.memory(handle).unwrap_or_default();
        let mut card = CardFacts {
            index,
            uuid,
            name: self.text(handle, "nvmlDeviceGetName").unwrap_or_default(),
            total: memory.total.saturating_sub(memory.reserved),
            used: memory.used,
            utilization: self.utilization(handle),
            tells_utilization: false,
            processes: BTreeMap::new(),
        };
        for kind in ["Compute", "Graphics"] {
            for process in self.calls.processes(handle, kind).unwrap_or_default() {
                let known = card.processes.entry(process.pid).or_default();
                known.bytes = known.bytes.max(process.bytes());
            }
        }
        self.add_samples(handle, &mut card);
        Some(card)
    }

    fn text(&self, handle: Handle, name: &str) -> Option<String> {
        // SAFETY: the type of these functions.
        let ask = unsafe { self.calls.get::<TextOf>(name).ok()? };
        // SAFETY: there is room for so many bytes.
        let (result, text) = text(|out, room| unsafe { ask(handle, out, room) });
        (result == 0).then_some(text)
    }

    fn utilization(&self, handle: Handle) -> Option<u32> {
        let name = "nvmlDeviceGetUtilizationRates";
        // SAFETY: the type of the function.
        let found = unsafe {
            self.calls.value::<UtilizationOf, Utilization>(name, |ask, rates| ask(handle, rates))
        };
        found.map(|rates| rates.gpu)
    }

    /// Whether the card is divided (MIG): then samples are not those of processes.
    fn is_mig(&self, handle: Handle) -> bool {
        type Modes = (c_uint, c_uint);
        // SAFETY: the type of the function.
        let modes = unsafe {
            self.calls.value::<MigModeOf, Modes>("nvmlDeviceGetMigMode", |ask, (now, pending)| {
                ask(handle, now, pending)
            })
        };
        modes.is_some_and(|(now, _)| now != 0)
    }

    fn add_samples(&mut self, handle: Handle, card: &mut CardFacts) {
        // SAFETY: the type of the function.
        let ask = unsafe { self.calls.get::<SamplesOf>("nvmlDeviceGetProcessUtilization") };
        let Ok(ask) = ask else { return };
        let since_us = self.sampled_us.get(&card.index).copied().unwrap_or(0);
        // SAFETY: the list has room for as many as the count says.
        let samples: Result<Vec<Sample>, c_int> =
            listed(|count, list| unsafe { ask(handle, list, count, since_us) });
        card.tells_utilization = matches!(samples, Ok(_) | Err(NOT_FOUND)) && !self.is_mig(handle);
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
