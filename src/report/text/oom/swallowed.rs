//! Refused requests that a library did not report, two lines each: the refusal, and the error that
//! another API function returned later.

use super::super::layout::{BAD, BOLD, DIM, paint};
use crate::analysis::StackClassifier;
use crate::analysis::oom::{Cause, Swallowed};
use crate::report::wording::{cuda_name, cuda_result};
use crate::trace::Definitions;
use crate::units::{clean, limit, seconds, size};

/// Only requests of a library are listed. `who`: the name of the process with a space after it, or
/// empty.
pub fn swallowed(
    who: &str,
    all: &[Swallowed],
    classifier: &StackClassifier,
    definitions: &Definitions,
) -> String {
    let one = |one: &Swallowed| {
        let library = clean(one.library(classifier)?);
        let (refusal, error) = (&one.refusal, &one.error);
        let refused = refusal.refused;
        let title = paint(BAD, "REFUSAL NOT REPORTED");
        let call = clean(&definitions.site_api_name(refused.site));
        let what = format!("{library} was refused {}", size(refused.size));
        let by = refused_by(one, definitions);
        let at = seconds(refusal.time_ns);
        let device = cuda_name(refusal.device);
        let ended = one
            .status
            .map_or(String::new(), |status| format!("; the process ended with status {status}"));
        Some(format!(
            "{title}  {who}{device} at {at}: {} ({call}) {by}, and went on\n  {}      {} \
             returned {} at {}{ended}\n",
            paint(BOLD, &what),
            paint(DIM, "next"),
            clean(&definitions.api_name(error.api)),
            cuda_result(error.result),
            seconds(error.time_ns),
        ))
    };
    all.iter().filter_map(one).collect()
}

/// Which limit refused it: `by the cap of 8.00 GiB`.
fn refused_by(one: &Swallowed, definitions: &Definitions) -> String {
    let refused = one.refusal.refused;
    let free = match refused.driver_free {
        0 => String::new(),
        free => format!(", which had {} free", size(free)),
    };
    let setting = |name| clean(definitions.setting(name).unwrap_or_default());
    match one.cause(definitions) {
        Cause::Mps => format!(
            "by MPS ({}={})",
            vramtrace_format::oom::MPS_LIMIT,
            setting(vramtrace_format::oom::MPS_LIMIT)
        ),
        Cause::Cgroup => format!(
            "by the kernel's cgroup ({} {})",
            vramtrace_format::oom::CGROUP_LIMIT,
            setting(vramtrace_format::oom::CGROUP_LIMIT)
        ),
        Cause::Card => format!("by the card{free}"),
        _ if refused.by == vramtrace_format::RefusedBy::Group => {
            format!("by the group's cap of {}", limit(refused.limit))
        }
        _ => format!("by the cap of {}", limit(refused.limit)),
    }
}
