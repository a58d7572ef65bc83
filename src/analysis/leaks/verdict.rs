//! What is found: leaks with what speaks for them, and what is held and is no leak.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vramtrace_format::{DeviceId, Header, StackId};

use super::growth::{Growth, KeptReason};
use crate::analysis::Level;
use crate::symbols::Symbols;
use crate::trace::Definitions;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Its live bytes go up and up.
    Growing,
    /// Allocated again and again, or where all else was freed; never freed itself.
    NeverFreed,
    /// It grew, and was freed when the process ended.
    FreedAtEnd,
}

impl Verdict {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Growing => "growing",
            Verdict::NeverFreed => "never_freed",
            Verdict::FreedAtEnd => "freed_at_end",
        }
    }
}

/// A stack on a device that leaks, with what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    pub verdict: Verdict,
    pub level: Level,
    pub device: DeviceId,
    /// The stack that holds the most of it.
    pub stack: StackId,
    /// Stacks of the same line that make it up together.
    pub stacks: u64,
    /// Live at the end; for what was freed at the end, live before that.
    pub bytes: u64,
    pub count: u64,
    pub allocations: u64,
    pub frees: u64,
    /// 0 to 1.
    pub confidence: f64,
    /// `None` where it is no trend that speaks for it.
    pub growth: Option<Growth>,
    /// Seconds after the end until the cap or the card is full, at this rate alone.
    pub exhausted_in_s: Option<f64>,
    /// Lowest live bytes in each bin of time.
    pub shape: Vec<u64>,
    pub because: LeakReason,
}

impl Leak {
    /// Others are shown as faint signs, and fail no run.
    pub fn is_sure(&self) -> bool {
        self.confidence >= SURE
    }
}

/// The least confidence of what counts as a leak.
const SURE: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LeakReason {
    Trend,
    /// A few allocations spread over the run, none freed.
    NoneFreed,
    /// At each of so many sleeps it held more than at the one before.
    Sleeps {
        sleeps: u64,
        bytes_a_sleep: u64,
    },
    /// The process freed this many of so many stacks' memory at its end, not this one's.
    OthersFreed {
        freed: u64,
        held: u64,
    },
}

/// What is held and is no leak.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub device: DeviceId,
    pub level: Level,
    pub why: KeptReason,
    pub bytes: u64,
    pub count: u64,
    pub stacks: u64,
    pub largest: StackId,
}

/// A framework's pool, where its blocks are not known, or what is free in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub device: DeviceId,
    pub library: String,
    pub bytes: u64,
    /// `Some`: it grows; whether by a leak or by fragmentation, only its blocks tell.
    pub bytes_per_second: Option<f64>,
    /// It is what lies free in the pool; its blocks are judged one by one.
    pub free: bool,
}

/// Leaks that a rule of the suppressions file fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed {
    /// Line of the rule.
    pub line: usize,
    pub leaks: u64,
    pub bytes: u64,
}

/// What was found in one trace.
#[derive(Clone, Debug)]
pub struct Leaks {
    pub trace: PathBuf,
    pub header: Header,
    pub running: bool,
    pub definitions: Definitions,
    /// Where the watch began, ns since the trace's start: the first allocation, or the checkpoint
    /// from which on history is known.
    pub from_ns: u64,
    /// Earlier events are not in the file.
    pub beginning_lost: bool,
    /// False: events are missing and no checkpoint tells what is live.
    pub live_is_known: bool,
    /// Where warm-up ended.
    pub warm_ns: u64,
    pub until_ns: u64,
    /// Width of the bins of [`Leak::shape`], ns.
    pub bin_ns: u64,
    /// The certain and the large ones first.
    pub leaks: Vec<Leak>,
    /// Most physical bytes of each device.
    pub peaks: BTreeMap<DeviceId, u64>,
    pub kept: Vec<Kept>,
    pub pooled: Vec<Pooled>,
    pub suppressed: Vec<Suppressed>,
    pub symbols: Symbols,
}

impl Leaks {
    /// Leaves what is of some devices.
    pub fn retain(&mut self, wanted: impl Fn(DeviceId) -> bool) {
        self.leaks.retain(|leak| wanted(leak.device));
        self.peaks.retain(|device, _| wanted(*device));
        self.kept.retain(|kept| wanted(kept.device));
        self.pooled.retain(|pooled| wanted(pooled.device));
    }
}
