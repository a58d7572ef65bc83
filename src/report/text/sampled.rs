//! The text of `report --at` for a moment whose events were erased: the recorder's samples.

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, and_more, paint};
use super::phases;
use super::stack::{called_from, lead};
use crate::analysis::{Process, SampledDevice, SampledLevel, SampledMoment};
use crate::report::wording::{self, gpu_name};
use crate::units::{clean, seconds, several, size};

/// What is known of the moment. `top`: holders of each level.
pub fn details(process: &Process, found: &SampledMoment, top: usize) -> String {
    let mut out = format!("{}\n", paint(BOLD, &process.name()));
    let known = format!(
        "  {} the events of {} were erased to bound the file: this is what {} from {} to {} say of it (resolution {})",
        paint(WARN, "!"),
        seconds(found.asked_ns),
        several(found.samples.into(), "sample"),
        seconds(found.from_ns),
        seconds(found.until_ns),
        wording::age(found.until_ns.saturating_sub(found.from_ns)),
    );
    out.push_str(&format!("{known}\n"));
    for of in &found.devices {
        out.push_str(&format!("\n{}\n", paint(BOLD, &gpu_name(of.device))));
        out.push_str(&figures(of));
        out.push_str(&phases::sampled(&of.phases, "peak in a phase"));
        for level in &of.levels {
            out.push_str(&holders(level, top));
        }
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
    let row = |what: &str, bytes: u64, more: String| [what.to_string(), size(bytes), more];
    table.row(row("peak", of.peak_bytes, "the highest in this time".into()));
    for level in &of.levels {
        let lowest = format!("at the highest sample; {} at the lowest", size(level.lowest_bytes));
        table.row(row(level_name(level), level.highest_bytes, lowest));
    }
    for (kind, bytes) in &of.kinds {
        table.row(row(&format!("  {}", kind.name()), *bytes, String::new()));
    }
    if of.refused > 0 {
        let refused = several(of.refused, "refused request");
        table.row([refused, String::new(), "from the start to the end of this time".into()]);
    }
    table.render()
}

fn holders(level: &SampledLevel, top: usize) -> String {
    let total = level.highest_bytes.max(1);
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / total as f64);
    let mut table = Table::new(4, "rrll");
    let title = format!("{} at the highest sample", level_name(level));
    table.head(&[&title, "share", "library", ""]);
    for holder in level.holders.iter().take(top) {
        let library = clean(holder.library.as_deref().unwrap_or("?"));
        table.styled([
            (size(holder.bytes), PLAIN),
            (share(holder.bytes), PLAIN),
            (library, PLAIN),
            (lead(&holder.stack, false), BOLD),
        ]);
        called_from(&holder.stack, false).into_iter().for_each(|caller| table.under(caller));
    }
    let mut out = format!("\n{}", table.render());
    out.push_str(&and_more("    ", level.holders.iter().skip(top).map(|holder| holder.bytes)));
    let mut more = |text: String| out.push_str(&format!("    {}\n", paint(DIM, &text)));
    if level.other_stacks > 0 {
        let grew = match level.other_grew_bytes {
            grew @ 1.. => format!(", grew by {}", size(grew.unsigned_abs())),
            _ => String::new(),
        };
        let stacks = several(level.other_stacks, "stack");
        more(format!("{stacks} not told apart: {}{grew}", size(level.other_bytes)));
    }
    let libraries = level.libraries.iter().map(|holder| {
        let name = clean(holder.library.as_deref().unwrap_or("?"));
        format!("{name} {}", size(holder.bytes))
    });
    let libraries: Vec<String> = libraries.collect();
    if libraries.len() > 1 {
        more(format!("by library: {}", libraries.join(", ")));
    }
    out
}
