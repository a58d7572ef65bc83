//! A process in three lines: the verdict, the line of code behind it, the command to run next.

use super::stack::place;
use super::{leaks, oom};
use crate::analysis::leaks::Leaks;
use crate::analysis::{GroupBy, Holdings, Process, StackClassifier, with_cause};
use crate::report::shell::quoted;
use crate::report::wording::{gpu_name, headline};
use crate::units::{estimate, seconds, several, size};

/// How a process ended. A worse finding is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    Nothing,
    Fine,
    Refused,
    CutOff,
    Leak,
    OutOfMemory,
}

impl Finding {
    /// The subcommand of vramtrace that explains the finding.
    pub fn command(self) -> &'static str {
        match self {
            Finding::OutOfMemory => "oom",
            Finding::Leak => "leaks",
            Finding::Fine => "holders",
            Finding::Nothing | Finding::Refused | Finding::CutOff => "report",
        }
    }
}

#[derive(Clone, Debug)]
pub struct RunVerdict {
    pub finding: Finding,
    pub what: String,
    /// The line of code that held the most memory, or that leaks, as text.
    pub line: Option<String>,
    /// A setting of PyTorch's allocator under which the replayed run fits, as text.
    pub fix: Option<String>,
}

/// The verdict on a process that was read to its end, after [`Process::find_fatal`] and
/// [`Process::find_holders`]. `leaks`: `None` if leaks were not searched for.
pub fn verdict(process: &Process, leaks: Option<&Leaks>) -> RunVerdict {
    if let Some(fatal) = process.fatal.first() {
        let fix = fatal.remedy.as_ref().and_then(|remedy| remedy.fix.as_ref());
        let fix = fix.map(|(conf, spare)| {
            let (conf, spare) = (quoted(conf), size(*spare));
            format!("PYTORCH_CUDA_ALLOC_CONF={conf} (replayed: it fits, {spare} to spare)")
        });
        let (on, at) = (gpu_name(fatal.oom.device), seconds(fatal.oom.time_ns));
        let (limit, why) = (oom::limit(fatal), oom::why(fatal));
        return RunVerdict {
            finding: Finding::OutOfMemory,
            what: format!("out of memory on {on} at {at}; limit: {limit}; {why}"),
            line: largest_holder(process, &fatal.held, "at the failure"),
            fix,
        };
    }
    if let Some(verdict) = leaks.and_then(leak_verdict) {
        return verdict;
    }
    let who = process.who.as_ref();
    let line = who.and_then(|who| largest_holder(process, &who.peak, "at the peak"));
    let judged = leaks.is_some_and(|leaks| leaks.not_judged.is_none());
    let (finding, what) = outcome(process, judged);
    RunVerdict { finding, what, line, fix: None }
}

/// The verdict on the first leak that is sure. `None`: there is none.
fn leak_verdict(found: &Leaks) -> Option<RunVerdict> {
    let mut sure = found.leaks.iter().filter(|leak| leak.is_sure());
    let first = sure.next()?;
    let line = place(&first.stack).map(|place| {
        let rate = leaks::growth(first.rate);
        let verdict = first.verdict.name().replace('_', " ");
        format!("{place}: {verdict}{rate}, {} % sure", (first.confidence * 100.0).floor())
    });
    let others = match sure.count() {
        0 => String::new(),
        n => format!(", and {}", several(n as u64, "other leak")),
    };
    let what = format!("memory leaks on {}: {}{others}", gpu_name(first.device), size(first.bytes));
    Some(RunVerdict { finding: Finding::Leak, what, line, fix: None })
}

/// The finding on a process without a fatal failure and without a sure leak. `no_leak`: leaks were
/// searched for.
fn outcome(process: &Process, no_leak: bool) -> (Finding, String) {
    let Some((id, device)) = process.devices().max_by_key(|(_, device)| device.peak.bytes) else {
        return (Finding::Nothing, "no GPU memory was used".to_string());
    };
    let of = match process.definitions.device(id).map(|defined| defined.total_bytes) {
        Some(total) if total > 0 => format!(", of {}", size(total)),
        _ => String::new(),
    };
    let peak = format!("peak {}{of} on {}", headline(&device.peak.in_use), gpu_name(id));
    let live = size(device.live_bytes);
    if process.running {
        return (Finding::Fine, format!("still running; {peak} so far, {live} live now"));
    }
    let (finding, what) = ending(process, live, no_leak);
    (finding, format!("{what}; {peak}"))
}

/// How a process ended that is not running. `live`: what it held then, as text.
fn ending(process: &Process, live: String, no_leak: bool) -> (Finding, String) {
    if !process.ended_in_order() {
        let at = seconds(process.ending.last_ns);
        let what = format!("killed, crashed or left by _exit at {at}, with {live} live");
        return (Finding::CutOff, what);
    }
    match process.state.refusals() {
        0 => {
            let no_leak = if no_leak { "no leak, " } else { "" };
            (Finding::Fine, format!("{no_leak}no request refused"))
        }
        refusals => {
            let refused = several(refusals, "request");
            (Finding::Refused, format!("{refused} refused, and the program went on"))
        }
    }
}

/// How a process ended without a fatal failure, for a view that shows its peak by itself. `no_leak`: leaks were searched
/// for, and there is none. `None`: it runs, used no memory, or an import does not tell.
pub(crate) fn ended(process: &Process, no_leak: bool) -> Option<String> {
    let told = !process.running && process.definitions.imported_from().is_none();
    let used = process.devices().any(|(_, device)| device.peak.bytes > 0);
    let live = process.devices().map(|(_, device)| device.live_bytes).fold(0, u64::saturating_add);
    (told && used && process.fatal.is_empty()).then(|| {
        let (finding, what) = ending(process, size(live), no_leak);
        let in_order = if finding == Finding::CutOff { "" } else { "in order, " };
        format!("{in_order}{what}")
    })
}

/// The line of code that held the most bytes, and its share of the bytes on that device.
fn largest_holder(process: &Process, held: &Holdings, when: &str) -> Option<String> {
    let who = process.who.as_ref()?;
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let holders = classifier.holders(held, GroupBy::Line);
    let named = holders.iter().filter(|holder| !holder.stack.is_free_cache());
    let (holder, place) =
        named.filter_map(|holder| Some((holder, place(&holder.stack)?))).next()?;
    let (place, share) = (with_cause(holder.driver_memory, place), holder.share * 100.0);
    let bytes = estimate(holder.bytes, holder.error_bytes);
    Some(format!("{place} held {bytes} {when} ({share:.0} %)"))
}
