//! How the commands that show memory at a moment read their traces: each opens them, checks what the options need, reads
//! them to the moment, and leaves out processes whose memory then is not known.

use std::path::PathBuf;

use vramtrace_reader::analysis::{Collect, Level, Moment, Process, RolesOf, read_all};
use vramtrace_reader::trace::Trace;

use super::select::{DeviceArgs, Selected};
use super::{caveats, level, moment};
use crate::error::Failure;

/// What is asked of the traces.
pub struct Question<'q> {
    pub at: Moment,
    /// The option that gave the moment.
    pub option: &'q str,
    pub level: Option<Level>,
    pub roles: Option<RolesOf>,
    pub device: Option<&'q DeviceArgs>,
}

/// Processes read to the moment, for peaks to the end, each with its trace.
pub struct Reading {
    pub traces: Vec<Trace>,
    pub processes: Vec<Process>,
    /// The newest run, if the command line names no trace.
    pub chosen: Option<PathBuf>,
}

impl Question<'_> {
    /// Reads the stacks' memory. Fails if no trace has stacks.
    pub fn ask(&self, selected: Selected) -> Result<Reading, Failure> {
        let Selected { mut traces, chosen, .. } = selected;
        require_stacks(&traces)?;
        level::require_blocks(&traces, self.level, Some(self.at))?;
        // A peak is found from the state at the end.
        let read = if self.at.is_peak() { Moment::End } else { self.at };
        let collect = Collect { roles: self.roles, points: true, ..Collect::default() };
        let mut processes = read_all(&traces, read, collect, &|_, _| {});
        moment::require_in(&processes, self.at, self.option)?;
        caveats::retain_known(&mut processes, &mut traces, |_| false)?;
        if let Some(device) = self.device {
            device.check(processes.iter().flat_map(|one| one.state.devices.keys().copied()))?;
        }
        Ok(Reading { traces, processes, chosen })
    }
}

impl Reading {
    pub fn each(&self) -> impl Iterator<Item = (&Process, &Trace)> {
        self.processes.iter().zip(&self.traces)
    }
}

/// What is printed for a trace without stacks.
pub const NO_STACKS: &str = "this trace has no stacks: recorded with VRAMTRACE_STACKS=none";

/// Fails if memory was allocated and no trace has stacks.
fn require_stacks(traces: &[Trace]) -> Result<(), Failure> {
    let mut lacking = None;
    for trace in traces {
        let (definitions, _) = trace.definitions();
        if !definitions.stacks().is_empty() {
            return Ok(());
        }
        if definitions.sites().next().is_some() {
            lacking = lacking.or(Some((trace, definitions)));
        }
    }
    lacking.map_or(Ok(()), |(trace, definitions)| {
        let path = trace.path().display();
        Err(Failure::new(match definitions.imported_from() {
            Some(form) => format!("{path}: no stacks: imported from a {form}, which has none"),
            None => format!("{path}: {NO_STACKS}; record it with VRAMTRACE_STACKS=native,python"),
        }))
    })
}
