//! The live page: one small shared file per traced process, outside the trace. Figures for `ps`
//! and `top`, the shim's handshake with `vramtrace run`, and the place for a changed cap.
//!
//! ```text
//! word    0  magic "vtlive\0\0", stored last: no magic, no page
//!         1  version (low 32) | devices in use (high 32)
//!         2  pid (low 32)     | state (high 32)
//!         3  process start, clock ticks since boot
//!         4  start, CLOCK_REALTIME ns        5  start, CLOCK_MONOTONIC ns
//!         6  updates: odd while one is under way
//!         7  length of the trace's path in bytes, 0 = records nothing
//!         8  when updated last, ns since start
//!   16..528  the trace's path (4,096 bytes)
//! 768..1024  16 devices of 16 words each
//! ```

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Length of the page's file.
pub const LIVE_BYTES: usize = 8192;
pub const LIVE_WORDS: usize = LIVE_BYTES / 8;
pub const LIVE_VERSION: u32 = 1;
/// Devices beyond this many have no place; their figures are in the trace alone.
pub const LIVE_DEVICES: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"vtlive\0\0");
const PATH_AT: usize = 16;
const PATH_BYTES: usize = 4096;
const DEVICES_AT: usize = 768;
const DEVICE_WORDS: usize = 16;
/// Words of a device that [`LiveDevice`] fills, then the wanted cap and its number.
const WANTED_AT: usize = 12;
const WANTED_NUMBER_AT: usize = 13;
/// Stands for "no cap".
const NO_CAP: u64 = u64::MAX;

/// Who the process is: fixed at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: u32,
    pub start_ticks: u64,
    pub start_unix_ns: u64,
    pub start_mono_ns: u64,
    /// Path of the trace; empty while nothing is recorded.
    pub trace: String,
}

/// One device's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveDevice {
    pub ordinal: u8,
    pub live: u64,
    pub peak: u64,
    /// Bytes that pools and graphs hold.
    pub reserved: u64,
    /// What the cap counts.
    pub counted: u64,
    pub cap: Option<u64>,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// Events recorded for the device.
    pub events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LiveState {
    /// The shim is loaded; the program has not used the driver's memory.
    Loaded = 0,
    Recording = 1,
    /// Nothing is recorded (off, or stopped); the cap holds.
    NotRecording = 2,
    Ended = 3,
}

/// A mapped live page. One process writes it; others read it and may ask for another cap.
#[derive(Clone, Copy, Debug)]
pub struct LivePage<'m> {
    words: &'m [AtomicU64; LIVE_WORDS],
}

impl<'m> LivePage<'m> {
    /// Fills a fresh page.
    pub fn begin(words: &'m [AtomicU64; LIVE_WORDS], process: &LiveProcess) -> LivePage<'m> {
        let page = LivePage { words };
        page.set(1, u64::from(LIVE_VERSION));
        page.set(2, u64::from(process.pid));
        page.set(3, process.start_ticks);
        page.set(4, process.start_unix_ns);
        page.set(5, process.start_mono_ns);
        page.set_trace(&process.trace);
        words[0].store(MAGIC.to_le(), Ordering::Release);
        page
    }

    /// A page written by a process. `None`: it is none, or of another version.
    pub fn open(words: &'m [AtomicU64; LIVE_WORDS]) -> Option<LivePage<'m>> {
        let page = LivePage { words };
        let magic = u64::from_le(words[0].load(Ordering::Acquire));
        (magic == MAGIC && page.get(1) as u32 == LIVE_VERSION).then_some(page)
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le(self.words[at].load(Ordering::Relaxed))
    }

    fn set(&self, at: usize, value: u64) {
        self.words[at].store(value.to_le(), Ordering::Relaxed);
    }

    /// The path of the trace, once it is open. Longer than 4,096 bytes: none.
    pub fn set_trace(&self, path: &str) {
        let bytes = path.as_bytes();
        let len = if bytes.len() > PATH_BYTES { 0 } else { bytes.len() };
        for (at, chunk) in bytes[..len].chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set(PATH_AT + at, u64::from_le_bytes(word));
        }
        self.words[7].store((len as u64).to_le(), Ordering::Release);
    }

    pub fn set_state(&self, state: LiveState) {
        self.set(2, self.get(2) & 0xFFFF_FFFF | (state as u64) << 32);
    }

    pub fn state(&self) -> Option<LiveState> {
        use LiveState::*;
        let state = (self.get(2) >> 32) as u32;
        [Loaded, Recording, NotRecording, Ended].into_iter().find(|s| *s as u32 == state)
    }

    /// Stores the figures. By one thread at a time: a call while another is under way does
    /// nothing and says false.
    pub fn update(&self, now_ns: u64, devices: &[LiveDevice]) -> bool {
        let count = self.get(6);
        if count & 1 != 0
            || self.words[6]
                .compare_exchange(
                    count.to_le(),
                    (count + 1).to_le(),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        let devices = &devices[..devices.len().min(LIVE_DEVICES)];
        for (index, device) in devices.iter().enumerate() {
            for (at, word) in device.words().into_iter().enumerate() {
                self.set(DEVICES_AT + DEVICE_WORDS * index + at, word);
            }
        }
        self.set(1, u64::from(LIVE_VERSION) | (devices.len() as u64) << 32);
        self.set(8, now_ns);
        self.words[6].store((count + 2).to_le(), Ordering::Release);
        true
    }

    pub fn process(&self) -> LiveProcess {
        let len = (u64::from_le(self.words[7].load(Ordering::Acquire)) as usize).min(PATH_BYTES);
        let mut path: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|at| self.get(PATH_AT + at).to_le_bytes()).collect();
        path.truncate(len);
        LiveProcess {
            pid: self.get(2) as u32,
            start_ticks: self.get(3),
            start_unix_ns: self.get(4),
            start_mono_ns: self.get(5),
            trace: String::from_utf8_lossy(&path).into_owned(),
        }
    }

    /// When the figures were stored (ns since start), and the figures, all of one update where a
    /// few tries find a quiet moment.
    pub fn devices(&self) -> (u64, Vec<LiveDevice>) {
        let mut found = self.copy_devices();
        for _ in 0..100 {
            let before = u64::from_le(self.words[6].load(Ordering::Acquire));
            found = self.copy_devices();
            fence(Ordering::Acquire);
            if before & 1 == 0 && before == self.get(6) {
                break;
            }
            std::hint::spin_loop();
        }
        found
    }

    fn copy_devices(&self) -> (u64, Vec<LiveDevice>) {
        let count = ((self.get(1) >> 32) as usize).min(LIVE_DEVICES);
        let device = |index| {
            let mut words = [0; 12];
            for (at, word) in words.iter_mut().enumerate() {
                *word = self.get(DEVICES_AT + DEVICE_WORDS * index + at);
            }
            LiveDevice::from_words(&words)
        };
        (self.get(8), (0..count).map(device).collect())
    }

    /// Asks the process for another cap on its device at `index` of [`LivePage::devices`]
    /// (`None`: none).
    pub fn want_cap(&self, index: usize, cap: Option<u64>) {
        if index < LIVE_DEVICES {
            let at = DEVICES_AT + DEVICE_WORDS * index;
            self.set(at + WANTED_AT, cap.unwrap_or(NO_CAP));
            let number = u64::from_le(self.words[at + WANTED_NUMBER_AT].load(Ordering::Relaxed));
            let next = number.wrapping_add(1).to_le();
            self.words[at + WANTED_NUMBER_AT].store(next, Ordering::Release);
        }
    }

    /// What was asked for last: its number (0 = never), and the cap.
    pub fn wanted_cap(&self, index: usize) -> (u64, Option<u64>) {
        if index >= LIVE_DEVICES {
            return (0, None);
        }
        let at = DEVICES_AT + DEVICE_WORDS * index;
        let number = u64::from_le(self.words[at + WANTED_NUMBER_AT].load(Ordering::Acquire));
        let cap = self.get(at + WANTED_AT);
        (number, (number != 0 && cap != NO_CAP).then_some(cap))
    }
}

impl LiveDevice {
    fn words(&self) -> [u64; 12] {
        [
            u64::from(self.ordinal),
            self.live,
            self.peak,
            self.reserved,
            self.counted,
            self.cap.unwrap_or(NO_CAP),
            self.live_allocations,
            self.allocations,
            self.frees,
            self.refused_by_cap,
            self.refused_by_driver,
            self.events,
        ]
    }

    fn from_words(w: &[u64; 12]) -> LiveDevice {
        LiveDevice {
            ordinal: w[0] as u8,
            live: w[1],
            peak: w[2],
            reserved: w[3],
            counted: w[4],
            cap: (w[5] != NO_CAP).then_some(w[5]),
            live_allocations: w[6],
            allocations: w[7],
            frees: w[8],
            refused_by_cap: w[9],
            refused_by_driver: w[10],
            events: w[11],
        }
    }
}
