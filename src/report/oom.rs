//! The out-of-memory failures of a run, and the refused requests of its processes: what a list and a document show.

use std::path::Path;

use serde::Serialize;
use vramtrace_format::Header;

use super::shell::quoted;
use super::text::leaks::keeps;
use super::text::oom as words;
use super::text::stack::place;
use crate::analysis::oom::{
    Advice, AdvisedChange, AtStep, Explained, Oom, OomsFound, PostMortem, UsedSum, advice,
};
use crate::analysis::ranks::DeviceFigures;
use crate::analysis::whatif::Origin;
use crate::analysis::{NamedStack, Process, StackClassifier};
use crate::facts::{self, ProcessId};
use crate::replay::{DeviceState, State};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// The limit in which a replay fits.
pub(crate) fn fits_in_words(origin: Origin) -> &'static str {
    match origin {
        Origin::Cap => "under the same cap",
        Origin::Card => "on the same card",
        Origin::Asked => "in the same capacity",
        Origin::Reserved => "in what PyTorch had reserved before",
    }
}

/// A failure: with the keys of `vramtrace oom --json`, which has more of it, and in words.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailureFacts {
    #[serde(flatten)]
    pub oom: Oom,
    pub cause: &'static str,
    /// Which process asked for how much, when and where, in words.
    pub title: String,
    /// The cause in words.
    pub text: String,
    /// The limit in words.
    pub limit_text: String,
    /// The line that asked.
    pub line: Option<String>,
    /// The leak without which it would have been served, in words. Null: none, or not looked for.
    pub leak_text: Option<String>,
    /// The step of a training that it ended, in words. Null: none, or not looked for.
    pub step_text: Option<String>,
    #[serde(flatten)]
    pub sum: UsedSum,
    /// The cap; else what the process had, and what was left. Null: not known.
    pub could_have_bytes: Option<u64>,
    /// By how much that was too little. Null: not known, or it ran out because of a leak.
    pub needs_more_bytes: Option<u64>,
    /// What to try, the most promising first.
    pub advice: Vec<AdviceFacts>,
}

/// One thing to try.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AdviceFacts {
    #[serde(flatten)]
    pub advice: Advice,
    /// The same in words.
    pub text: String,
    /// A line of shell or Python. Null: it is none.
    pub copy: Option<String>,
}

impl FailureFacts {
    /// Of a process after [`Process::look_closer`].
    pub fn of(process: &Process, failures: &[PostMortem]) -> Vec<FailureFacts> {
        let Process { definitions, header, .. } = process;
        let stacks = failures.iter().flat_map(|one| one.held.stacks().chain([one.oom.stack]));
        let symbols = Symbols::of(definitions, header, stacks);
        let classifier = StackClassifier::new(&symbols, header);
        let facts = |one: &PostMortem| {
            let oom = &one.oom;
            let stack = classifier.named(oom.stack);
            let asked = (&*definitions.site_api_name(oom.site), definitions.has_times());
            let step = process.steps.as_ref().and_then(|steps| AtStep::of(steps, oom));
            FailureFacts {
                oom: oom.clone(),
                cause: one.cause.name(),
                title: words::title(ProcessId::of(header), one, &stack, asked),
                text: words::why(one),
                limit_text: words::limit(one),
                line: place(&stack),
                leak_text: one.leak.as_ref().map(keeps),
                step_text: step.map(words::step),
                sum: one.used(&classifier),
                could_have_bytes: one.could_have(),
                needs_more_bytes: one.needs_more(),
                advice: advice(one).into_iter().map(AdviceFacts::of).collect(),
            }
        };
        failures.iter().map(facts).collect()
    }
}

impl AdviceFacts {
    fn of(advice: Advice) -> AdviceFacts {
        let copy = match (advice.what, &advice.conf) {
            (AdvisedChange::EmptyCache, _) => Some("torch.cuda.empty_cache()".to_string()),
            (AdvisedChange::ProgramOption, _) => None,
            (_, Some(conf)) => Some(format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(conf))),
            _ => None,
        };
        AdviceFacts { text: words::advice(&advice), copy, advice }
    }
}

/// One out-of-memory failure.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListedOom<'r> {
    /// From 1: the number that `--at` takes.
    pub number: usize,
    #[serde(flatten)]
    process: ProcessId,
    #[serde(flatten)]
    pub oom: &'r Oom,
    /// The driver's function; null at the level of tensors.
    api: Option<String>,
    /// Only of the failures that were selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_mortem: Option<Explained>,
    /// Of the request.
    #[serde(skip)]
    pub stack: NamedStack,
    #[serde(skip)]
    pub trace: &'r Trace,
}

impl<'r> ListedOom<'r> {
    /// `symbols`: with the stack of the request.
    pub fn of(
        number: usize,
        oom: &'r Oom,
        trace: &'r Trace,
        definitions: &Definitions,
        symbols: &Symbols,
    ) -> ListedOom<'r> {
        let header = trace.header();
        ListedOom {
            number,
            process: ProcessId::of(header),
            oom,
            api: (oom.site.0 > 0).then(|| definitions.site_api_name(oom.site)),
            post_mortem: None,
            stack: StackClassifier::new(symbols, header).named(oom.stack),
            trace,
        }
    }
}

/// The refused requests of a process, with or without an out-of-memory failure.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessRefusals<'r> {
    #[serde(flatten, serialize_with = "facts::process")]
    #[cfg_attr(test, schemars(with = "ProcessId"))]
    pub header: &'r Header,
    #[serde(serialize_with = "facts::path")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub trace: &'r Path,
    running: bool,
    pub devices: Vec<DeviceRefusals<'r>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceRefusals<'r> {
    #[serde(flatten)]
    pub figures: DeviceFigures,
    pub absorbed: u64,
    /// Requests that passed a cap which only warns.
    pub would_have_refused: u64,
    ooms: u64,
    /// NVML's highest reading.
    peak_process_bytes: Option<u64>,
    #[serde(skip)]
    pub state: &'r DeviceState,
}

impl<'r> ProcessRefusals<'r> {
    pub fn of(
        trace: &'r Trace,
        definitions: &Definitions,
        found: &OomsFound,
        end: &'r State,
    ) -> ProcessRefusals<'r> {
        let used = end.devices.iter().filter(|(_, device)| device.was_used());
        let devices = used.map(|(id, state)| DeviceRefusals {
            figures: DeviceFigures::of_state(*id, state, definitions),
            absorbed: found.refusals.get(id).copied().unwrap_or(0),
            would_have_refused: state.warned,
            ooms: found.ooms.iter().filter(|oom| oom.device == *id).count() as u64,
            peak_process_bytes: state.peak_sample.and_then(|at| at.sample.process_bytes),
            state,
        });
        let (header, running) = (trace.header(), trace.is_running());
        ProcessRefusals { header, trace: trace.path(), running, devices: devices.collect() }
    }
}
