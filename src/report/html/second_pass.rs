//! The second pass over a trace: writes its columns, and finds what the page shows of places that the first
//! pass named: out-of-memory failures, fragmentation, sleeps.

use std::io::{self, Write};

use super::LIMIT;
use super::recorded::Recorded;
use super::recorder::Recorder;
use crate::analysis::Moment;
use crate::analysis::frag::{Frag, FragAt};
use crate::analysis::oom::{self, PostMortem, PostMortems};
use crate::analysis::{Collect, Process, RolesOf};
use crate::replay::{State, Until, Visitor};
use crate::trace::Trace;

/// What the first pass over each trace of a page must collect.
pub const COLLECT: Collect = Collect {
    roles: Some(RolesOf::All),
    leaks: true,
    sizes: true,
    steps: true,
    over_time: false,
    moments: None,
    points: false,
};

/// The smallest segment of PyTorch's cache: memory of that size is never lumped.
const SEGMENT: u64 = 2 << 20;

pub(super) struct SecondPass {
    pub recorded: Recorded,
    /// With their remedies not yet found.
    pub failures: Vec<PostMortem>,
    /// At the last out-of-memory of each device, or at its peak.
    pub frag: Vec<Frag>,
}

/// Writes the columns of a process to `out`. The process was read to its end with [`COLLECT`].
pub(super) fn run(process: &Process, trace: &Trace, out: &mut dyn Write) -> io::Result<SecondPass> {
    let definitions = &process.definitions;
    let end = &process.state;
    let lumped_below = lump_below(process);
    let failures = oom::worst(&process.ooms);
    let fatal = failures.iter().map(|oom| oom.offset).collect();
    let mut post_mortems = PostMortems::new(definitions, failures);
    let failed = process.ooms.iter().any(|oom| !oom.went_on);
    let moment = if failed { Moment::OutOfMemory } else { Moment::Peak };
    let sizes = process.collected.sizes.as_ref();
    let frag_at = |moment| FragAt::new(trace, definitions, end, &sizes?.0, (moment, moment)).ok();
    let mut frags = frag_at(moment).or_else(|| frag_at(Moment::Peak));
    let mut visitors: Vec<&mut dyn Visitor> = vec![&mut post_mortems];
    visitors.extend(frags.as_mut().map(|frags| frags as &mut dyn Visitor));
    let finder = process.role_finder(trace);
    let out = io::BufWriter::new(out);
    let mut recorder = Recorder::new(definitions, &finder, lumped_below, fatal, out);
    let mut to_end = (vec![Until::End], |_: usize, _: &State| {});
    visitors.push(&mut to_end);
    trace.visit_observed(definitions, &mut visitors, &mut recorder);
    let (recorded, mut out) = recorder.finish()?;
    out.flush()?;
    let frag = frags.and_then(|frags| frags.finish().ok()).unwrap_or_default();
    Ok(SecondPass { recorded, failures: post_mortems.finish(), frag })
}

/// The size in bytes below which blocks are lumped, so that [`LIMIT`] at most are listed one by one.
/// It is [`SEGMENT`] at most: a run with more allocations of that size lists more. 0: all are listed.
fn lump_below(process: &Process) -> u64 {
    let devices = process.state.devices.values();
    let calls = devices.map(|device| device.allocations.saturating_add(device.cache.allocations));
    if calls.fold(0, u64::saturating_add) <= LIMIT {
        return 0;
    }
    let sizes = process.collected.sizes.as_ref();
    sizes.map_or(0, |(_, sizes)| sizes.threshold(LIMIT).min(SEGMENT))
}
