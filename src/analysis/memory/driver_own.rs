//! Memory that the driver takes for itself, by cause and by the line whose call made it do so.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use vramtrace_format::{Cause, SiteId, StackId};

use super::holders::StackClassifier;
use crate::replay::DeviceState;
use crate::symbols::demangle;
use crate::trace::Definitions;

/// Memory that the driver took for one cause, by calls from one line.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenBy {
    pub cause: Cause,
    pub bytes: u64,
    /// The call that took the most; reports show its stack and name for all.
    pub site: SiteId,
    pub stack: StackId,
    /// A text of the definitions: kernel, variable or file; 0 = not known.
    pub name: u32,
}

impl TakenBy {
    /// The kernel, variable or file that the memory was taken for.
    pub fn name(&self, definitions: &Definitions) -> Option<String> {
        definitions.text(self.name).map(demangle)
    }
}

/// The name of a holder of memory that the driver took: `graphs: train.py:41 capture`.
pub fn with_cause(cause: Option<Cause>, name: String) -> String {
    match cause {
        Some(cause) => format!("{}: {name}", cause.words()),
        None => name,
    }
}

/// Memory that the driver took on a device, by cause and line, largest first. Without a `classifier`
/// (no stacks were recorded), by cause and call.
pub fn taken_by(device: &DeviceState, classifier: Option<&StackClassifier>) -> Vec<TakenBy> {
    let mut all: Vec<TakenBy> = Vec::new();
    let mut known: FxHashMap<_, usize> = FxHashMap::default();
    for (maker, bytes) in device.driver_own.makers() {
        let line = classifier.map(|classifier| classifier.line_of(maker.stack));
        // With a line, calls differ by the line; without, by their site.
        let site = if line.is_none() { maker.site } else { SiteId(0) };
        match known.entry((maker.cause, line, site)) {
            Entry::Occupied(at) => {
                let taken = &mut all[*at.get()];
                taken.bytes = taken.bytes.saturating_add(bytes);
            }
            Entry::Vacant(slot) => {
                slot.insert(all.len());
                let (cause, site, stack) = (maker.cause, maker.site, maker.stack);
                all.push(TakenBy { cause, bytes, site, stack, name: maker.name });
            }
        }
    }
    all.sort_by_key(|taken| std::cmp::Reverse(taken.bytes));
    all
}
