//! The verdict on a process and on a run: the worst of what the other analyses found, and what it is about. Views print it,
//! with figures of the process.

use std::cmp::Reverse;

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::leaks::{Leak, Leaks, QUICK_BYTES};
use super::ranks::ProcessEnd;
use super::{Collect, GroupBy, Holder, Holdings, Process, RolesOf};
use crate::facts;
use crate::trace::Trace;

/// What became of a process. A worse kind is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    NoMemory,
    /// An imported recording does not say how its program ended.
    NotKnown,
    Running,
    InOrder,
    RefusedAndWentOn,
    /// Its end was not recorded.
    CutOff,
    Leak,
    OutOfMemory,
}

impl VerdictKind {
    pub fn is_fine(self) -> bool {
        self <= VerdictKind::InOrder
    }
}

/// What a first screen says of a process.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The first that is so: `out_of_memory`, `leak`, `no_memory`, `running`, `cut_off` (its end was not recorded),
    /// `refused_and_went_on`, `not_known` (an import), `in_order`.
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub kind: VerdictKind,
    /// With the failure, the refusal, the leak, or the highest peak. Null: not known, or none.
    #[serde(with = "facts::Ordinal")]
    pub device: DeviceId,
    /// The time of the failure, or of the refusal; without one, of the last event.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub at_ns: u64,
    /// Leaks were looked for, and there is no sign of one.
    pub no_leak: bool,
    /// Of out of memory the leak that caused it, else the first that is sure. Null: none is, or they were not looked for.
    pub leak: Option<Leak>,
    /// Who held the most of the device, at the failure, at the refusal or at the peak. Null: not known.
    pub holder: Option<Holder>,
    /// The command of vramtrace that explains it.
    pub next: &'static str,
}

impl Verdict {
    /// On a process that was read to its end, after [`Process::look_closer`].
    pub fn of(process: &Process) -> Verdict {
        let fatal = process.fatal().first();
        let leaks = process.leaks.as_ref();
        let first_leak = || leaks.and_then(|leaks| leaks.sure().next());
        let leak = fatal.map_or_else(first_leak, |fatal| fatal.leak.as_ref()).cloned();
        let highest = process.devices().max_by_key(|(_, device)| device.peak.bytes);
        let kind = match process.end() {
            _ if fatal.is_some() => VerdictKind::OutOfMemory,
            _ if leak.is_some() => VerdictKind::Leak,
            ProcessEnd::CutOff => VerdictKind::CutOff,
            _ if highest.is_none() => VerdictKind::NoMemory,
            ProcessEnd::Running => VerdictKind::Running,
            _ if process.handled().is_some() || process.state.refusals() > 0 => {
                VerdictKind::RefusedAndWentOn
            }
            ProcessEnd::Unknown => VerdictKind::NotKnown,
            ProcessEnd::InOrder | ProcessEnd::OutOfMemory => VerdictKind::InOrder,
        };
        let of_highest = highest.map_or(DeviceId::UNKNOWN, |(id, _)| id);
        let of_leak = || leak.as_ref().map_or(of_highest, |leak| leak.device);
        let handled = process.handled().filter(|_| kind == VerdictKind::RefusedAndWentOn);
        let failure = fatal.or(handled);
        let device = failure.map_or_else(of_leak, |failure| failure.oom.device);
        let at_peak = process.who.as_ref().map(|who| &who.peak);
        let held = failure.map(|failure| &failure.held).or(at_peak);
        let at_peak_in_use = || process.state.devices.get(&device).map(|of| of.peak.in_use);
        let in_use = failure.map(|failure| failure.device.in_use()).or_else(at_peak_in_use);
        let next = match kind {
            _ if leak.is_some() => "leaks",
            _ if failure.is_some() => "oom",
            VerdictKind::InOrder | VerdictKind::Running | VerdictKind::NotKnown => "holders",
            _ => "report",
        };
        Verdict {
            kind,
            device,
            at_ns: failure.map_or(process.ending.last_ns, |failure| failure.oom.time_ns),
            no_leak: leaks.is_some_and(Leaks::is_none),
            leak,
            holder: held.and_then(|held| largest(process, device, held)).map(|holder| {
                // Beside what is held there may be free memory of the driver's pools, and what only NVML shows.
                let all = in_use.map_or(0, |of| of.headline()).max(holder.bytes).max(1);
                Holder { share: holder.share.min(holder.bytes as f64 / all as f64), ..holder }
            }),
            next,
        }
    }

    /// The process whose verdict is that of the run: of failures the first, as the others often follow from it; of other
    /// findings that with the highest peak.
    pub fn worst(processes: &[Process]) -> Option<usize> {
        let severity = |index: &usize| {
            let process = &processes[*index];
            let of = Verdict::of(process);
            let is_failure = matches!(of.kind, VerdictKind::OutOfMemory | VerdictKind::CutOff);
            let at_ns = process.header.start_unix_ns.saturating_add(of.at_ns);
            let bad = (!of.kind.is_fine()).then_some(of.kind);
            (bad, Reverse(if is_failure { at_ns } else { 0 }), process.peak_bytes())
        };
        (0..processes.len()).rev().max_by_key(severity)
    }
}

/// The largest holder of a device that has a line; a context, which each process has, if there is no other.
fn largest(process: &Process, device: DeviceId, held: &Holdings) -> Option<Holder> {
    let is_it = |of: &Holder| of.device == device && !of.stack.is_free_cache();
    let holders = process.classifier()?.holders(held, GroupBy::Line).into_iter();
    let named = holders.filter(|of| is_it(of) && of.stack.lead().is_some());
    named.min_by_key(Holder::is_one_context)
}

impl Collect {
    /// What a [`Verdict`] needs of the first pass over the traces.
    pub fn for_verdict(traces: &[Trace]) -> Collect {
        let leaks = traces.iter().map(Trace::len).sum::<u64>() <= QUICK_BYTES;
        Collect { roles: Some(RolesOf::Blocks), leaks, points: true, ..Collect::default() }
    }
}
