//! All that a trace tells of the moment in which a request got nothing, with names.

use serde::Serialize;
use vramtrace_format::Header;

use super::{Advice, AtStep, CacheAtOom, Neighbour, Oom, PostMortem, PostMortems, UsedSum, advice};
use crate::analysis::frag::RequestSizes;
use crate::analysis::leaks::{self, Leak, QUICK_BYTES, Suppressions};
use crate::analysis::steps::Steps;
use crate::analysis::whatif::Setting;
use crate::analysis::{GroupBy, Holder, NamedStack, StackClassifier};
use crate::facts::ProcessId;
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// A post-mortem with names and fragmentation, as it stands in a document.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Explained {
    #[serde(flatten)]
    pub answer: OomAnswer,
    /// Of the request.
    #[serde(flatten)]
    pub stack: NamedStack,
    #[serde(flatten)]
    pub sum: UsedSum,
    card_bytes: Option<u64>,
    /// Other processes on the card, as NVML listed them.
    neighbours: Vec<Neighbour>,
    live_is_known: bool,
    /// Largest first.
    pub holders: Vec<Holder>,
    /// The leak without which it would have been served; null: none, or not looked for.
    pub leak: Option<Leak>,
    /// The step of a training that it ended; null: none, or they cannot be told.
    pub step: Option<AtStep>,
    /// Libraries whose symbols could not be read, and why.
    pub problems: Vec<String>,
    #[serde(skip)]
    pub one: PostMortem,
    /// Its number among the failures of the run, from 1.
    #[serde(skip)]
    pub number: usize,
    #[serde(skip)]
    pub process: ProcessId,
    /// The name of the driver's function that was refused.
    #[serde(skip)]
    pub api: String,
    /// The trace has times.
    #[serde(skip)]
    pub timed: bool,
}

/// The cause of a failure, and what to do.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct OomAnswer {
    /// `fragmentation`, `cap`, `bad_cap`, `card`, `mps`, `cgroup`, `torch` or `unknown`.
    pub cause: &'static str,
    /// PyTorch's cache; null where the trace has none.
    pub torch: Option<CacheAtOom>,
    /// Replayed up to the request; best first.
    pub settings: Vec<Setting>,
    /// The most promising first.
    pub advice: Vec<Advice>,
}

impl OomAnswer {
    pub fn of(one: &PostMortem) -> OomAnswer {
        let has_cache = one.cache.segments > 0 || one.cache.reserved_bytes > 0;
        OomAnswer {
            cause: one.cause.name(),
            torch: has_cache.then_some(one.cache),
            settings: one.remedy.iter().flat_map(|remedy| remedy.settings.clone()).collect(),
            advice: advice(one),
        }
    }
}

/// Explains each of `ooms`, given with its number, in the same order. Reads the trace up to the last of
/// them, once for the steps of a training, and once more for each remedy.
pub fn explain(trace: &Trace, definitions: &Definitions, ooms: &[(usize, Oom)]) -> Vec<Explained> {
    let mut found =
        PostMortems::new(definitions, ooms.iter().map(|(_, oom)| oom.clone()).collect());
    let mut sizes = RequestSizes::default();
    trace.visit_observed(definitions, &mut [&mut found], &mut sizes);
    let steps = (!ooms.is_empty()).then(|| Steps::of(trace, definitions));
    let leaks = (trace.len() <= QUICK_BYTES && !ooms.is_empty())
        .then(|| leaks::find(trace, &Suppressions::default(), 0));
    let explained = |((number, _), mut one): (&(usize, Oom), PostMortem)| {
        one.find_remedy(trace, definitions);
        leaks.iter().for_each(|leaks| one.find_leak(leaks));
        one.option = super::program_option(&one, trace.header(), definitions);
        let step = steps.as_ref().and_then(|steps| AtStep::of(steps, &one.oom));
        Explained { step, number: *number, ..named(trace.header(), definitions, one, &sizes) }
    };
    ooms.iter().zip(found.finish()).map(explained).collect()
}

/// Without its number and its step.
fn named(
    header: &Header,
    definitions: &Definitions,
    mut one: PostMortem,
    sizes: &RequestSizes,
) -> Explained {
    let wanted = one.held.stacks().chain([one.oom.stack]);
    let symbols = Symbols::of(definitions, header, wanted);
    let classifier = StackClassifier::new(&symbols, header);
    let usual = |small| sizes.usual(one.oom.device, small);
    let [of_small, of_large] = [true, false].map(usual);
    let unusable =
        |(small, bytes): &&(bool, u64)| *bytes < if *small { of_small } else { of_large };
    let unusable = one.holes.iter().filter(unusable).map(|(_, bytes)| *bytes).sum();
    one.cache.unusable_bytes = Some(unusable);
    Explained {
        answer: OomAnswer::of(&one),
        stack: classifier.named(one.oom.stack),
        sum: one.used(&classifier),
        card_bytes: one.card_bytes,
        neighbours: one.oom.neighbours.clone(),
        live_is_known: one.live_is_known,
        holders: classifier.holders(&one.held, GroupBy::Line),
        leak: one.leak.clone(),
        step: None,
        problems: symbols.problems().to_vec(),
        number: 0,
        process: ProcessId::of(header),
        api: definitions.site_api_name(one.oom.site),
        timed: definitions.has_times(),
        one,
    }
}
