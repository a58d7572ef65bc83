//! The text of `vramtrace report --by step`.

use std::collections::{BTreeMap, BTreeSet};

use vramtrace_format::DeviceId;

use super::layout::{BOLD, DIM, Table, WARN, line, paint};
use crate::analysis::steps::{Apart, InStep, Step, StepState, Steps};
use crate::report::wording::gpu_name;
use crate::units::{count, seconds, several, size};

/// Lists of more rows are cut down, without --full.
const MAX_ROWS: usize = 40;
/// The rows that are kept: at the begin, with the highest peaks, at the end.
const KEPT: [usize; 3] = [8, 16, 8];
/// Figures that differ by less than one part in this many are equal.
const EQUAL: u64 = 200;

/// A table of the iterations for each device. `full`: all of them.
pub fn table(all: &Steps, full: bool) -> String {
    let steps = match &all.found {
        Ok(steps) => steps,
        Err(why) => return format!("\n{}  {why}\n", line(0, BOLD, "by step")),
    };
    let devices: BTreeSet<DeviceId> =
        steps.iter().flat_map(|step| step.devices.keys().copied()).collect();
    let mut out = String::new();
    for device in devices {
        let name = format!("{} by step", gpu_name(device));
        out.push_str(&format!("\n{}  {}\n", paint(BOLD, &name), counted(all)));
        let titles = ["step", "", "peak allocated", "left", "time"];
        let mut table = Table::titled(2, "LlRrD", &titles);
        let rows = rows(all, device);
        let kept = if full { (0..rows.len()).collect() } else { kept(&rows) };
        let hidden = (rows.len() - kept.len()) as u64;
        kept.into_iter().for_each(|index| table.row(cells(&rows[index])));
        out.push_str(&table.render());
        if hidden > 0 {
            let rows = several(hidden, "row");
            let note = format!("{rows} between them not shown: --full shows all");
            out.push_str(&line(2, DIM, &note));
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
struct StepRow<'s> {
    of: Of<'s>,
    memory: InStep,
}

enum Of<'s> {
    /// The first and the last of them.
    Steps(&'s Step, &'s Step),
    Apart(&'s Apart),
}

fn rows(all: &Steps, device: DeviceId) -> Vec<StepRow<'_>> {
    let mut rows: Vec<StepRow> = Vec::new();
    let mut apart = all.apart.iter().peekable();
    let memory =
        |devices: &BTreeMap<DeviceId, InStep>| devices.get(&device).copied().unwrap_or_default();
    let row = |apart| StepRow { of: Of::Apart(apart), memory: memory(&apart.devices) };
    for (index, step) in all.steps().iter().enumerate() {
        while let Some(of) = apart.next_if(|of| of.after <= index) {
            rows.push(row(of));
        }
        let memory = memory(&step.devices);
        match rows.last_mut() {
            Some(StepRow { of: Of::Steps(_, last), memory: before })
                if [last.state, step.state] == [StepState::Whole; 2] && same(*before, memory) =>
            {
                *last = step;
            }
            _ => rows.push(StepRow { of: Of::Steps(step, step), memory }),
        }
    }
    rows.extend(apart.map(row));
    rows
}

fn same(one: InStep, other: InStep) -> bool {
    let equal = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / EQUAL;
    equal(one.peak_bytes, other.peak_bytes) && equal(one.left_bytes, other.left_bytes)
}

/// The rows of a long list that are shown: indexes in ascending order.
fn kept(rows: &[StepRow]) -> Vec<usize> {
    if rows.len() <= MAX_ROWS {
        return (0..rows.len()).collect();
    }
    let [begin, highest, end] = KEPT;
    let peak = |index: &usize| rows[*index].memory.peak_bytes;
    let mut by_peak: Vec<usize> = (begin..rows.len() - end).collect();
    by_peak.sort_by_key(|index| std::cmp::Reverse(peak(index)));
    by_peak.truncate(highest);
    by_peak.extend((0..begin).chain(rows.len() - end..rows.len()));
    by_peak.sort_unstable();
    by_peak
}

fn cells(row: &StepRow) -> [String; 5] {
    let peak = size(row.memory.peak_bytes);
    let left = size(row.memory.left_bytes);
    let (first, last) = match row.of {
        Of::Steps(first, last) => (first, last),
        Of::Apart(apart) => {
            let passes = match apart.forward_passes {
                1 => "1 forward pass".to_string(),
                number => format!("{} forward passes", count(number as u64)),
            };
            let time = seconds(apart.end.time_ns.saturating_sub(apart.begin.time_ns));
            return ["apart".into(), passes, peak, left, time].map(|cell| paint(DIM, &cell));
        }
    };
    let number = match (first.number, last.number) {
        (first, last) if first == last => count(first as u64),
        (first, last) => format!("{} to {}", count(first as u64), count(last as u64)),
    };
    // A failure frees what the iteration held: that is not what it would leave.
    let (state, left) = match first.state {
        StepState::Whole => ("", left),
        StepState::Skipped => ("skipped", left),
        StepState::Unfinished => ("unfinished", "-".to_string()),
    };
    [number, paint(WARN, state), peak, left, seconds(first.duration_ns)]
}
