//! A run that ended because PyTorch's cache gave up: why, and what would have helped.

use vramtrace_format::{DeviceId, RefusedBy};

use super::whatif::{GRID, Origin, Prediction, Recorded, capacities_of, predict};
use super::{Holdings, Level};
use crate::allocator::Conf;
use crate::replay::{CacheOomAt, RefusalAt, SegmentAt, State};
use crate::trace::{Definitions, Trace, Until};

/// Why a request got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The cache had the bytes, but no range was long enough.
    Fragmentation,
    /// With all that the cache could give back it would have been too much for the cap.
    Cap,
    /// The same of the card.
    Card,
    /// The trace shows no driver call that was refused.
    Unknown,
}

impl Cause {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Fragmentation => "fragmentation",
            Cause::Cap => "cap",
            Cause::Card => "card",
            Cause::Unknown => "unknown",
        }
    }
}

/// The last word of a run on one device.
#[derive(Clone, Debug)]
pub struct Fatal {
    pub device: DeviceId,
    pub oom: CacheOomAt,
    pub cause: Cause,
    /// The refusal that it did not survive, where it is known.
    pub refusal: Option<RefusalAt>,
    pub allocated: u64,
    pub reserved: u64,
    /// Bytes in segments that no block has, and the longest range of them.
    pub free: u64,
    pub largest_hole: u64,
    /// Segments that hold a block and have room.
    pub pinned: u64,
    pub held: Holdings,
    pub remedy: Option<Remedy>,
}

/// What other settings would have done up to the failed request.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// Bytes of the cap, or of the card.
    pub capacity: u64,
    pub origin: Origin,
    /// The best setting that would have fitted, and what it would have left.
    pub fix: Option<(String, u64)>,
    /// Settings, best first, with the least capacity that would have done.
    pub settings: Vec<(String, Option<u64>, bool)>,
    /// The least capacity that would do with the setting in force.
    pub as_it_is: Option<u64>,
}

/// More blocks than these are not replayed for a remedy: a report has to be quick.
const MOST_BLOCKS: u64 = 2_000_000;

/// The devices on which the run ended out of memory. `end` is the state at the end.
pub fn find(trace: &Trace, definitions: &Definitions, end: &State) -> Vec<Fatal> {
    let ended = end.devices.iter().filter(|(_, device)| device.cache.ended_in_oom());
    let ooms: Vec<(DeviceId, CacheOomAt)> =
        ended.filter_map(|(id, device)| Some((*id, device.cache.last_oom?))).collect();
    if ooms.is_empty() {
        return Vec::new();
    }
    let stops: Vec<Until> = ooms.iter().map(|(_, oom)| Until::Offset(oom.offset)).collect();
    let mut found = Vec::new();
    trace.visit(definitions, &stops, &mut |stop, state| {
        let (device, oom) = ooms[stop];
        found.push(at_failure(state, device, oom));
    });
    let blocks: u64 = end.devices.values().map(|device| device.cache.allocations).sum();
    if blocks <= MOST_BLOCKS {
        for recorded in Recorded::of(trace, definitions) {
            if let Some(fatal) = found.iter_mut().find(|fatal| fatal.device == recorded.device) {
                fatal.remedy = remedy(&recorded);
            }
        }
    }
    found
}

fn at_failure(state: &State, device: DeviceId, oom: CacheOomAt) -> Fatal {
    let all = state.segments();
    let here: Vec<&SegmentAt> = all.iter().filter(|segment| segment.device == device).collect();
    let free = here.iter().map(|segment| segment.free()).fold(0, u64::saturating_add);
    let largest_hole = here.iter().map(|segment| segment.largest_hole()).max().unwrap_or(0);
    let pinned = here.iter().filter(|it| !it.blocks.is_empty() && it.free() > 0).count() as u64;
    let by_thread = |refusal: &&RefusalAt| {
        refusal.device == device && refusal.thread == oom.thread && refusal.time_ns <= oom.time_ns
    };
    let refusal = state.last_refusals.iter().rev().find(by_thread).copied();
    let cause = match refusal.map(|refusal| refusal.refused.by) {
        _ if free >= oom.size && largest_hole < oom.size => Cause::Fragmentation,
        Some(RefusedBy::Driver) => Cause::Card,
        Some(_) => Cause::Cap,
        None => Cause::Unknown,
    };
    let mut held = Holdings::of_state(state, Level::Tensor);
    held.held.retain(|(of, _), _| *of == device);
    held.blocks.retain(|(of, _), _| *of == device);
    let sums = state.devices.get(&device).map(|device| &device.cache);
    Fatal {
        device,
        oom,
        cause,
        refusal,
        allocated: sums.map_or(oom.allocated, |cache| cache.allocated),
        reserved: sums.map_or(oom.reserved, |cache| cache.reserved),
        free,
        largest_hole,
        pinned,
        held,
        remedy: None,
    }
}

fn remedy(recorded: &Recorded) -> Option<Remedy> {
    let capacity = capacities_of(recorded).into_iter().next()?;
    let conf = |name: &&str| Some((name.to_string(), Conf::parse(name).ok()?));
    let confs: Vec<(String, Conf)> = GRID.iter().filter_map(conf).collect();
    let Prediction { settings, .. } = predict(recorded, &confs, vec![capacity], &|| {});
    let fits = |at: usize| settings[at].at.first().is_some_and(|outcome| outcome.fits());
    let best = (0..settings.len())
        .find(|at| fits(*at) && !settings[*at].in_force && settings[*at].forbidden.is_none());
    let in_force = (0..settings.len()).find(|at| settings[*at].in_force);
    if in_force.is_some_and(fits) {
        // The replay and the run disagree: it has nothing to say.
        return None;
    }
    let spare = |at: usize| {
        let outcome = settings[at].at.first()?;
        Some(capacity.bytes.saturating_sub(outcome.peak_total))
    };
    Some(Remedy {
        capacity: capacity.bytes,
        origin: capacity.origin,
        fix: best.and_then(|at| Some((settings[at].name.clone(), spare(at)?))),
        as_it_is: in_force.and_then(|at| settings[at].smallest),
        settings: (0..settings.len())
            .map(|at| (settings[at].name.clone(), settings[at].smallest, fits(at)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use vramtrace_format::physical::MIB;
    use vramtrace_format::{Event, Kind, Space, StackId};

    use super::*;
    use crate::testing::{SECOND, TraceBuilder};

    /// Blocks of these MiB in one segment each, of which every second is freed; then a request of
    /// 64 MiB fails.
    fn run(blocks: &[u64], by: RefusedBy, goes_on: bool) -> Vec<Fatal> {
        let mut t = TraceBuilder::new();
        let start = |n: usize| (1 << 40) + ((n as u64) << 32);
        for (n, mib) in blocks.iter().enumerate() {
            t.alloc(SECOND, Kind::Device, start(n), mib * MIB);
            t.alloc(SECOND, Kind::Block, start(n), mib * MIB);
        }
        for n in (1..blocks.len()).step_by(2) {
            t.free(2 * SECOND, Space::Block, start(n));
        }
        let limit = if by == RefusedBy::Driver { 0 } else { 256 * MIB };
        t.refused(3 * SECOND, Kind::Device, 64 * MIB, by, limit);
        let (device, size, stack) = (DeviceId(0), 64 * MIB, StackId(0));
        t.event(3 * SECOND, Event::CacheOom { device, size, allocated: 0, reserved: 0, stack });
        if goes_on {
            t.alloc(4 * SECOND, Kind::Block, start(1), MIB);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        t.write(file.path());
        let trace = Trace::open(file.path()).unwrap();
        let (definitions, _) = trace.definitions();
        find(&trace, &definitions, &trace.replay(&definitions, &mut ()).state)
    }

    #[test]
    fn the_cause_is_told_from_what_was_free() {
        let cause = |blocks: &[u64], by| run(blocks, by, false)[0].cause;
        assert_eq!(cause(&[40; 6], RefusedBy::Cap), Cause::Fragmentation);
        assert_eq!(cause(&[40; 6], RefusedBy::Driver), Cause::Fragmentation);
        assert_eq!(cause(&[40; 3], RefusedBy::Cap), Cause::Cap);
        assert_eq!(cause(&[40; 3], RefusedBy::Driver), Cause::Card);
        let fatal = &run(&[40; 6], RefusedBy::Cap, false)[0];
        assert_eq!((fatal.free, fatal.largest_hole), (120 * MIB, 40 * MIB));
        assert_eq!((fatal.allocated, fatal.reserved, fatal.pinned), (120 * MIB, 240 * MIB, 0));
        assert_eq!(fatal.refusal.unwrap().refused.size, 64 * MIB);
        // All in one moment: what the process went on with is not the failure's.
        assert_eq!(fatal.held.all().map(|(_, _, held)| held.bytes).sum::<u64>(), 240 * MIB);
    }

    #[test]
    fn a_run_that_went_on_did_not_end_with_it() {
        assert!(run(&[40; 6], RefusedBy::Cap, true).is_empty());
    }
}
