//! What was judged, by where it is listed: a leak, a framework's pool, a leak that is known, or kept memory.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, StackId};

use super::growth::KeptReason;
use super::judge::Innocent;
use super::suppress::Suppressions;
use super::verdict::{KeptMemory, Leak, Pooled, Suppressed};
use crate::analysis::{Level, StackClassifier};
use crate::replay::State;

/// Frameworks that keep what they free.
const POOLS: [&str; 5] = ["PyTorch", "XLA", "TensorFlow", "CuPy", "RMM"];

/// The framework that made this allocation of the driver for its pool, if one did.
pub(super) fn pool_of<'r>(
    classifier: &'r StackClassifier,
    level: Level,
    stack: StackId,
) -> Option<&'r str> {
    let library = classifier.library_name(&classifier.key_frames(stack))?;
    (level == Level::Driver && POOLS.contains(&library)).then_some(library)
}

pub(super) struct Sorted<'c> {
    classifier: &'c StackClassifier<'c>,
    rules: &'c Suppressions,
    /// Smaller leaks are left out, bytes.
    least: u64,
    leaks: Vec<Leak>,
    /// With the bytes of the largest stack.
    pub kept: BTreeMap<(DeviceId, Level, KeptReason), (KeptMemory, u64)>,
    /// By device and library; what is free in a cache comes before all.
    pub pooled: BTreeMap<(DeviceId, String), Pooled>,
    /// By the line of the rule.
    pub suppressed: BTreeMap<usize, Suppressed>,
}

impl<'c> Sorted<'c> {
    pub(super) fn new(
        classifier: &'c StackClassifier<'c>,
        rules: &'c Suppressions,
        least: u64,
    ) -> Sorted<'c> {
        Sorted {
            classifier,
            rules,
            least,
            leaks: Vec::new(),
            kept: BTreeMap::new(),
            pooled: BTreeMap::new(),
            suppressed: BTreeMap::new(),
        }
    }

    /// Adds what was judged to leak.
    pub(super) fn leak(&mut self, leak: Leak) {
        let stack = leak.stack.id;
        let of_driver = leak.driver.is_some();
        let library = pool_of(self.classifier, leak.level, stack).filter(|_| !of_driver);
        if let Some(library) = library {
            self.pool(leak.device, library, leak.bytes, leak.rate);
        } else if leak.bytes < self.least.max(1) {
        } else if let Some(line) = self.rules.rule_for(self.classifier.symbols.stack(stack)) {
            let first = Suppressed { line, leaks: 0, bytes: 0 };
            let sums = self.suppressed.entry(line).or_insert(first);
            sums.leaks += 1;
            sums.bytes += leak.bytes;
        } else {
            self.leaks.push(leak);
        }
    }

    /// Adds what was judged not to leak.
    pub(super) fn innocent(&mut self, Innocent { case, why }: &Innocent) {
        let ((level, device), sums) = (case.at, &case.sums);
        if sums.bytes == 0 {
            return;
        }
        if let Some(library) = pool_of(self.classifier, level, case.stack) {
            return self.pool(device, library, sums.bytes, None);
        }
        let (kept, most) = self.kept.entry((device, level, *why)).or_insert_with(|| {
            let largest = self.classifier.named(case.stack);
            let (why, bytes, count, stacks) = (*why, 0, 0, 0);
            (KeptMemory { why, level, device, bytes, count, stacks, largest }, 0)
        });
        kept.bytes = kept.bytes.saturating_add(sums.bytes);
        kept.count = kept.count.saturating_add(sums.count);
        kept.stacks += case.stacks;
        if sums.bytes > *most {
            (*most, kept.largest) = (sums.bytes, self.classifier.named(case.stack));
        }
    }

    /// Adds what caches have free.
    pub(super) fn free_in_caches(&mut self, state: &State) {
        for (device, sums) in &state.devices {
            if sums.cache.is_used() && sums.cache.free_resident() > 0 {
                let (bytes, library) = (sums.cache.free_resident(), "PyTorch".to_string());
                let free = Pooled { library, device: *device, bytes, free: true, rate: None };
                self.pooled.insert((*device, " free".into()), free);
            }
        }
    }

    fn pool(&mut self, device: DeviceId, library: &str, bytes: u64, rate: Option<f64>) {
        let first = || {
            let library = library.to_string();
            Pooled { library, device, bytes: 0, free: false, rate: None }
        };
        let sums = self.pooled.entry((device, library.to_string())).or_insert_with(first);
        sums.bytes += bytes;
        if let Some(rate) = rate {
            *sums.rate.get_or_insert(0.0) += rate;
        }
    }

    /// The leaks with their names, in the order of a report.
    pub(super) fn leaks(&mut self, from_ns: u64) -> Vec<Leak> {
        let leaks = std::mem::take(&mut self.leaks).into_iter();
        let mut leaks: Vec<Leak> = leaks.map(|leak| leak.named(self.classifier, from_ns)).collect();
        leaks.sort_by_key(|leak| {
            (!leak.is_sure(), leak.verdict, std::cmp::Reverse(leak.bytes), leak.stack.id)
        });
        leaks
    }
}
