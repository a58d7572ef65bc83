//! The list of all out-of-memory failures of a run, and the lines for processes without one.

use std::collections::HashSet;
use std::path::Path;

use vramtrace_format::Header;

use super::super::layout::{BOLD, DIM, PLAIN, Table, paint};
use super::wording;
use crate::analysis::{Level, StackClassifier};
use crate::replay::DeviceState;
use crate::report::names;
use crate::report::oom::{ListedOom, ProcessRefusals};
use crate::report::wording::cuda_name;
use crate::units::{clean, count, seconds, several, size};

/// The list of all failures of the run; empty for fewer than two. The `shown` ones are bold. Equal
/// failures of several processes share a row. Only the last `most` rows are listed.
pub fn others(all: &[ListedOom], shown: &[usize], most: usize) -> String {
    if all.len() < 2 {
        return String::new();
    }
    let mut table = Table::new(2, "lrlrrlll");
    let title = format!("{} in this run", several(all.len() as u64, "out-of-memory"));
    let title = title.replace("out-of-memorys", "out-of-memories");
    table.head(&["", "at", "", "asked for", "requests", "by", "", ""]);
    let groups = grouped(all);
    let first = groups.len().saturating_sub(most);
    let hidden = groups[..first].iter().map(|group| group.all.len()).sum::<usize>();
    for group in &groups[first..] {
        let one = group.all[0];
        let mark =
            if group.all.iter().any(|one| shown.contains(&one.number)) { BOLD } else { PLAIN };
        let requests = group.all.iter().map(|one| one.oom.requests).fold(0, u64::saturating_add);
        table.styled([
            (count(one.number as u64), mark),
            (seconds(one.oom.time_ns), PLAIN),
            (group.who(), PLAIN),
            (size(one.oom.size), mark),
            (count(requests), PLAIN),
            (group.by.into(), PLAIN),
            (group.place.clone(), PLAIN),
            (if one.oom.went_on { "went on" } else { "" }.into(), DIM),
        ]);
    }
    let mut out = format!("\n{}\n{}", paint(BOLD, &title), table.render());
    if hidden > 0 {
        let text = format!("  and {} before them (--json has all)", count(hidden as u64));
        out.push_str(&format!("{}\n", paint(DIM, &text)));
    }
    out.push_str(&paint(DIM, "  vramtrace oom --at N shows one of them, --at all all\n"));
    out
}

/// Failures of the same request in several processes, shown as one row.
struct FailureGroup<'r> {
    /// Who refused: the cap, the driver, PyTorch.
    by: &'static str,
    /// The line of code that asked.
    place: String,
    all: Vec<&'r ListedOom<'r>>,
}

impl FailureGroup<'_> {
    /// The processes of the group, and the device if it is the same in all.
    fn who(&self) -> String {
        let mut seen = HashSet::new();
        let traces = self.all.iter().filter(|one| seen.insert(one.trace));
        let names = names::several(traces.map(|one| (one.header, one.trace)));
        let device = self.all[0].oom.device;
        match self.all.iter().all(|one| one.oom.device == device) {
            true => format!("{names} {}", cuda_name(device)),
            false => names,
        }
    }
}

/// Groups failures with the same refuser, line of code, size and outcome, in the order of their first
/// members. Two failures of one process are never in one group.
fn grouped<'r>(all: &'r [ListedOom<'r>]) -> Vec<FailureGroup<'r>> {
    let mut groups: Vec<FailureGroup> = Vec::new();
    for one in all {
        let classifier = StackClassifier::new(one.symbols, one.header);
        let by = match (one.oom.refusal, one.oom.level) {
            (Some(refusal), _) => refusal.refused.by.name(),
            (None, Level::Tensor) => "torch",
            (None, Level::Driver) => "?",
        };
        let place = wording::place(&classifier, one.oom.stack).unwrap_or_default();
        let joins = |group: &&mut FailureGroup| {
            let first = group.all[0];
            (group.by, &group.place) == (by, &place)
                && (first.oom.size, first.oom.went_on) == (one.oom.size, one.oom.went_on)
                && group.all.iter().all(|known| known.trace != one.trace)
        };
        match groups.iter_mut().find(joins) {
            Some(group) => group.all.push(one),
            None => groups.push(FailureGroup { by, place, all: vec![one] }),
        }
    }
    groups
}

/// One line for several processes without an out-of-memory failure.
pub fn none_of(quiet: &[(&Header, &Path, &ProcessRefusals)]) -> String {
    let name = names::several(quiet.iter().map(|(header, trace, _)| (*header, *trace)));
    let devices = || quiet.iter().flat_map(|(_, _, quiet)| quiet.end.devices.values());
    let sum = |figure: fn(&DeviceState) -> u64| devices().map(figure).fold(0, u64::saturating_add);
    let refused = sum(DeviceState::refused);
    let mut parts = vec![match refused {
        0 => "no refusal".to_string(),
        refused => {
            let absorbed = quiet.iter().flat_map(|(_, _, quiet)| quiet.refusals.values());
            let absorbed = absorbed.map(|refusals| refusals.absorbed).fold(0, u64::saturating_add);
            format!("{}, {} absorbed", several(refused, "refusal"), count(absorbed))
        }
    }];
    let warned = sum(|device| device.warned);
    if warned > 0 {
        parts.push(format!("{} passed the cap, which only warns", several(warned, "request")));
    }
    let peaks =
        || devices().filter(|device| device.was_used()).map(|device| device.peak.in_use.headline());
    parts.push(match (peaks().min(), peaks().max()) {
        (Some(least), Some(most)) => format!("peaks of {} to {}", size(least), size(most)),
        _ => "no GPU memory was used".to_string(),
    });
    format!("{}: {}; {}\n", clean(&name), paint(BOLD, "no out-of-memory"), parts.join(", "))
}

/// One line for a process without an out-of-memory failure.
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
            format!("{}: {}", cuda_name(*id), parts.join(", "))
        })
        .collect();
    let rest = match devices.is_empty() {
        true => "no GPU memory was used".to_string(),
        false => devices.join("; "),
    };
    format!("{name}{}; {rest}\n", paint(BOLD, "no out-of-memory"))
}
