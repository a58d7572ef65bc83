//! Memory that the driver takes for itself, by cause, and by the line whose call made it do so.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{DriverCause, SiteId};

use super::classifier::{NamedStack, StackClassifier};
use super::moment::Level;
use crate::replay::{DeviceState, Originator};
use crate::symbols::demangle;
use crate::trace::Definitions;

/// Memory that the driver took for one cause, by calls from one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct TakenBy {
    pub bytes: u64,
    /// As in `driver_bytes`.
    pub cause: &'static str,
    /// The function of the call that took the most of it. `needed_for` and the frames are of the same call.
    pub api: String,
    /// The kernel, variable or file.
    pub needed_for: Option<String>,
    pub library: Option<String>,
    #[serde(flatten)]
    pub stack: NamedStack,
}

/// The name of a holder of memory that the driver took: `graphs: train.py:41 capture`.
pub fn with_cause(cause: Option<DriverCause>, name: String) -> String {
    match cause {
        Some(cause) => format!("{}: {name}", cause.words()),
        None => name,
    }
}

/// Memory that the driver took on a device, by cause and line, the `top` largest first. Without a `classifier`
/// (no stacks were recorded), by cause and call.
pub fn taken_by(
    device: &DeviceState,
    definitions: &Definitions,
    classifier: Option<&StackClassifier>,
    top: usize,
) -> Vec<TakenBy> {
    let mut all: Vec<(Originator, u64)> = Vec::new();
    let mut known: FxHashMap<_, usize> = FxHashMap::default();
    for (maker, bytes) in device.driver_own.makers() {
        let line = classifier.map(|classifier| classifier.holder_key(maker.stack, Level::Driver));
        // With a line, calls differ by the line; without, by their site.
        let site = if line.is_none() { maker.site } else { SiteId(0) };
        match known.entry((maker.cause, line, site)) {
            Entry::Occupied(at) => {
                let (_, taken) = &mut all[*at.get()];
                *taken = taken.saturating_add(bytes);
            }
            Entry::Vacant(slot) => {
                slot.insert(all.len());
                all.push((maker, bytes));
            }
        }
    }
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = |(of, bytes): (Originator, u64)| {
        let (library, stack) = classifier.map_or_else(Default::default, |classifier| {
            let key_frames = classifier.key_frames(of.stack);
            let library = classifier.library_name(&key_frames).map(str::to_string);
            (library, classifier.named_by(of.stack, &key_frames))
        });
        TakenBy {
            bytes,
            cause: of.cause.name(),
            api: definitions.site_api_name(of.site),
            needed_for: definitions.text(of.name).map(demangle),
            library,
            stack,
        }
    };
    all.into_iter().take(top).map(named).collect()
}
