//! Refused requests that a library did not report, two lines each: the refusal, and the error that
//! another API function returned later.

use super::super::layout::{BAD, BOLD, DIM, paint};
use crate::analysis::oom::{Cause, NotReported};
use crate::report::wording::{cuda_name, cuda_result};
use crate::units::{clean, limit, seconds, size};

/// `who`: the name of the process with a space after it, or empty.
pub fn swallowed(who: &str, one: &NotReported) -> String {
    let ended = one
        .exit_status
        .map_or(String::new(), |status| format!("; the process ended with status {status}"));
    format!(
        "{}  {who}{} at {}: {} ({}) {}, and went on\n  {}      {} returned {} at {}{ended}\n",
        paint(BAD, "REFUSAL NOT REPORTED"),
        cuda_name(one.device),
        seconds(one.time_ns),
        paint(BOLD, &format!("{} was refused {}", clean(&one.library), size(one.size_bytes))),
        clean(&one.api),
        refused_by(one),
        paint(DIM, "next"),
        clean(&one.next_api),
        cuda_result(one.next_result),
        seconds(one.next_ns),
    )
}

/// Which limit refused it: `by the cap of 8.00 GiB`.
fn refused_by(one: &NotReported) -> String {
    let free = one
        .card_free_bytes
        .map_or(String::new(), |free| format!(", which had {} free", size(free)));
    let cap = limit(one.limit_bytes.unwrap_or(0));
    match (one.cause, &one.setting) {
        (Cause::Mps, Some((name, value))) => format!("by MPS ({name}={})", clean(value)),
        (_, Some((name, value))) => format!("by the kernel's cgroup ({name} {})", clean(value)),
        (Cause::Card, None) => format!("by the card{free}"),
        (_, None) if one.refused_by == vramtrace_format::RefusedBy::Group.name() => {
            format!("by the group's cap of {cap}")
        }
        (_, None) => format!("by the cap of {cap}"),
    }
}
