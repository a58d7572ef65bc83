//! The sleeps of a device as facts: what was unmapped, and what stayed on the card, by line.

use serde::Serialize;
use vramtrace_format::{Kind, StackId};

use super::holders::StackClassifier;
use super::line::CodeLine;
use super::sleeps::{ResidentAtSleeps, ResidentPart, Rest, Sleep, Sleeps};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME};

/// The sleeps of one device. Absent where there was none.
#[derive(Clone, Debug, Serialize)]
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

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SleepFacts {
    #[serde(flatten)]
    pub sleep: Sleep,
    pub unmapped_by: Vec<UnmappedFacts>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UnmappedFacts {
    pub bytes: u64,
    #[serde(flatten)]
    pub line: CodeLine,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StayedFacts {
    /// `context`, a cause as in `driver_bytes_by`, `pool_reserve`, `graph_reserve`, `blocks` or
    /// `memory`.
    #[serde(rename = "what")]
    pub part_name: &'static str,
    #[serde(skip)]
    pub part: ResidentPart,
    pub name: Option<&'static str>,
    pub library: Option<String>,
    #[serde(flatten)]
    pub line: CodeLine,
    /// Bytes with physical memory, at each sleep in `looked_at`.
    pub bytes: Vec<u64>,
    /// Bytes with and without physical memory, at each of these sleeps.
    pub held_bytes: Vec<u64>,
    /// From one sleep to the next, on average.
    pub growth_bytes_per_sleep: i64,
}

impl SleepsFacts {
    /// `classifier`: `None` where the names of stacks were not looked up.
    pub fn of(
        sleeps: &Sleeps,
        rests: Option<&ResidentAtSleeps>,
        classifier: Option<&StackClassifier>,
    ) -> SleepsFacts {
        let line = |stack: StackId| {
            let of = |names: &StackClassifier| CodeLine::of(names, stack, &names.roles(stack));
            classifier.map(of).unwrap_or_default()
        };
        let unmapped =
            |(stack, bytes): &(StackId, u64)| UnmappedFacts { bytes: *bytes, line: line(*stack) };
        let sleep = |sleep: &Sleep| SleepFacts {
            sleep: sleep.clone(),
            unmapped_by: sleep.went.iter().map(unmapped).collect(),
        };
        let cycles = rests.map_or(0, |rests| rests.cycles(sleeps));
        let stayed = |rest: Rest| {
            let free = rest.what == ResidentPart::Blocks(FREE_CACHE);
            let stack = rest.stack().filter(|_| !free);
            let library = stack.zip(classifier).and_then(|(stack, classifier)| {
                let roles = match rest.what {
                    ResidentPart::Blocks(_) => classifier.roles_of_block(stack),
                    _ => classifier.roles(stack),
                };
                classifier.library_name(&roles).map(str::to_string)
            });
            StayedFacts {
                part_name: rest.what.name(),
                part: rest.what,
                name: free.then_some(FREE_CACHE_NAME),
                library,
                line: stack.map(line).unwrap_or_default(),
                growth_bytes_per_sleep: rest.growth(cycles),
                bytes: rest.bytes,
                held_bytes: rest.held,
            }
        };
        let by_line = rests.zip(classifier).map(|(rests, names)| rests.by_line(names));
        let places = rests.map(|rests| &rests.sleeps[..]).unwrap_or_default();
        SleepsFacts {
            count: sleeps.count,
            sleeps: sleeps.all.iter().map(sleep).collect(),
            looked_at: places.iter().map(|at| sleeps.all[*at].number).collect(),
            stayed: by_line.unwrap_or_default().into_iter().map(stayed).collect(),
        }
    }
}

impl ResidentPart {
    fn name(self) -> &'static str {
        match self {
            ResidentPart::Context => "context",
            ResidentPart::Driver(cause, _) => cause.name(),
            ResidentPart::Reserves(Kind::Graph) => "graph_reserve",
            ResidentPart::Reserves(_) => "pool_reserve",
            ResidentPart::Blocks(_) => "blocks",
            ResidentPart::Memory(_) => "memory",
        }
    }
}
