//! The verdict on a process in words: what happened, the line of code behind it.

use serde::Serialize;

use super::text::{leaks, oom, stack::place};
use super::wording::{gpu_name, headline};
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
    /// The line of the leak, or of the holder, with its figures in words.
    pub line: Option<String>,
}

impl WordedVerdict {
    /// On a process that was read to its end, after [`Process::look_closer`].
    pub fn of(process: &Process) -> WordedVerdict {
        let verdict = Verdict::of(process);
        let line = match verdict.kind {
            VerdictKind::Leak => leak_line(&verdict),
            _ => holder_line(&verdict),
        };
        WordedVerdict { text: text(process, &verdict), line, verdict }
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

fn text(process: &Process, of: &Verdict) -> String {
    let (on, at) = (gpu_name(of.device), seconds(of.at_ns));
    let no_leak = if of.no_leak { "no leak, " } else { "" };
    match (of.kind, &process.fatal[..], &of.leak) {
        (_, [fatal, ..], leak) => {
            let leak = leak.as_ref().map(|leak| format!(" because {}", leaks::keeps(leak)));
            let (leak, limit, why) = (leak.unwrap_or_default(), oom::limit(fatal), oom::why(fatal));
            format!("out of memory on {on} at {at}{leak}; limit: {limit}; {why}")
        }
        (_, _, Some(leak)) => {
            let all = process.leaks.iter().flat_map(|leaks| leaks.sure()).count() as u64;
            let others = match all.saturating_sub(1) {
                0 => String::new(),
                n => format!(", and {}", several(n, "other leak")),
            };
            format!("memory leaks on {on}: {}{others}", size(leak.bytes))
        }
        (VerdictKind::NoMemory, ..) => "no GPU memory was used".to_string(),
        _ if !process.definitions.has_history() => "the file is of one moment".to_string(),
        (VerdictKind::Running, ..) => "still running".to_string(),
        (VerdictKind::CutOff, ..) => {
            let live = process.devices().map(|(_, device)| device.live_bytes);
            let live = size(live.fold(0, u64::saturating_add));
            format!("killed, crashed or left by _exit at {at}, with {live} live")
        }
        (VerdictKind::RefusedAndWentOn, ..) => {
            let refused = several(process.state.refusals(), "request");
            format!("{refused} refused, and the program went on")
        }
        (VerdictKind::NotKnown, ..) => format!("{no_leak}its end was not recorded"),
        _ => format!("{no_leak}no request refused"),
    }
}

fn leak_line(of: &Verdict) -> Option<String> {
    let leak = of.leak.as_ref()?;
    let verdict = leak.verdict.name().replace('_', " ");
    let (rate, sure) = (leaks::growth(leak.rate), (leak.confidence * 100.0).floor());
    Some(format!("{}: {verdict}{rate}, {sure} % sure", place(&leak.stack)?))
}

/// The line of code that held the most bytes, and its share of the bytes on that device.
fn holder_line(of: &Verdict) -> Option<String> {
    let holder = of.holder.as_ref()?;
    let when = if of.kind == VerdictKind::OutOfMemory { "failure" } else { "peak" };
    let place = with_cause(holder.driver_memory, place(&holder.stack)?);
    let bytes = estimate(holder.bytes, holder.error_bytes);
    Some(format!("{place} held {bytes} at the {when} ({:.0} %)", holder.share * 100.0))
}
