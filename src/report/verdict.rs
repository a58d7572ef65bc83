//! The verdict on a process in words: what happened, the line of code behind it.

use std::slice::from_ref;

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::oom::FailureFacts;
use super::text::{leaks, stack::place};
use super::wording::{END_NOT_RECORDED, MUCH_PINNED, cut_off, gpu_name, headline};
use crate::analysis::{Process, Verdict, VerdictKind, with_cause};
use crate::units::{estimate, seconds, several, size};

/// The verdict on a process.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WordedVerdict {
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The same in words.
    pub text: String,
    /// The line of the leak, of the refused request, or of the holder, with its figures in words.
    pub line: Option<String>,
    /// Of a run that no failure ended the last one. Null: there was none.
    pub handled: Option<FailureFacts>,
}

impl WordedVerdict {
    /// On a process that was read to its end, after [`Process::look_closer`].
    pub fn of(process: &Process) -> WordedVerdict {
        let verdict = Verdict::of(process);
        let failed = process.fatal().first().or(process.handled());
        let failed = FailureFacts::of(process, failed.map_or(&[], from_ref)).pop();
        let text = text(process, &verdict, failed.as_ref().map(|failed| failure(process, failed)));
        let handled = failed.filter(|_| verdict.kind != VerdictKind::OutOfMemory);
        let line = match (verdict.kind, &handled) {
            (VerdictKind::Leak, _) => leak_line(&verdict),
            (VerdictKind::RefusedAndWentOn, Some(FailureFacts { oom, line: Some(line), .. })) => {
                Some(format!("{line} asked for {}", size(oom.size)))
            }
            _ => holder_line(&verdict),
        };
        WordedVerdict { text, line, handled, verdict }
    }

    /// In one line, with the peak of the device that it is about where that is not in the words.
    pub fn headline(&self, process: &Process) -> String {
        let Verdict { kind, device: id, .. } = self.verdict;
        let words = &self.text;
        let is_whole = VerdictKind::Leak <= kind || kind == VerdictKind::NoMemory;
        let Some(device) = process.state.devices.get(&id).filter(|_| !is_whole) else {
            return words.clone();
        };
        let of = match process.definitions.device(id).map(|defined| defined.total_bytes) {
            Some(total) if total > 0 => format!(", of {}", size(total)),
            _ => String::new(),
        };
        let peak = format!("peak {}{of} on {}", headline(&device.peak.in_use), gpu_name(id));
        match kind {
            VerdictKind::Running => {
                format!("{words}; {peak} so far, {} live now", size(device.live_bytes))
            }
            _ => format!("{words}; {peak}"),
        }
    }
}

/// `failure`: the words about the first request that failed.
fn text(process: &Process, of: &Verdict, failure: Option<String>) -> String {
    let (on, at) = (gpu_name(of.device), seconds(of.at_ns));
    let no_leak = match process.leaks.as_ref().map_or(0, |leaks| leaks.host_pinned_bytes) {
        _ if !of.no_leak => String::new(),
        ..MUCH_PINNED => "no leak, ".to_string(),
        pinned => {
            format!("no leak on the GPU, {} of pinned host memory not judged, ", size(pinned))
        }
    };
    let also = failure.as_ref().map_or(String::new(), |handled| format!("; {handled}"));
    match (of.kind, &of.leak) {
        (VerdictKind::OutOfMemory, _) => {
            let killed = process.ending.seen.as_ref().filter(|how| how.starts_with("killed"));
            let then = killed.map_or(String::new(), |how| format!("; then {how}"));
            failure.unwrap_or_default() + &then
        }
        (_, Some(leak)) => {
            let all = process.leaks.iter().flat_map(|leaks| leaks.sure()).count() as u64;
            let others = match all.saturating_sub(1) {
                0 => String::new(),
                n => format!(", and {}", several(n, "other leak")),
            };
            format!("memory leaks on {on}: {}{others}{also}", size(leak.bytes))
        }
        (VerdictKind::NoMemory, ..) => "no GPU memory was used".to_string(),
        _ if !process.definitions.has_history() => "the file is of one moment".to_string(),
        (VerdictKind::Running, ..) => format!("still running{also}"),
        (VerdictKind::CutOff, ..) => {
            let live = process.devices().map(|(_, device)| device.live_bytes);
            let live = size(live.fold(0, u64::saturating_add));
            let how = cut_off(process.ending.exit_status, &process.ending.seen, END_NOT_RECORDED);
            format!("{how}; at {at} {live} were live{also}")
        }
        (VerdictKind::RefusedAndWentOn, ..) => failure.unwrap_or_else(|| {
            let refused = several(process.state.refusals(), "request");
            let last = process.state.last_refusals.back();
            let last = last.filter(|at| at.refused.size > 0 && at.device != DeviceId::UNKNOWN);
            let last = last.map(|at| {
                let (bytes, on) = (size(at.refused.size), gpu_name(at.device));
                format!(" (the last {bytes} on {on} at {})", seconds(at.time_ns))
            });
            format!("{refused} refused{}, and the program went on", last.unwrap_or_default())
        }),
        (VerdictKind::NotKnown, ..) => format!("{no_leak}{END_NOT_RECORDED}"),
        _ => {
            let status = process.ending.exit_status.filter(|status| *status != 0);
            let status = status.map_or(String::new(), |n| format!("; ended with status {n}"));
            let beyond = process.devices().map(|(_, device)| device.warned).sum::<u64>();
            let beyond = match beyond {
                0 => String::new(),
                n => format!("; {} passed the cap, which only warns", several(n, "request")),
            };
            format!("{no_leak}no request refused{beyond}{status}")
        }
    }
}

/// Which request failed, its limit and why, in one line.
fn failure(process: &Process, one: &FailureFacts) -> String {
    let of_host = one.oom.is_of_host();
    let on = if of_host { "the host".to_string() } else { gpu_name(one.oom.device) };
    let timed = process.definitions.has_times();
    let at = if timed { format!(" at {}", seconds(one.oom.time_ns)) } else { String::new() };
    let first = match (one.oom.went_on, process.state.refusals()) {
        (false, _) => {
            let leak = one.leak_text.as_ref().map(|leak| format!(" because {leak}"));
            let place = one.line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
            let more = |bytes| format!(": needs {} more{place}", size(bytes));
            let why = leak.or(one.needs_more_bytes.map(more)).unwrap_or(place);
            format!("out of memory on {on}{at}{why}")
        }
        (true, refusals) => {
            let asked = if one.oom.size > 0 { size(one.oom.size) } else { "a call".into() };
            let of = if refusals > 1 { format!(", one of {refusals} refusals") } else { "".into() };
            format!("{asked} refused on {on}{at}{of}, and the program went on")
        }
    };
    format!("{first}; limit: {}; {}", one.limit_text, one.text)
}

fn leak_line(of: &Verdict) -> Option<String> {
    let leak = of.leak.as_ref()?;
    let verdict = leak.verdict.name().replace('_', " ");
    let (rate, sure) = (leaks::growth(leak.rate), (leak.confidence * 100.0).floor());
    Some(format!("{}: {verdict}{rate}, {sure} % sure", place(&leak.stack)?))
}

/// The line of code that held the most bytes, and its share of the bytes on that device.
/// `serve.py:31 held 18.00 GiB at the peak (75 %)`. `None`: no line is known, or there is a context alone.
pub fn holder_line(of: &Verdict) -> Option<String> {
    let failed = of.kind == VerdictKind::OutOfMemory;
    // A context alone fills no card.
    let holder = of.holder.as_ref().filter(|of| !failed || !of.is_one_context())?;
    let when = if failed { "failure" } else { "peak" };
    let place = with_cause(holder.driver_memory, place(&holder.stack)?);
    let bytes = estimate(holder.bytes, holder.error_bytes);
    Some(format!("{place} held {bytes} at the {when} ({:.0} %)", holder.share * 100.0))
}
