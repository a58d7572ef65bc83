//! The same leak in several processes of a run, once: by its level and its line.

use std::collections::HashMap;

use super::ranks::key;
use crate::analysis::leaks::{Leak, Leaks};
use crate::analysis::{GroupBy, StackClassifier};

/// One leak of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedLeak {
    /// Of all processes.
    pub bytes: u64,
    /// Which processes, and which of their leaks. In order.
    pub places: Vec<(usize, usize)>,
    /// The surest of them, and of these the largest: it stands for all.
    pub shown: (usize, usize),
}

impl MergedLeak {
    /// The smallest and the largest of them.
    pub fn range(&self, found: &[Leaks]) -> (u64, u64) {
        let bytes = || self.places.iter().map(|(process, leak)| found[*process].leaks[*leak].bytes);
        (bytes().min().unwrap_or(0), bytes().max().unwrap_or(0))
    }
}

/// Leaks of several processes, the sure and the large ones first.
pub fn merge(found: &[Leaks]) -> Vec<MergedLeak> {
    let leak = |(process, leak): (usize, usize)| -> &Leak { &found[process].leaks[leak] };
    let mut known: HashMap<_, usize> = HashMap::new();
    let mut all: Vec<MergedLeak> = Vec::new();
    for (process, leaks) in found.iter().enumerate() {
        let classifier = StackClassifier::new(&leaks.symbols, &leaks.header);
        for (index, this) in leaks.leaks.iter().enumerate() {
            let roles = classifier.roles_at(this.stack, this.level);
            let key = (this.level, key(&classifier, this.stack, &roles, GroupBy::Line));
            let place = (process, index);
            let next = all.len();
            let at = *known.entry(key).or_insert(next);
            if at == next {
                all.push(MergedLeak { bytes: 0, places: Vec::new(), shown: place });
            }
            let merged = &mut all[at];
            merged.bytes = merged.bytes.saturating_add(this.bytes);
            merged.places.push(place);
            let shown = leak(merged.shown);
            if (this.confidence, this.bytes) > (shown.confidence, shown.bytes) {
                merged.shown = place;
            }
        }
    }
    all.sort_by_key(|merged| {
        (leak(merged.shown).confidence < 0.5, std::cmp::Reverse(merged.bytes))
    });
    all
}
