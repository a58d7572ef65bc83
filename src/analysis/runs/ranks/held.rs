//! The holders of a process as [`Holdings`]: blocks in place of their segments.

use std::collections::BTreeMap;

use vramtrace_format::summary::largest_first;
use vramtrace_format::{DeviceId, SummaryHolder, SummaryMoment};

use super::Rank;
use crate::analysis::holdings::{Held, Holdings, Owner};
use crate::analysis::{Level, Moment, StackClassifier};
use crate::replay::State;
use crate::symbols::FREE_CACHE;
use crate::trace::{Definitions, Trace};

/// The holdings at a moment, of the largest holders that the process's summary names. Blocks replace the
/// driver memory of their framework; [`FREE_CACHE`] holds the rest of that.
pub fn holdings(rank: &Rank, classifier: &StackClassifier, moment: SummaryMoment) -> Holdings {
    let mut all = Holdings::default();
    for (id, device) in &rank.devices {
        let at_ns = match moment {
            SummaryMoment::Peak => device.peak_ns,
            SummaryMoment::End => rank.last_ns,
        };
        all.at_ns.insert(*id, at_ns);
        add_device(&mut all, rank, classifier, *id, moment);
    }
    all
}

/// The largest holders of each device, where memory was unmapped and mapped again: it belongs to the
/// stack that first allocated it. Reads the trace again, up to the peaks.
pub(super) fn by_owner(
    trace: &Trace,
    definitions: &Definitions,
    end: &State,
) -> BTreeMap<DeviceId, Vec<SummaryHolder>> {
    let mut all: BTreeMap<DeviceId, Vec<SummaryHolder>> = BTreeMap::new();
    for moment in [SummaryMoment::Peak, SummaryMoment::End] {
        for of_framework in [false, true] {
            let level = if of_framework { Level::Tensor } else { Level::Driver };
            let asked = match moment {
                SummaryMoment::Peak => Moment::Peak,
                SummaryMoment::End => Moment::End,
            };
            let found = Holdings::at(trace, definitions, end, asked, level);
            let mut here: BTreeMap<DeviceId, Vec<SummaryHolder>> = BTreeMap::new();
            for (owner, Held { bytes, count, .. }) in found.held {
                let Owner { device, stack, of_cache, cause } = owner;
                if stack != FREE_CACHE && of_cache == of_framework && cause.is_none() {
                    let holder =
                        SummaryHolder { device, moment, of_framework, stack, bytes, count };
                    here.entry(device).or_default().push(holder);
                }
            }
            for (device, mut holders) in here {
                largest_first(&mut holders);
                all.entry(device).or_default().append(&mut holders);
            }
        }
    }
    all
}

fn add_device(
    all: &mut Holdings,
    rank: &Rank,
    classifier: &StackClassifier,
    id: DeviceId,
    moment: SummaryMoment,
) {
    let here = || rank.devices[&id].holders.iter().filter(move |holder| holder.moment == moment);
    let has_blocks = here().any(|holder| holder.of_framework);
    let (mut segments, mut blocks) = (0u64, 0u64);
    for holder in here() {
        let held = Held { bytes: holder.bytes, count: holder.count, ..Held::default() };
        if holder.of_framework {
            blocks = blocks.saturating_add(holder.bytes);
            all.level = Level::Tensor;
            all.add(Owner::of_cache(id, holder.stack), held);
        } else if has_blocks && classifier.is_torch_cache(holder.stack) {
            segments = segments.saturating_add(holder.bytes);
        } else {
            all.add(Owner::of_memory(id, holder.stack), held);
        }
    }
    for of in rank.devices[&id].driver.iter().filter(|of| of.moment == moment) {
        let held = Held { bytes: of.bytes, count: of.count, ..Held::default() };
        all.add(Owner::of_driver(id, of.stack, of.cause), held);
    }
    if segments > blocks {
        let free = Held { bytes: segments - blocks, count: 1, ..Held::default() };
        all.add(Owner::of_cache(id, FREE_CACHE), free);
    }
}
