//! The text of `report --at` for a moment whose events were erased: the recorder's samples.

use super::holders::{ListingOptions, table};
use super::layout::{BOLD, DIM, PLAIN, Table, caution, line, section};
use super::phases;
use crate::analysis::{Holder, Process, SampledDevice, SampledHolder, SampledLevel, SampledMoment};
use crate::report::wording::{self, gpu_name};
use crate::units::{seconds, several, size};

/// What is known of the moment. `top`: holders of each level.
pub fn details(process: &Process, found: &SampledMoment, top: usize) -> String {
    let known = format!(
        "the events of {} were erased to bound the file: this is what {} from {} to {} say of it (resolution {})",
        seconds(found.asked_ns),
        several(found.samples.into(), "sample"),
        seconds(found.from_ns),
        seconds(found.until_ns),
        wording::age(found.until_ns.saturating_sub(found.from_ns)),
    );
    let mut out = line(0, BOLD, &process.name()) + &caution(PLAIN, &known);
    for of in &found.devices {
        out.push_str(&section(line(0, BOLD, &gpu_name(of.device))));
        out.push_str(&figures(of));
        out.push_str(&phases::sampled(&of.phases, "peak in a phase"));
        of.levels.iter().for_each(|level| out.push_str(&holders(level, top)));
    }
    if found.devices.is_empty() {
        out.push_str("\n  no GPU memory was used\n");
    }
    out
}

fn level_name(level: &SampledLevel) -> &'static str {
    if level.level == "tensor" { "blocks" } else { "allocated" }
}

fn figures(of: &SampledDevice) -> String {
    let mut table = Table::new(4, "lrl");
    let peak = "the highest in this time";
    table.row(["peak".into(), size(of.peak_bytes), peak.into()]);
    for level in &of.levels {
        let lowest = format!("at the highest sample; {} at the lowest", size(level.lowest_bytes));
        table.row([level_name(level).into(), size(level.highest_bytes), lowest]);
    }
    for (kind, bytes) in &of.kinds {
        table.row([format!("  {}", kind.name()), size(*bytes), String::new()]);
    }
    if of.refused > 0 {
        let refused = several(of.refused, "refused request");
        table.row([refused, String::new(), "from the start to the end of this time".into()]);
    }
    table.render()
}

fn holders(level: &SampledLevel, top: usize) -> String {
    let total = level.highest_bytes.max(1) as f64;
    let holder = |holder: &SampledHolder| Holder {
        bytes: holder.bytes,
        share: holder.bytes as f64 / total,
        library: holder.library.clone(),
        stack: holder.stack.clone(),
        ..Holder::default()
    };
    let holders: Vec<Holder> = level.holders.iter().map(holder).collect();
    let title = format!("{} at the highest sample", level_name(level));
    let how = ListingOptions { top, ..ListingOptions::default() };
    let mut out = section(table(&holders.iter().collect::<Vec<_>>(), &title, how));
    let mut more = |text: String| out.push_str(&line(4, DIM, &text));
    if level.other_stacks > 0 {
        let grew = match level.other_grew_bytes {
            grew @ 1.. => format!(", grew by {}", size(grew.unsigned_abs())),
            _ => String::new(),
        };
        let stacks = several(level.other_stacks, "stack");
        more(format!("{stacks} not told apart: {}{grew}", size(level.other_bytes)));
    }
    out
}
