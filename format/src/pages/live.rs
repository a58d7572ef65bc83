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

use crate::record::wire::word_of;
use crate::scalar::numbered_enum;
use crate::shown::cut;
use crate::uuid;

/// Length of the page, and of its copy in a file, in bytes.
pub const LIVE_BYTES: usize = 16384;
pub const LIVE_WORDS: usize = LIVE_BYTES / 8;
pub const LIVE_VERSION: u32 = 4;
/// Devices beyond this number are not in the page; their figures are in the trace only.
pub const LIVE_DEVICES: usize = 16;
const MAGIC: u64 = u64::from_le_bytes(*b"vtlive\0\0");
const LAST_ORDER: usize = 9;
/// First word and length, in words, of the texts.
const TRACE: (usize, usize) = (16, 512);
const GROUP: (usize, usize) = (528, 8);
const ORDERS_AT: usize = 576;
pub(super) const SWITCH_AT: usize = 720;
const ORDER_WORDS: usize = 4;
/// Stands for the device in an order for the recording.
pub(super) const RECORDING: u8 = LIVE_DEVICES as u8;
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

numbered_enum! {
    /// The state of the recorder in a process.
    pub enum LiveState {
        /// The recorder is loaded; the program has not allocated GPU memory yet.
        Loaded = 0,
        Recording = 1,
        /// Nothing is recorded (off, or stopped); the cap is still enforced.
        NotRecording = 2,
        Ended = 3,
    }
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

    pub(super) fn get(&self, at: usize) -> u64 {
        u64::from_le(self.words[at].load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, at: usize, value: u64) {
        self.words[at].store(value.to_le(), Ordering::Relaxed);
    }

    /// Stores a text at these words, with zeros behind it. One that is too long is cut at a character.
    pub(super) fn put_text(&self, (at, words): (usize, usize), text: &str) {
        let bytes = cut(text, 8 * words).as_bytes();
        (0..words).for_each(|index| self.set(at + index, word_of(bytes, index)));
    }

    pub(super) fn text(&self, (at, words): (usize, usize)) -> String {
        let bytes = (at..at + words).flat_map(|word| self.get(word).to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stores the path of the trace. A path of more than 4,096 bytes is stored as empty.
    pub fn set_trace(&self, path: &str) {
        let path = if path.len() > 8 * TRACE.1 { "" } else { path };
        self.put_text(TRACE, path);
        self.words[7].store((path.len() as u64).to_le(), Ordering::Release);
    }

    pub fn set_state(&self, state: LiveState) {
        self.set(2, self.get(2) & 0xFFFF_FFFF | (state as u64) << 32);
    }

    pub fn state(&self) -> Option<LiveState> {
        u8::try_from(self.get(2) >> 32).ok().and_then(LiveState::from_u8)
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
        let has_trace = self.words[7].load(Ordering::Acquire) != 0;
        LiveProcess {
            pid: self.get(2) as u32,
            start_ticks: self.get(3),
            start_unix_ns: self.get(4),
            start_mono_ns: self.get(5),
            trace: if has_trace { self.text(TRACE) } else { String::new() },
        }
    }

    /// The time of the figures (ns since start), and the figures. They come from one update, unless all 100 attempts
    /// were interrupted by updates.
    pub fn devices(&self) -> (u64, Vec<LiveDevice>) {
        self.read_consistent(|page| {
            let count = ((page.get(1) >> 32) as usize).min(LIVE_DEVICES);
            let device = |index| {
                let word = |at| page.get(DEVICES_AT + DEVICE_WORDS * index + at);
                LiveDevice::from_words(&std::array::from_fn(word))
            };
            (page.get(8), (0..count).map(device).collect())
        })
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
        let [number, cap, applied] = self.last_order_for(ordinal)?;
        (ordinal < RECORDING && number != 0 && number != applied)
            .then_some((number, Some(cap).filter(|cap| *cap != NO_CAP)))
    }

    /// Number and value of the last order for a device or [`RECORDING`], and the number of the last applied one.
    pub(super) fn last_order_for(&self, what: u8) -> Option<[u64; 3]> {
        let at = order_at(what)?;
        let number = u64::from_le(self.words[at].load(Ordering::Acquire));
        Some([number, self.get(at + 1), self.get(at + 2)])
    }

    /// Copies orders from the page's file to the page: `words` follow the copy of the page there. Orders with a wrong
    /// check, and those older than the one in the page, are ignored.
    pub fn take_filed(&self, words: &[u64; FILED_WORDS]) {
        for (filed, what) in words.chunks_exact(ORDER_WORDS).zip(0..) {
            let (number, value) = (filed[0], filed[1]);
            let Some(at) = order_at(what) else { return };
            if number > self.get(at) && filed[2] == self.check(what, number, value) {
                self.set(at + 1, value);
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
        (ordinal < RECORDING).then(|| self.filed(ordinal, cap.unwrap_or(NO_CAP), number))
    }

    pub(super) fn filed(&self, what: u8, value: u64, number: u64) -> (u64, [u64; 3]) {
        let at = LIVE_BYTES + 8 * ORDER_WORDS * usize::from(what);
        (at as u64, [number, value, self.check(what, number, value)])
    }

    /// The check of an order in the file: it covers the process, what it is for, the number and the value.
    fn check(&self, what: u8, number: u64, value: u64) -> u64 {
        let words = [MAGIC, self.get(2) & 0xFFFF_FFFF, self.get(3), what.into(), number, value];
        words.into_iter().fold(0, |check: u64, word| {
            (check.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
    }

    /// Marks the order with this number as applied to a device.
    pub fn set_applied(&self, ordinal: u8, number: u64) {
        if let Some(at) = order_at(ordinal) {
            self.set(at + 2, number);
        }
    }

    /// Stores the name of the process's group. A name of more than 64 bytes is stored as none.
    pub fn set_group(&self, name: &str) {
        self.put_text(GROUP, if name.len() > 8 * GROUP.1 { "" } else { name });
    }

    /// The name of the process's group. `None`: it has none.
    pub fn group(&self) -> Option<String> {
        Some(self.text(GROUP)).filter(|name| !name.is_empty())
    }
}

/// The words of a device that are plain numbers, each with its field.
macro_rules! figures {
    ($($word:literal: $field:ident),*) => {
        impl LiveDevice {
            fn words(&self) -> [u64; FIGURES] {
                let mut words = [0; FIGURES];
                $( words[$word] = self.$field; )*
                words[0] = u64::from(self.ordinal);
                words[5] = self.cap.unwrap_or(NO_CAP);
                [words[14], words[15]] = uuid::to_words(&self.uuid);
                words[16] = u64::from(self.only_warns);
                words
            }

            fn from_words(words: &[u64; FIGURES]) -> LiveDevice {
                LiveDevice {
                    $( $field: words[$word], )*
                    ordinal: words[0] as u8,
                    cap: Some(words[5]).filter(|cap| *cap != NO_CAP),
                    uuid: uuid::from_words([words[14], words[15]]),
                    only_warns: words[16] != 0,
                }
            }
        }
    };
}

figures!(
    1: live, 2: peak, 3: reserved, 4: counted, 6: live_allocations, 7: allocations, 8: frees,
    9: refused_by_cap, 10: refused_by_driver, 11: events, 12: warned, 13: total_bytes,
    17: free_cache, 18: resident, 19: paused
);

/// First word of the orders for a device, or for [`RECORDING`]. `None`: the page has none for it.
fn order_at(what: u8) -> Option<usize> {
    match what {
        ..RECORDING => Some(ORDERS_AT + ORDER_WORDS * usize::from(what)),
        RECORDING => Some(SWITCH_AT),
        _ => None,
    }
}

/// An order to change the cap of a device to `cap` bytes (`None`: no cap): byte offsets in the page with the words to
/// store there, in this order. `number` must not be 0 and must be greater than that of any earlier order, for
/// example the time. `None`: the page does not have this device.
pub fn order(ordinal: u8, cap: Option<u64>, number: u64) -> Option<[(u64, u64); 3]> {
    let at = order_at(ordinal).filter(|_| ordinal < RECORDING)?;
    Some(order_words(at, cap.unwrap_or(NO_CAP), number))
}

/// Byte offsets and words of an order whose number is in word `at`.
pub(super) fn order_words(at: usize, value: u64, number: u64) -> [(u64, u64); 3] {
    [(at + 1, value), (at, number), (LAST_ORDER, number)].map(|(at, word)| (at as u64 * 8, word))
}

#[cfg(test)]
pub(super) mod tests;
