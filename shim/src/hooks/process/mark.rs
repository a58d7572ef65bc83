//! Phases that the program marks. They are recorded as they come.

use crate::hooks::process::early_ranges;
use crate::hooks::process::nvtx_strings::registered;
use crate::hooks::process::state::Process;
use crate::hooks::process::texts::mark_id;
use vramtrace_format::Mark;
use vramtrace_format::shown::cut;

/// Bytes of a name that are kept.
pub const LONGEST: usize = 200;

/// `domain/name`, cut to [`LONGEST`] bytes.
fn whole(domain: usize, name: &str) -> String {
    let mut whole = match registered(domain) {
        "" => name.to_string(),
        domain if name.is_empty() => domain.to_string(),
        domain => format!("{domain}/{name}"),
    };
    whole.truncate(cut(&whole, LONGEST).len());
    whole
}

fn id(process: &Process, name: &str) -> u32 {
    mark_id(&process.names, &process.trace_writer, name)
}

pub fn moment(process: Option<&'static Process>, domain: usize, name: &str) {
    if let Some(process) = known(process) {
        process.mark(id(process, &whole(domain, name)), Mark::Moment);
    }
}

/// Returns 0 for the range's depth: NVTX's callers do not use it.
pub fn push(process: Option<&'static Process>, domain: usize, name: &str) -> i32 {
    let name = whole(domain, name);
    match known(process) {
        Some(process) => process.mark(id(process, &name), Mark::Push),
        None => early_ranges::push(name),
    }
    0
}

pub fn pop(process: Option<&'static Process>) -> i32 {
    known(process).map_or_else(early_ranges::pop, |process| process.mark(0, Mark::Pop));
    0
}

/// Returns the range's number: the id of its name, if the process has a state.
pub fn start(process: Option<&'static Process>, domain: usize, name: &str) -> u64 {
    let name = whole(domain, name);
    match known(process) {
        Some(process) => {
            let id = id(process, &name);
            process.mark(id, Mark::Start);
            u64::from(id) << 32
        }
        None => early_ranges::start(name),
    }
}

pub fn end(process: Option<&'static Process>, range: u64) {
    let Some(process) = known(process) else { return early_ranges::end(range) };
    let name = match range >> 32 {
        // It began before the process had a state.
        0 => early_ranges::name_of(range),
        name => name as u32,
    };
    process.mark(name, Mark::End);
}

/// Records the ranges that were opened early, as soon as the process has a state.
fn known(process: Option<&'static Process>) -> Option<&'static Process> {
    if let Some(process) = process {
        early_ranges::record(process);
    }
    process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_registered_domain_stands_alone() {
        assert_eq!(whole(usize::MAX, "name"), "name");
    }
}
