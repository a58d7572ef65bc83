//! The iterations of a training, for `vramtrace report --by step`.

use vramtrace_format::StackId;
use vramtrace_reader::analysis::steps::{StepGrowth, Steps, growth};
use vramtrace_reader::analysis::{Process, StackClassifier};
use vramtrace_reader::report::json;
use vramtrace_reader::report::text::steps::{NamedSteps, table};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Trace;

use crate::error::Failure;

/// The iterations of a process, with what grew in each.
pub struct StepParts {
    steps: Steps,
    growth: Vec<StepGrowth>,
    symbols: Symbols,
}

impl StepParts {
    /// Reads the trace once more. `None`: the process was read without its steps.
    pub fn of(process: &Process, trace: &Trace) -> Option<StepParts> {
        let steps = process.steps.clone()?;
        let growth = growth(trace, &process.definitions, &steps);
        let grown = growth.iter().flat_map(|step| &step.grown);
        let stacks: Vec<StackId> = grown.map(|(_, stack, _)| *stack).collect();
        let symbols = Symbols::of(&process.definitions, &process.header, stacks);
        Some(StepParts { steps, growth, symbols })
    }

    pub fn text(&self, process: &Process, full: bool) -> String {
        let classifier = StackClassifier::new(&self.symbols, &process.header);
        let named = NamedSteps { steps: &self.steps, growth: &self.growth };
        table(&named, &classifier, full)
    }

    pub fn facts(&self, process: &Process) -> Result<serde_json::Value, Failure> {
        let classifier = StackClassifier::new(&self.symbols, &process.header);
        let facts = json::steps::facts(&self.steps, &self.growth, &classifier);
        Ok(serde_json::to_value(facts)?)
    }
}
