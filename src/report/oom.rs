//! What the list of a run's out-of-memories names.

use std::collections::BTreeMap;
use std::path::Path;

use vramtrace_format::{DeviceId, Header};

use crate::analysis::oom::{Oom, RefusalCounts};
use crate::replay::State;
use crate::symbols::Symbols;
use crate::trace::Definitions;

/// One out-of-memory of a run, with what names it.
#[derive(Debug)]
pub struct ListedOom<'r> {
    /// From 1, in the order of the run.
    pub number: usize,
    pub oom: &'r Oom,
    pub header: &'r Header,
    pub trace: &'r Path,
    pub definitions: &'r Definitions,
    pub symbols: &'r Symbols,
}

/// What a process without any has to say for itself.
#[derive(Debug)]
pub struct ProcessRefusals<'r> {
    /// Empty where there is one process only.
    pub name: String,
    pub end: &'r State,
    pub refusals: &'r BTreeMap<DeviceId, RefusalCounts>,
}
