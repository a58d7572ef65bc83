//! `leaks --json`: schema `vramtrace.leaks/1`.

use serde::Serialize;

use crate::analysis::leaks::{Leak, Leaks, Suppressions, UnusedRule};
use crate::analysis::{MergedLeak, merge_leaks};

pub const SCHEMA: &str = "vramtrace.leaks/1";

/// `vramtrace.leaks/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaksReport {
    pub schema: &'static str,
    /// Of all processes. The certain ones come first, and of these the largest.
    pub leaks: Vec<Leak>,
    pub processes: Vec<Leaks>,
    /// Only of several processes: the leaks, each once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<MergedLeak>,
    /// Rules of the suppressions file that match no leak.
    pub unused_suppressions: Vec<UnusedRule>,
}

/// The document.
pub fn report(all: &[Leaks], rules: &Suppressions) -> LeaksReport {
    let mut leaks: Vec<Leak> = all.iter().flat_map(|found| found.leaks.clone()).collect();
    leaks.sort_by_key(|leak| (!leak.is_sure(), std::cmp::Reverse(leak.bytes)));
    LeaksReport {
        schema: SCHEMA,
        leaks,
        merged: if all.len() > 1 { merge_leaks(all) } else { Vec::new() },
        unused_suppressions: rules.unused(all),
        processes: all.to_vec(),
    }
}
