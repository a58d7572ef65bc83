//! The text of `vramtrace report --by step`.

use vramtrace_format::{DeviceId, StackId};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, paint};
use super::stack::place;
use crate::analysis::StackClassifier;
use crate::analysis::steps::{Apart, InStep, Step, StepGrowth, StepState, Steps};
use crate::report::wording::gpu_name;
use crate::units::{clean, count, seconds, several, shorten, size};

/// The iterations of a process and what is known of them.
#[derive(Debug)]
pub struct NamedSteps<'s> {
    pub steps: &'s Steps,
    /// Of each iteration, in their order.
    pub growth: &'s [StepGrowth],
}

/// The most characters of the name of a batch.
const WIDTH: usize = 32;
/// Lists of more rows are cut down, without --full.
const MOST_ROWS: usize = 40;
/// The rows that are kept: at the begin, with the highest peaks, at the end.
const KEPT: [usize; 3] = [8, 16, 8];
/// Peaks that differ by less than one part in this many are equal.
const EQUAL: u64 = 200;
/// Growth of less than one part in this many of what is left is not shown: batches differ in length.
const LITTLE: u64 = 10_000;

/// A table of the iterations for each device. `full`: all of them.
pub fn table(named: &NamedSteps, classifier: &StackClassifier, full: bool) -> String {
    let steps = match &named.steps.found {
        Ok(steps) => steps,
        Err(why) => return format!("\n{}\n  {why}\n", paint(BOLD, "by step")),
    };
    let mut devices: Vec<DeviceId> =
        steps.iter().flat_map(|step| step.devices.keys().copied()).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut out = String::new();
    for device in devices {
        let name = format!("{} by step", gpu_name(device));
        out.push_str(&format!("\n{}  {}\n", paint(BOLD, &name), counted(named.steps)));
        let mut table = Table::new(2, "llrrrrl");
        let batch = if named.growth.iter().any(|of| of.batch.is_some()) { "batch" } else { "" };
        table.head(&["step", batch, "peak allocated", "left", "time", "grew", ""]);
        let rows = rows(named, device);
        let kept = if full { (0..rows.len()).collect() } else { kept(&rows) };
        let hidden = rows.len() - kept.len();
        for index in kept {
            table.cells(cells(&rows[index], classifier).into_iter());
        }
        out.push_str(&table.render());
        if hidden > 0 {
            let note = format!(
                "  {} between them not shown: --full shows all\n",
                several(hidden as u64, "row")
            );
            out.push_str(&paint(DIM, &note));
        }
    }
    out
}

/// `24 steps, the last one unfinished; 3 of them skipped by the optimizer; 4 micro-batches each`.
fn counted(steps: &Steps) -> String {
    let all = steps.steps();
    let number = |state| all.iter().filter(|step| step.state == state).count();
    let mut text = several(all.len() as u64, "step");
    if number(StepState::Unfinished) > 0 {
        text.push_str(", the last one unfinished");
    }
    let skipped = number(StepState::Skipped);
    if skipped > 0 {
        text.push_str(&format!("; {} skipped by the optimizer", count(skipped as u64)));
    }
    let most = all.iter().map(|step| step.updates).max().unwrap_or(0);
    if most > 1 {
        text.push_str(&format!("; {most} updates in each"));
    } else if let Some(most) = all.iter().map(|step| step.backward_passes).max().filter(|n| *n > 1)
    {
        text.push_str(&format!("; up to {most} micro-batches in each"));
    }
    text
}

/// One row: iterations in a row that do the same, or forward passes apart from them.
#[derive(Clone, Debug, PartialEq)]
enum Row<'s> {
    Steps { first: &'s Step, last: &'s Step, memory: InStep, growth: &'s StepGrowth, of: DeviceId },
    Apart(&'s Apart, InStep),
}

fn rows<'s>(named: &NamedSteps<'s>, device: DeviceId) -> Vec<Row<'s>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut apart = named.steps.apart.iter().peekable();
    let memory = |devices: &std::collections::BTreeMap<DeviceId, InStep>| {
        devices.get(&device).copied().unwrap_or_default()
    };
    for (index, (step, growth)) in named.steps.steps().iter().zip(named.growth).enumerate() {
        while let Some(of) = apart.next_if(|of| of.after <= index) {
            rows.push(Row::Apart(of, memory(&of.devices)));
        }
        let row = Row::Steps {
            first: step,
            last: step,
            memory: memory(&step.devices),
            growth,
            of: device,
        };
        match rows.last_mut() {
            Some(before) if same(before, &row) => extend(before, step),
            _ => rows.push(row),
        }
    }
    rows.extend(apart.map(|of| Row::Apart(of, memory(&of.devices))));
    rows
}

fn extend<'s>(row: &mut Row<'s>, step: &'s Step) {
    if let Row::Steps { last, .. } = row {
        *last = step;
    }
}

/// Whether two rows may be one: whole iterations with the same figures, and nothing that grew.
fn same(one: &Row, other: &Row) -> bool {
    let (
        Row::Steps { last, memory, growth, of, .. },
        Row::Steps { first: step, memory: next, growth: next_growth, .. },
    ) = (one, other)
    else {
        return false;
    };
    let equal = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / EQUAL;
    let still = |growth, memory| grown(growth, *of, memory).is_none();
    last.state == StepState::Whole
        && step.state == StepState::Whole
        && equal(memory.peak_bytes, next.peak_bytes)
        && equal(memory.left_bytes, next.left_bytes)
        && still(growth, memory)
        && still(next_growth, next)
        && growth.batch.is_none()
        && next_growth.batch.is_none()
}

/// The stack that grew most on a device, and by how many bytes.
fn grown(growth: &StepGrowth, device: DeviceId, memory: &InStep) -> Option<(StackId, u64)> {
    let (_, stack, bytes) = growth.grown.iter().find(|(of, ..)| *of == device)?;
    (*bytes > memory.left_bytes / LITTLE).then_some((*stack, *bytes))
}

/// The rows of a long list that are shown: indexes in ascending order.
fn kept(rows: &[Row]) -> Vec<usize> {
    if rows.len() <= MOST_ROWS {
        return (0..rows.len()).collect();
    }
    let [begin, highest, end] = KEPT;
    let peak = |index: &usize| match &rows[*index] {
        Row::Steps { memory, .. } | Row::Apart(_, memory) => memory.peak_bytes,
    };
    let mut by_peak: Vec<usize> = (begin..rows.len() - end).collect();
    by_peak.sort_by_key(|index| std::cmp::Reverse(peak(index)));
    by_peak.truncate(highest);
    by_peak.extend((0..begin).chain(rows.len() - end..rows.len()));
    by_peak.sort_unstable();
    by_peak
}

fn passes(number: usize) -> String {
    match number {
        1 => "1 forward pass".to_string(),
        number => format!("{} forward passes", count(number as u64)),
    }
}

fn cells(row: &Row, classifier: &StackClassifier) -> [(String, anstyle::Style); 7] {
    let (first, last, memory, growth, device) = match row {
        Row::Steps { first, last, memory, growth, of } => (first, last, memory, growth, of),
        Row::Apart(apart, memory) => {
            let time = apart.end.time_ns.saturating_sub(apart.begin.time_ns);
            return [
                ("apart".to_string(), DIM),
                (passes(apart.passes), DIM),
                (size(memory.peak_bytes), DIM),
                (size(memory.left_bytes), DIM),
                (seconds(time), DIM),
                (String::new(), PLAIN),
                (String::new(), PLAIN),
            ];
        }
    };
    let number = match (first.number, last.number) {
        (first, last) if first == last => count(first as u64),
        (first, last) => format!("{} to {}", count(first as u64), count(last as u64)),
    };
    let state = match first.state {
        StepState::Whole => String::new(),
        StepState::Skipped => "skipped".to_string(),
        StepState::Unfinished => "unfinished".to_string(),
    };
    let batch = growth.batch.as_deref().map(|name| shorten(&clean(name), WIDTH).to_string());
    let batch = [batch, Some(state).filter(|state| !state.is_empty())];
    let batch = batch.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let grown = grown(growth, *device, memory);
    let line = grown.and_then(|(stack, _)| place(&classifier.named(stack)));
    let grown = grown.map_or(String::new(), |(_, bytes)| format!("+{}", size(bytes)));
    // A failure frees what the iteration held: that is not what it would leave.
    let left = match first.state {
        StepState::Unfinished => "-".to_string(),
        StepState::Whole | StepState::Skipped => size(memory.left_bytes),
    };
    [
        (number, BOLD),
        (batch, if first.state == StepState::Whole { PLAIN } else { WARN }),
        (size(memory.peak_bytes), BOLD),
        (left, PLAIN),
        (seconds(first.duration_ns), DIM),
        (grown, PLAIN),
        (line.unwrap_or_default(), DIM),
    ]
}
