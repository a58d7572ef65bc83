//! All out-of-memories of a run, a line each; and processes that had none.

use vramtrace_format::DeviceId;

use super::super::layout::{BOLD, DIM, PLAIN, Table, paint};
use super::wording;
use crate::analysis::{Level, StackClassifier};
use crate::report::oom::{ListedOom, ProcessRefusals};
use crate::units::{clean, count, seconds, several, size};

/// The others of the run, besides those that were shown. The last ones where there are many.
pub fn others(all: &[ListedOom], shown: &[usize], most: usize) -> String {
    if all.len() < 2 {
        return String::new();
    }
    let mut table = Table::new(2, "lrlrrlll");
    let title = format!("{} in this run", several(all.len() as u64, "out-of-memory"));
    let title = title.replace("out-of-memorys", "out-of-memories");
    table.head(&["", "at", "", "asked for", "requests", "by", "", ""]);
    let first = all.len().saturating_sub(most);
    for one in &all[first..] {
        let classifier = StackClassifier::new(one.symbols, one.header);
        let rank =
            one.header.rank.map_or(format!("pid {}", one.header.pid), |n| format!("rank {n}"));
        let by = match (one.oom.refusal, one.oom.level) {
            (Some(refusal), _) => refusal.refused.by.name(),
            (None, Level::Tensor) => "torch",
            (None, Level::Driver) => "?",
        };
        let mark = if shown.contains(&one.number) { BOLD } else { PLAIN };
        table.styled([
            (count(one.number as u64), mark),
            (seconds(one.oom.time_ns), PLAIN),
            (format!("{rank} cuda:{}", one.oom.device.0), PLAIN),
            (size(one.oom.size), mark),
            (count(one.oom.requests), PLAIN),
            (by.into(), PLAIN),
            (wording::place(&classifier, one.oom.stack).unwrap_or_default(), PLAIN),
            (if one.oom.went_on { "went on" } else { "" }.into(), DIM),
        ]);
    }
    let mut out = format!("\n{}\n{}", paint(BOLD, &title), table.render());
    if first > 0 {
        let text = format!("  and {} before them (--json has all)", count(first as u64));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    out.push_str(&paint(DIM, "  vramtrace oom --at N shows one of them, --at all all\n"));
    out
}

/// One line.
pub fn none(quiet: &ProcessRefusals) -> String {
    let name = match quiet.name.as_str() {
        "" => String::new(),
        name => format!("{}: ", clean(name)),
    };
    let used = quiet.end.devices.iter().filter(|(_, device)| device.was_used());
    let devices: Vec<String> = used
        .map(|(id, device)| {
            let refused = device.refused();
            let absorbed = quiet.refusals.get(id).map_or(0, |refusals| refusals.absorbed);
            let mut parts = vec![match (refused, absorbed) {
                (0, _) => "no refusal".to_string(),
                (refused, absorbed) if refused == absorbed => {
                    format!("{}, all absorbed", several(refused, "refusal"))
                }
                (refused, absorbed) => {
                    let in_file = format!("{} absorbed", count(absorbed));
                    format!("{}, {in_file} of those in the file", several(refused, "refusal"))
                }
            }];
            if device.warned > 0 {
                let passed = several(device.warned, "request");
                parts.push(format!("{passed} passed the cap, which only warns"));
            }
            parts.push(wording::peak(device));
            let which = match *id {
                DeviceId::UNKNOWN => "unknown device".to_string(),
                id => format!("cuda:{}", id.0),
            };
            format!("{which}: {}", parts.join(", "))
        })
        .collect();
    let rest = match devices.is_empty() {
        true => "no GPU memory was used".to_string(),
        false => devices.join("; "),
    };
    format!("{name}{}; {rest}\n", paint(BOLD, "no out-of-memory"))
}
