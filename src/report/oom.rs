//! The data that a list of a run's out-of-memory failures is made from.

use std::collections::BTreeMap;
use std::path::Path;

use vramtrace_format::{DeviceId, Header};

use crate::analysis::oom::{Oom, RefusalCounts};
use crate::analysis::whatif::Origin;
use crate::replay::State;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// The limit in which a replay fits.
pub(crate) fn fits_in_words(origin: Origin) -> &'static str {
    match origin {
        Origin::Cap => "under the same cap",
        Origin::Card => "on the same card",
        Origin::Asked => "in the same capacity",
        Origin::Reserved => "in what PyTorch had reserved before",
    }
}

/// One out-of-memory failure, with the definitions and symbols that name its parts.
#[derive(Debug)]
pub struct ListedOom<'r> {
    /// Counts from 1, in the order of the list.
    pub number: usize,
    pub oom: &'r Oom,
    pub header: &'r Header,
    pub trace: &'r Path,
    pub definitions: &'r Definitions,
    pub symbols: &'r Symbols,
}

/// The refused requests of a process that had no out-of-memory failure.
#[derive(Debug)]
pub struct ProcessRefusals<'r> {
    /// Empty where there is one process only.
    pub name: String,
    pub end: &'r State,
    pub refusals: &'r BTreeMap<DeviceId, RefusalCounts>,
}
