//! The list of all out-of-memory failures of a run, and the lines for processes without one.

use std::collections::HashSet;

use super::super::layout::{BOLD, DIM, PLAIN, Table, paint};
use super::super::stack::place;
use super::wording;
use crate::analysis::Level;
use crate::report::names;
use crate::report::oom::{DeviceRefusals, ListedOom, ProcessRefusals};
use crate::report::wording::cuda_name;
use crate::units::{clean, count, seconds, several, size};

/// The list of all failures of the run; empty for fewer than two. Those with a post-mortem are bold. Equal
/// failures of several processes share a row. Only the last `most` rows are listed.
pub fn others(all: &[ListedOom], most: usize) -> String {
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
        let shown = group.all.iter().any(|one| one.post_mortem.is_some());
        let mark = if shown { BOLD } else { PLAIN };
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
        let by = match (one.oom.refusal, one.oom.level) {
            (Some(refusal), _) => refusal.refused.by.name(),
            (None, Level::Tensor) => "torch",
            (None, Level::Driver) => "?",
        };
        let place = place(&one.stack).unwrap_or_default();
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

const NO_GPU_MEMORY: &str = "no GPU memory was used";

fn warned(requests: u64) -> Option<String> {
    let passed = || format!("{} passed the cap, which only warns", several(requests, "request"));
    (requests > 0).then(passed)
}

/// One line for several processes without an out-of-memory failure.
pub fn none_of(quiet: &[ProcessRefusals]) -> String {
    let name = names::several(quiet.iter().map(|process| (process.header, process.trace)));
    let devices = || quiet.iter().flat_map(|process| &process.devices);
    let sum =
        |figure: fn(&DeviceRefusals) -> u64| devices().map(figure).fold(0, u64::saturating_add);
    let refused = match sum(|device| device.refusals) {
        0 => "no refusal".to_string(),
        refused => {
            let absorbed = count(sum(|device| device.absorbed));
            format!("{}, {absorbed} absorbed", several(refused, "refusal"))
        }
    };
    let peaks = || devices().map(|device| device.state.peak.in_use.headline());
    let peaks = match (peaks().min(), peaks().max()) {
        (Some(least), Some(most)) => format!("peaks of {} to {}", size(least), size(most)),
        _ => NO_GPU_MEMORY.to_string(),
    };
    let parts = [Some(refused), warned(sum(|device| device.warned)), Some(peaks)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{}: {}; {}\n", clean(&name), paint(BOLD, "no out-of-memory"), parts.join(", "))
}

/// One line for a process without an out-of-memory failure. `name`: empty where there is one process only.
pub fn none(name: &str, quiet: &ProcessRefusals) -> String {
    let name = if name.is_empty() { String::new() } else { format!("{}: ", clean(name)) };
    let device = |device: &DeviceRefusals| {
        let refusals = several(device.refusals, "refusal");
        let refused = match (device.refusals, device.absorbed) {
            (0, _) => "no refusal".to_string(),
            (refused, absorbed) if refused == absorbed => format!("{refusals}, all absorbed"),
            (_, absorbed) => {
                format!("{refusals}, {} absorbed of those in the file", count(absorbed))
            }
        };
        let parts = [Some(refused), warned(device.warned), Some(wording::peak(device.state))];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("{}: {}", cuda_name(device.id), parts.join(", "))
    };
    let devices: Vec<String> = quiet.devices.iter().map(device).collect();
    let rest = if devices.is_empty() { NO_GPU_MEMORY.to_string() } else { devices.join("; ") };
    format!("{name}{}; {rest}\n", paint(BOLD, "no out-of-memory"))
}
