//! Finds every out-of-memory of a trace in one pass.
//!
//! | request | out of memory when |
//! |---|---|
//! | to PyTorch's cache | PyTorch raised out of memory (an event) |
//! | to the driver by others | refused, and the thread did not get as much within a second; or refused again after a second |
//!
//! All other refusals were absorbed: the caller freed memory, asked again, and got it. Failures
//! of one device within a second of each other are one burst; its last one is listed.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use vramtrace_format::{
    DeviceId, Kind, OomEvidence, PostMortem, Refused, SiteId, StackId, Stamped, ThreadId,
};

use super::swallowed::Swallowed;
use crate::analysis::Level;
use crate::facts;
use crate::replay::{
    AllocCause, ByDevice, CacheOomAt, Key, Live, Observer, RefusalAt, is_out_of_memory,
};
use crate::trace::{SiteInfo, Trace};

/// Requests that failed within this time are one burst; a caller that is refused for longer is out
/// of memory.
const BURST_NS: u64 = 1_000_000_000;

/// A program that runs this long after a refusal has survived it.
const LIVED_ON_NS: u64 = 10_000_000_000;

/// A request that failed for lack of memory; the last one of a burst.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Oom {
    /// Ordinal as the process saw it; null: not known.
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// `tensor`: PyTorch could not allocate a block; `driver`: a driver call was refused.
    pub level: Level,
    /// Since the start of the trace.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub time_ns: u64,
    /// Requested bytes.
    #[serde(rename = "size_bytes")]
    pub size: u64,
    /// The refusal by the driver or a cap. `None`: the trace has none.
    #[serde(flatten, serialize_with = "refusal_facts")]
    #[cfg_attr(feature = "schemas", schemars(with = "LimitFacts"))]
    pub refusal: Option<RefusalAt>,
    /// Failed requests in this burst. The failure describes the last of them.
    pub requests: u64,
    /// Time of the first of them.
    #[serde(rename = "first_at_s", with = "facts::Seconds")]
    pub first_ns: u64,
    /// Refused calls of the burst.
    pub refusals: u64,
    /// Refusals on the device that were absorbed before it: harmless.
    #[serde(rename = "absorbed_before")]
    pub absorbed: u64,
    /// The program ended with status 0, or got memory of the device afterwards, or its thread of another one (blocks, for
    /// tensors); or, for the driver, ran for 10 s more.
    pub went_on: bool,
    /// File offset of its event.
    #[serde(skip)]
    pub offset: u64,
    #[serde(skip)]
    pub thread: ThreadId,
    #[serde(skip)]
    pub stack: StackId,
    /// The refused call; 0 at the level of tensors.
    #[serde(skip)]
    pub site: SiteId,
    /// PyTorch's event, at the level of tensors.
    #[serde(skip)]
    pub torch: Option<CacheOomAt>,
    /// The recorder's post-mortem, if it wrote one.
    #[serde(skip)]
    pub post_mortem: Option<PostMortem>,
    /// Other processes on the device, as NVML listed them.
    #[serde(skip)]
    pub neighbours: Vec<Neighbour>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Neighbour {
    pub pid: u32,
    /// Null: NVML did not know.
    pub bytes: Option<u64>,
    /// A recorded process of the same run.
    pub of_run: bool,
}

/// The limit by which a request was refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct LimitFacts {
    /// `cap`, `group`, `bad_cap` or `driver`; null: no refused call is known.
    pub refused_by: Option<&'static str>,
    /// The cap, or the group's.
    pub limit_bytes: Option<u64>,
    /// The bytes that the limit had counted; for a group, those of all its processes.
    pub counted_bytes: Option<u64>,
    pub card_free_bytes: Option<u64>,
}

impl LimitFacts {
    pub fn of(refused: &Refused) -> LimitFacts {
        let known = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        LimitFacts {
            refused_by: Some(refused.by.name()),
            limit_bytes: known(refused.limit),
            counted_bytes: Some(refused.counted),
            card_free_bytes: known(refused.driver_free),
        }
    }
}

fn refusal_facts<S: Serializer>(refusal: &Option<RefusalAt>, to: S) -> Result<S::Ok, S::Error> {
    refusal.map(|at| LimitFacts::of(&at.refused)).unwrap_or_default().serialize(to)
}

impl Oom {
    /// Of one request.
    fn of(device: DeviceId, level: Level, at: &Stamped, (size, stack): Asked) -> Oom {
        let Stamped { time_ns, offset, thread, .. } = *at;
        let of = Oom { device, level, size, stack, offset, thread, requests: 1, ..Oom::default() };
        Oom { time_ns, first_ns: time_ns, ..of }
    }

    /// Host memory was refused: no device lacked any.
    pub fn is_of_host(&self) -> bool {
        self.refusal.and_then(|at| at.kind).is_some_and(Kind::is_host)
    }

    fn refused(self, waiting: Option<Waiting>) -> Oom {
        let refusals = waiting.map_or(0, |waiting| waiting.refusals);
        Oom { refusal: waiting.map(|waiting| waiting.last), refusals, ..self }
    }
}

/// The result of one pass.
#[derive(Clone, Debug, Default)]
pub struct OomsFound {
    /// In the order of the file.
    pub ooms: Vec<Oom>,
    /// Those that were absorbed.
    pub refusals: BTreeMap<DeviceId, u64>,
    /// Refusals after which another error came, in the order of the file.
    pub swallowed: Vec<Swallowed>,
}

/// Bytes, and who asked for them.
type Asked = (u64, StackId);

/// Refused calls of one thread on one device that got no memory since.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    refusals: u64,
    first_ns: u64,
    last: RefusalAt,
    /// The event of the last one.
    at: Stamped,
    /// Refused again a second or more after the first refusal.
    long: bool,
    absorbed: u64,
}

/// Collects the failures during a replay.
#[derive(Clone, Debug, Default)]
pub struct OomObserver {
    waiting: FxHashMap<(ThreadId, DeviceId), Waiting>,
    devices: ByDevice<Device>,
    /// What each thread got of any device. Where it got blocks of PyTorch, these count as its memory.
    threads: FxHashMap<ThreadId, Device>,
    /// File offset of the last allocation, of whatever memory.
    given: u64,
    ooms: Vec<Oom>,
    /// The last bursts after which the same thread got other memory.
    handled: Vec<Oom>,
    listings: Vec<Listing>,
    /// The last refusal, up to the next error.
    last: Option<RefusalAt>,
    swallowed: Vec<Swallowed>,
    /// The process ended with status 0: it handled what was refused.
    ended_well: bool,
}

/// Maximum number of kept refusals that a library did not report, and of bursts after which the thread went on.
const MAX_KEPT: usize = 64;

/// A post-mortem of the recorder.
#[derive(Clone, Debug)]
struct Listing {
    time_ns: u64,
    post_mortem: PostMortem,
    neighbours: Vec<Neighbour>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    absorbed: u64,
    /// File offsets of the last allocation of any memory, and of a block.
    given: u64,
    block: u64,
}

impl OomObserver {
    /// After the last event of `trace`, which was at `last_ns`.
    pub fn finish(mut self, last_ns: u64, trace: &Trace) -> OomsFound {
        let waiting: Vec<_> = self.waiting.drain().collect();
        for ((_, device), waiting) in waiting {
            self.ooms.push(refused_for_good(device, waiting));
        }
        self.ooms.sort_by_key(|oom| (oom.time_ns, oom.offset));
        let mut ooms: Vec<Oom> = Vec::new();
        for mut oom in self.ooms {
            let last = self.devices.get(&oom.device).copied().unwrap_or_default();
            // What the thread got on another device shows it as well.
            let thread = self.threads.get(&oom.thread).copied().unwrap_or_default();
            let (last_given, block) = (last.given.max(thread.given), last.block.max(thread.block));
            let given = if oom.device == DeviceId::UNKNOWN { self.given } else { last_given };
            oom.went_on = match oom.level {
                _ if self.ended_well => true,
                Level::Tensor if block > 0 => block > oom.offset,
                Level::Tensor => given > oom.offset,
                Level::Driver => {
                    given > oom.offset || last_ns.saturating_sub(oom.time_ns) > LIVED_ON_NS
                }
            };
            add(&mut ooms, oom);
        }
        ooms.append(&mut self.handled);
        ooms.sort_by_key(|oom| (oom.time_ns, oom.offset));
        for mut listing in self.listings {
            listing.neighbours.iter_mut().for_each(|it| it.of_run = trace.is_of_run(it.pid));
            // The recorder writes it within the burst, or at the end of the process.
            let of = |oom: &&mut Oom| {
                oom.device == listing.post_mortem.device && oom.first_ns <= listing.time_ns
            };
            if let Some(oom) = ooms.iter_mut().rev().find(of) {
                // Of an earlier request of the burst its figures are others.
                let is_last = listing.time_ns >= oom.time_ns;
                oom.post_mortem = is_last.then_some(listing.post_mortem);
                if !listing.neighbours.is_empty() {
                    oom.neighbours = listing.neighbours;
                }
            }
        }
        let refusals = self.devices.into_iter().map(|(id, device)| (id, device.absorbed));
        OomsFound { ooms, refusals: refusals.collect(), swallowed: self.swallowed }
    }

    /// PyTorch raised out of memory. `torch`: its event.
    fn gave_up(&mut self, at: &Stamped, device: DeviceId, asked: Asked, torch: Option<CacheOomAt>) {
        let waiting = self.waiting.remove(&(at.thread, device));
        let of = Oom::of(device, Level::Tensor, at, asked).refused(waiting);
        self.ooms.push(Oom { torch, absorbed: self.absorbed(device), ..of });
    }

    fn absorbed(&self, id: DeviceId) -> u64 {
        self.devices.get(&id).map_or(0, |device| device.absorbed)
    }

    /// The thread got memory, which shows that it went on after a refusal on `device`.
    fn served(&mut self, at: &Stamped, device: DeviceId, live: &Live) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(waiting) = self.waiting.remove(&(at.thread, device)) else { return };
        let soon = !waiting.long && at.time_ns.saturating_sub(waiting.at.time_ns) <= BURST_NS;
        // A cache may take long to free segments: PyTorch's own event decides for its threads.
        let by_cache = device != DeviceId::UNKNOWN && self.is_cache(at.thread);
        if by_cache || soon && live.size >= waiting.last.refused.size {
            let of = self.devices.of(device);
            of.absorbed = of.absorbed.saturating_add(waiting.refusals);
            return;
        }
        add(&mut self.handled, Oom { went_on: true, ..refused_for_good(device, waiting) });
        let excess = self.handled.len().saturating_sub(MAX_KEPT);
        self.handled.drain(..excess);
    }

    fn is_cache(&self, thread: ThreadId) -> bool {
        self.threads.get(&thread).is_some_and(|got| got.block > 0)
    }
}

/// Adds a failure, in order of time, to those of its burst.
fn add(ooms: &mut Vec<Oom>, oom: Oom) {
    let same = |other: &&mut Oom| {
        (other.device, other.level) == (oom.device, oom.level)
            && oom.first_ns.saturating_sub(other.time_ns) <= BURST_NS
    };
    match ooms.iter_mut().rev().find(|other| other.device == oom.device).filter(same) {
        Some(other) => {
            *other = Oom {
                requests: other.requests + oom.requests,
                refusals: other.refusals + oom.refusals,
                first_ns: other.first_ns.min(oom.first_ns),
                absorbed: other.absorbed.min(oom.absorbed),
                ..oom
            };
        }
        None => ooms.push(oom),
    }
}

fn refused_for_good(device: DeviceId, waiting: Waiting) -> Oom {
    let Waiting { refusals, first_ns, at, last, absorbed, .. } = waiting;
    let request = (last.refused.size, last.refused.stack);
    let oom = Oom::of(device, Level::Driver, &at, request).refused(Some(waiting));
    Oom { site: last.refused.site, requests: refusals, first_ns, absorbed, ..oom }
}

impl Observer for OomObserver {
    fn on_refusal(&mut self, at: &Stamped, refused: &Refused, site: Option<&SiteInfo>) {
        if !is_out_of_memory(refused) {
            return;
        }
        let kind: Option<Kind> = site.and_then(|site| site.kind);
        let on_device = site.filter(|_| !kind.is_some_and(Kind::is_host));
        let device = on_device.map_or(DeviceId::UNKNOWN, |site| site.device);
        let last =
            RefusalAt { time_ns: at.time_ns, thread: at.thread, device, kind, refused: *refused };
        let fresh = Waiting {
            refusals: 0,
            first_ns: at.time_ns,
            last,
            at: *at,
            long: false,
            absorbed: self.absorbed(device),
        };
        let waiting = self.waiting.entry((at.thread, device)).or_insert(fresh);
        waiting.refusals = waiting.refusals.saturating_add(1);
        waiting.long |= at.time_ns.saturating_sub(waiting.first_ns) >= BURST_NS;
        (waiting.last, waiting.at) = (last, *at);
        self.last = Some(last);
    }

    fn on_error_after_refusal(&mut self, at: &Stamped, api: u16, result: i32) {
        if let Some(refusal) = self.last.take()
            && self.swallowed.len() < MAX_KEPT
        {
            let (next_ns, next_api, next_result, status) = (at.time_ns, api, result, None);
            self.swallowed.push(Swallowed { refusal, next_ns, next_api, next_result, status });
        }
    }

    fn on_exit_status(&mut self, _: &Stamped, status: i32) {
        self.ended_well = status == 0;
        if let Some(last) = self.swallowed.last_mut() {
            last.status = Some(status);
        }
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        self.gave_up(at, device, (oom.size, oom.stack), Some(*oom));
    }

    fn on_post_mortem(&mut self, at: &Stamped, post_mortem: &PostMortem) {
        self.listings.push(Listing {
            time_ns: at.time_ns,
            post_mortem: *post_mortem,
            neighbours: Vec::new(),
        });
        if post_mortem.evidence == OomEvidence::StillRefused {
            let here =
                self.waiting.iter_mut().filter(|((_, device), _)| *device == post_mortem.device);
            here.for_each(|(_, waiting)| waiting.long = true);
        }
        let known = |oom: &Oom| {
            oom.device == post_mortem.device && at.time_ns.saturating_sub(oom.time_ns) <= BURST_NS
        };
        if post_mortem.evidence == OomEvidence::FrameworkGaveUp
            && !self.ooms.iter().rev().any(known)
        {
            // Blocks were not recorded, so there is no event of PyTorch.
            let PostMortem { device, size, stack, .. } = *post_mortem;
            self.gave_up(at, device, (size, stack), None);
        }
    }

    fn on_neighbour(&mut self, _at: &Stamped, device: DeviceId, pid: u32, bytes: Option<u64>) {
        if let Some(last) =
            self.listings.last_mut().filter(|last| last.post_mortem.device == device)
        {
            last.neighbours.push(Neighbour { pid, bytes, of_run: false });
        }
    }

    fn on_alloc(&mut self, at: &Stamped, _key: Key, live: &Live, how: AllocCause) {
        if how != AllocCause::Allocated {
            return;
        }
        // Host memory is of no device: after its refusal, any memory shows that the program went on.
        self.given = at.offset;
        self.served(at, DeviceId::UNKNOWN, live);
        if !live.is_device_memory() {
            return;
        }
        self.devices.of(live.device).given = at.offset;
        self.threads.entry(at.thread).or_default().given = at.offset;
        // A cache may get some pages of a segment before the next one is refused: that is no success.
        if !self.is_cache(at.thread) {
            self.served(at, live.device, live);
        }
    }

    fn on_block_alloc(&mut self, at: &Stamped, _address: u64, live: &Live, how: AllocCause) {
        if how != AllocCause::Allocated {
            return;
        }
        let thread = self.threads.entry(at.thread).or_default();
        for last in [self.devices.of(live.device), thread] {
            (last.given, last.block) = (at.offset, at.offset);
        }
        self.served(at, live.device, live);
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        self.waiting.clear();
    }
}
