//! The key `sleeps` of `report --json`: memory that was unmapped and mapped again.

use serde::Serialize;
use vramtrace_format::{DeviceId, Kind, StackId};

use crate::analysis::sleeps::{ResidentPart, Rest, Sleep};
use crate::analysis::{Process, StackClassifier};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME, Frame};

/// The sleeps of one device. Absent where there was none.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SleepsFacts {
    pub count: u64,
    /// If there are very many, only some of them.
    pub sleeps: Vec<SleepFacts>,
    /// The numbers of the sleeps that `stayed` describes.
    pub looked_at: Vec<u64>,
    /// Memory that stayed mapped, largest at the last sleep first. Empty where the holders were not
    /// computed.
    pub stayed: Vec<StayedFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SleepFacts {
    pub number: u64,
    pub began_s: f64,
    /// Null: the memory was not mapped again.
    pub ended_s: Option<f64>,
    /// The most bytes that were unmapped at once.
    pub asleep_bytes: u64,
    /// The device's driver memory at the lowest moment, and that moment.
    pub stayed_bytes: u64,
    pub lowest_at_s: f64,
    pub unmapped_by: Vec<UnmappedFacts>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnmappedFacts {
    pub bytes: u64,
    /// As in `holders`.
    pub lead: Option<Frame>,
    pub caller: Option<Frame>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StayedFacts {
    /// `context`, a cause as in `driver_bytes_by`, `pool_reserve`, `graph_reserve`, `blocks` or
    /// `memory`.
    pub what: &'static str,
    pub name: Option<&'static str>,
    pub library: Option<String>,
    pub lead: Option<Frame>,
    pub caller: Option<Frame>,
    /// Bytes with physical memory, at each sleep in `looked_at`.
    pub bytes: Vec<u64>,
    /// Bytes with and without physical memory, at each of these sleeps.
    pub held_bytes: Vec<u64>,
    /// From one sleep to the next, on average.
    pub growth_bytes_per_sleep: i64,
}

/// The value of `sleeps`.
pub(super) fn facts(process: &Process, id: DeviceId) -> Option<SleepsFacts> {
    let sleeps = process.sleeps.get(&id)?;
    let classifier =
        process.who.as_ref().map(|who| StackClassifier::new(&who.symbols, &process.header));
    let rests = process.rests.get(&id);
    let cycles = rests.map_or(0, |rests| rests.cycles(sleeps));
    let by_line = rests.zip(classifier.as_ref()).map(|(rests, names)| rests.by_line(names));
    let places = rests.map(|rests| &rests.sleeps[..]).unwrap_or_default();
    Some(SleepsFacts {
        count: sleeps.count,
        sleeps: sleeps.all.iter().map(|sleep| sleep_facts(sleep, classifier.as_ref())).collect(),
        looked_at: places.iter().map(|at| sleeps.all[*at].number).collect(),
        stayed: by_line
            .unwrap_or_default()
            .iter()
            .map(|rest| stayed_facts(rest, classifier.as_ref(), cycles))
            .collect(),
    })
}

/// Lead and caller frame of a stack.
fn frames(classifier: Option<&StackClassifier>, stack: StackId) -> (Option<Frame>, Option<Frame>) {
    let Some(classifier) = classifier else { return (None, None) };
    let roles = classifier.roles(stack);
    let frame = |at| classifier.frame(stack, at).cloned();
    (frame(roles.lead), frame(roles.caller))
}

fn sleep_facts(sleep: &Sleep, classifier: Option<&StackClassifier>) -> SleepFacts {
    let s = |ns: u64| ns as f64 / 1e9;
    let unmapped = |(stack, bytes): &(StackId, u64)| {
        let (lead, caller) = frames(classifier, *stack);
        UnmappedFacts { bytes: *bytes, lead, caller }
    };
    SleepFacts {
        number: sleep.number,
        began_s: s(sleep.began_ns),
        ended_s: sleep.ended_ns.map(s),
        asleep_bytes: sleep.asleep,
        stayed_bytes: sleep.stayed,
        lowest_at_s: s(sleep.lowest_ns),
        unmapped_by: sleep.went.iter().map(unmapped).collect(),
    }
}

fn stayed_facts(rest: &Rest, classifier: Option<&StackClassifier>, cycles: u64) -> StayedFacts {
    let what = match rest.what {
        ResidentPart::Context => "context",
        ResidentPart::Driver(cause, _) => cause.name(),
        ResidentPart::Reserves(Kind::Graph) => "graph_reserve",
        ResidentPart::Reserves(_) => "pool_reserve",
        ResidentPart::Blocks(_) => "blocks",
        ResidentPart::Memory(_) => "memory",
    };
    let free = rest.what == ResidentPart::Blocks(FREE_CACHE);
    let stack = rest.stack().filter(|_| !free);
    let (lead, caller) = stack.map_or((None, None), |stack| frames(classifier, stack));
    let library = stack.zip(classifier).and_then(|(stack, classifier)| {
        let roles = match rest.what {
            ResidentPart::Blocks(_) => classifier.roles_of_block(stack),
            _ => classifier.roles(stack),
        };
        classifier.library_name(&roles).map(str::to_string)
    });
    StayedFacts {
        what,
        name: free.then_some(FREE_CACHE_NAME),
        library,
        lead,
        caller,
        bytes: rest.bytes.clone(),
        held_bytes: rest.held.clone(),
        growth_bytes_per_sleep: rest.growth(cycles),
    }
}
