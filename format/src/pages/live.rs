//! The live page: a small shared memory segment of each traced process, outside the trace. It holds figures for
//! `ps` and `top`, the recorder's state for `vramtrace run`, and orders that change the cap. [`crate::name`] says
//! how it is found.
//!
//! ```text
//! word    0  magic "vtlive\0\0", stored last: without it, the page is not valid
//!         1  version (low 32) | devices in use (high 32)
//!         2  pid (low 32)     | state (high 32)
//!         3  process start, clock ticks since boot
//!         4  start, CLOCK_REALTIME ns        5  start, CLOCK_MONOTONIC ns
//!         6  update counter: each update adds 2; odd during an update
//!         7  length of the trace's path in bytes, 0 = records nothing
//!         8  time of the last update, ns since start
//!         9  number of the last order; 0 = no order yet
//!   16..528  the trace's path (4,096 bytes)
//!  528..536  the name of the process's group (64 bytes)
//!  576..640  orders for device 0 to 15: number (0 = none), cap, number of the last applied order
//!        10  call sites in use              11  time at which they were stored, ns since start
//!   12, 13, 536..568, 640..720: who the page belongs to ([`super::live_owner`])
//!  720..724  the switch of the recording ([`super::live_switch`])
//! 768..1280  16 devices of 32 words each
//! 1280..1792 64 call sites of 8 words each ([`super::live_sites`])
//! ```
//!
//! A process that cannot attach the page writes its orders behind the copy in the page's file: for device 0 to 15
//! number, cap, check, 0. The traced process reads them when it updates the copy.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::uuid;

/// Length of the page, and of its copy in a file, in bytes.
pub const LIVE_BYTES: usize = 16384;
pub const LIVE_WORDS: usize = LIVE_BYTES / 8;
pub const LIVE_VERSION: u32 = 4;
/// Devices beyond this number are not in the page; their figures are in the trace only.
pub const LIVE_DEVICES: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"vtlive\0\0");
const PATH_AT: usize = 16;
const PATH_BYTES: usize = 4096;
pub(super) const LAST_ORDER: usize = 9;
const GROUP_AT: usize = 528;
const GROUP_WORDS: usize = 8;
const ORDERS_AT: usize = 576;
pub(super) const ORDER_WORDS: usize = 4;
/// Length of the orders behind the copy of a page in its file, in words: for each device, and for the recording.
pub const FILED_WORDS: usize = ORDER_WORDS * (LIVE_DEVICES + 1);
const DEVICES_AT: usize = 768;
const DEVICE_WORDS: usize = 32;
/// Words of a device that [`LiveDevice`] fills.
const FIGURES: usize = 20;
/// Stands for "no cap".
const NO_CAP: u64 = u64::MAX;

/// The identity of the process: fixed at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveProcess {
    pub pid: u32,
    pub start_ticks: u64,
    pub start_unix_ns: u64,
    pub start_mono_ns: u64,
    /// Path of the trace; empty while nothing is recorded.
    pub trace: String,
}

/// The figures of one device, in bytes where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveDevice {
    /// CUDA ordinal, as the process sees it.
    pub ordinal: u8,
    pub live: u64,
    pub peak: u64,
    /// Bytes that pools and graphs have reserved.
    pub reserved: u64,
    /// Bytes that count towards the cap.
    pub counted: u64,
    pub cap: Option<u64>,
    /// Number of live allocations. The following fields up to `warned` are counts, not bytes.
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub refused_by_cap: u64,
    pub refused_by_driver: u64,
    /// Events recorded for the device.
    pub events: u64,
    /// Requests that exceeded a cap that only warns, and were granted.
    pub warned: u64,
    pub total_bytes: u64,
    pub uuid: [u8; 16],
    /// The cap reports requests that exceed it, and grants them.
    pub only_warns: bool,
    /// Free bytes in the segments of a framework's cache, paused bytes included, from its last report.
    pub free_cache: u64,
    /// Live bytes that are in device memory. `paused`: live bytes that are unmapped and keep their addresses.
    pub resident: u64,
    pub paused: u64,
}

/// The state of the recorder in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LiveState {
    /// The recorder is loaded; the program has not allocated GPU memory yet.
    Loaded = 0,
    Recording = 1,
    /// Nothing is recorded (off, or stopped); the cap is still enforced.
    NotRecording = 2,
    Ended = 3,
}

/// An attached live page. The traced process writes it; others read it and may order another cap.
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

    /// Opens a page. `None`: it is not a live page, or one of another version.
    pub fn open(words: &'m [AtomicU64; LIVE_WORDS]) -> Option<LivePage<'m>> {
        let page = LivePage { words };
        let magic = u64::from_le(words[0].load(Ordering::Acquire));
        (magic == MAGIC && page.get(1) as u32 == LIVE_VERSION).then_some(page)
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    pub(super) fn get(&self, at: usize) -> u64 {
        u64::from_le(self.words[at].load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, at: usize, value: u64) {
        self.words[at].store(value.to_le(), Ordering::Relaxed);
    }

    /// Stores the path of the trace. A path of more than 4,096 bytes is stored as empty.
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

    /// Stores the figures of at most 16 devices, as of `now_ns` (since start). False: another thread is updating the
    /// page, and nothing was stored.
    pub fn update(&self, now_ns: u64, devices: &[LiveDevice]) -> bool {
        self.store(|page| {
            let devices = &devices[..devices.len().min(LIVE_DEVICES)];
            for (index, device) in devices.iter().enumerate() {
                for (at, word) in device.words().into_iter().enumerate() {
                    page.set(DEVICES_AT + DEVICE_WORDS * index + at, word);
                }
            }
            page.set(1, u64::from(LIVE_VERSION) | (devices.len() as u64) << 32);
            page.set(8, now_ns);
        })
    }

    /// Runs `store` as one update. False: another thread is updating the page, and `store` did not run.
    pub(super) fn store(&self, store: impl FnOnce(&Self)) -> bool {
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
        store(self);
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

    /// The time of the figures (ns since start), and the figures. They come from one update, unless all 100 attempts
    /// were interrupted by updates.
    pub fn devices(&self) -> (u64, Vec<LiveDevice>) {
        self.read_consistent(|page| page.copy_devices())
    }

    /// Reads values of one update, unless all 100 attempts were interrupted by updates.
    pub(super) fn read_consistent<T>(&self, copy: impl Fn(&Self) -> T) -> T {
        let mut found = copy(self);
        for _ in 0..100 {
            let before = u64::from_le(self.words[6].load(Ordering::Acquire));
            found = copy(self);
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
            let word = |at| self.get(DEVICES_AT + DEVICE_WORDS * index + at);
            LiveDevice::from_words(&std::array::from_fn(word))
        };
        (self.get(8), (0..count).map(device).collect())
    }

    /// The update counter: each update adds 2, and it is odd during an update. A copy of the page is consistent if
    /// the counter is even and the same before and after the copy.
    pub fn updates(&self) -> u64 {
        self.get(6)
    }

    #[cfg(test)]
    pub(super) fn last_order(&self) -> u64 {
        u64::from_le(self.last_order_word().load(Ordering::Acquire))
    }

    /// The number of the last order, in a word of the page, little-endian. If it has changed, there is an order to apply.
    pub fn last_order_word(&self) -> &AtomicU64 {
        &self.words[LAST_ORDER]
    }

    /// The order for a device that was not applied yet: its number, and the cap in bytes (`None`: no cap).
    pub fn ordered(&self, ordinal: u8) -> Option<(u64, Option<u64>)> {
        let at = ORDERS_AT + ORDER_WORDS * usize::from(ordinal);
        if usize::from(ordinal) >= LIVE_DEVICES {
            return None;
        }
        let number = u64::from_le(self.words[at].load(Ordering::Acquire));
        let cap = self.get(at + 1);
        (number != 0 && number != self.get(at + 2))
            .then_some((number, Some(cap).filter(|c| *c != NO_CAP)))
    }

    /// Copies orders from the page's file to the page: `words` follow the copy of the page there. Orders with a wrong
    /// check, and those older than the one in the page, are ignored.
    pub fn take_filed(&self, words: &[u64; FILED_WORDS]) {
        let (devices, switch) = words.split_at(ORDER_WORDS * LIVE_DEVICES);
        self.take_filed_switch(switch);
        for (ordinal, filed) in devices.chunks_exact(ORDER_WORDS).enumerate() {
            let (ordinal, number, cap) = (ordinal as u8, filed[0], filed[1]);
            let at = ORDERS_AT + ORDER_WORDS * usize::from(ordinal);
            if number > self.get(at) && filed[2] == self.check(ordinal, number, cap) {
                self.set(at + 1, cap);
                self.words[at].store(number.to_le(), Ordering::Release);
                self.words[LAST_ORDER].store(number.to_le(), Ordering::Release);
            }
        }
    }

    /// As [`order`], for a process that cannot attach the page: the byte offset in the page's file, and the words to
    /// store there. `None`: the page does not have this device.
    pub fn filed_order(
        &self,
        ordinal: u8,
        cap: Option<u64>,
        number: u64,
    ) -> Option<(u64, [u64; 3])> {
        let cap = cap.unwrap_or(NO_CAP);
        let at = LIVE_BYTES + 8 * ORDER_WORDS * usize::from(ordinal);
        let words = [number, cap, self.check(ordinal, number, cap)];
        (usize::from(ordinal) < LIVE_DEVICES).then_some((at as u64, words))
    }

    /// The check of an order in the file: it covers the process, the device, the number and the cap.
    pub(super) fn check(&self, ordinal: u8, number: u64, cap: u64) -> u64 {
        let words = [MAGIC, self.get(2) & 0xFFFF_FFFF, self.get(3), ordinal.into(), number, cap];
        words.into_iter().fold(0, |check: u64, word| {
            (check.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
    }

    /// Marks the order with this number as applied to a device.
    pub fn set_applied(&self, ordinal: u8, number: u64) {
        if usize::from(ordinal) < LIVE_DEVICES {
            self.set(ORDERS_AT + ORDER_WORDS * usize::from(ordinal) + 2, number);
        }
    }

    /// Stores the name of the process's group. A name of more than 64 bytes is stored as none.
    pub fn set_group(&self, name: &str) {
        let mut bytes = [0; GROUP_WORDS * 8];
        if let Some(to) = bytes.get_mut(..name.len()) {
            to.copy_from_slice(name.as_bytes());
        }
        for (at, word) in bytes.chunks_exact(8).enumerate() {
            self.set(GROUP_AT + at, word.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)));
        }
    }

    /// The name of the process's group. `None`: it has none.
    pub fn group(&self) -> Option<String> {
        let bytes = (0..GROUP_WORDS).flat_map(|at| self.get(GROUP_AT + at).to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
    }
}

impl LiveDevice {
    fn words(&self) -> [u64; FIGURES] {
        let [low, high] = uuid::to_words(&self.uuid);
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
            self.warned,
            self.total_bytes,
            low,
            high,
            u64::from(self.only_warns),
            self.free_cache,
            self.resident,
            self.paused,
        ]
    }

    fn from_words(w: &[u64; FIGURES]) -> LiveDevice {
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
            warned: w[12],
            total_bytes: w[13],
            uuid: uuid::from_words([w[14], w[15]]),
            only_warns: w[16] != 0,
            free_cache: w[17],
            resident: w[18],
            paused: w[19],
        }
    }
}

/// An order to change the cap of a device to `cap` bytes (`None`: no cap): byte offsets in the page with the words to
/// store there, in this order. `number` must not be 0 and must be greater than that of any earlier order, for
/// example the time. `None`: the page does not have this device.
pub fn order(ordinal: u8, cap: Option<u64>, number: u64) -> Option<[(u64, u64); 3]> {
    let at = ORDERS_AT + ORDER_WORDS * usize::from(ordinal);
    let place = |word: usize| word as u64 * 8;
    (usize::from(ordinal) < LIVE_DEVICES).then_some([
        (place(at + 1), cap.unwrap_or(NO_CAP)),
        (place(at), number),
        (place(LAST_ORDER), number),
    ])
}

#[cfg(test)]
mod tests;
