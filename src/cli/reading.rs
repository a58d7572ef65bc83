//! What the reading commands have in common. Those that show memory at a moment [ask](Question): they open traces, check
//! what the options need, read them to the moment, and leave out processes whose memory then is not known. All
//! [show] what they found in one way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::parallel::Progress;
use vramtrace_reader::analysis::roles::HeldByRole;
use vramtrace_reader::analysis::{
    Collect, Holdings, Level, Moment, NamedHoldings, Process, RolesOf, read_all,
};
use vramtrace_reader::report::json::Document;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Definitions, Trace};

use super::caveats;
use super::moment::{self, MomentArgs};
use super::select::{DeviceArgs, ProcessArgs, Selected, names};
use crate::console;
use crate::error::{DONE, Failure, Outcome};

/// What is asked of the traces.
pub struct Question<'q> {
    pub at: Moment,
    /// The option that gave the moment.
    pub option: &'q str,
    pub level: Option<Level>,
    pub roles: Option<RolesOf>,
    pub device: Option<&'q DeviceArgs>,
}

/// The options of a command about memory at one moment.
#[derive(clap::Args)]
pub struct HeldArgs {
    #[command(flatten)]
    pub processes: ProcessArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub moment: MomentArgs,
}

impl HeldArgs {
    pub fn ask(&self, roles: Option<RolesOf>) -> Result<Reading, Failure> {
        let MomentArgs { at, level } = &self.moment;
        let device = Some(&self.device);
        let question = Question { at: *at, option: "--at", level: level.given, roles, device };
        question.ask(self.processes.open()?)
    }

    /// What a process held then, with names; and by role, if `by_role`.
    pub fn held(
        &self,
        (process, trace): (&Process, &Trace),
        by_role: bool,
    ) -> (NamedHoldings, Option<HeldByRole>) {
        let level = self.moment.level.given.unwrap_or(Level::of(&process.state));
        let wanted = |device| self.device.includes(device);
        held_at((process, trace), (self.moment.at, level), by_role, wanted)
    }
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
        moment::require_blocks(&traces, self.level, Some(self.at))?;
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

/// What a process held at a moment on the `wanted` devices, with names; and by role, if `by_role`.
pub fn held_at(
    (process, trace): (&Process, &Trace),
    (at, level): (Moment, Level),
    by_role: bool,
    wanted: impl Fn(DeviceId) -> bool,
) -> (NamedHoldings, Option<HeldByRole>) {
    let (mut live, mut roles) = process.held_at(trace, at, level, by_role);
    live.retain(wanted);
    if let Some(roles) = &mut roles {
        roles.retain(|device| live.at_ns.contains_key(&device));
    }
    let symbols = Symbols::of(&process.definitions, &process.header, live.stacks());
    let peak = Holdings::default();
    (NamedHoldings { symbols, peak, live, peak_roles: None }, roles)
}

/// For commands about PyTorch's cache: what `find` says of each device of each trace, with the trace and its name. Of them
/// are kept that are asked for; fails if none of the devices there is.
pub fn of_devices<'t, T>(
    traces: &'t [Trace],
    wanted: &DeviceArgs,
    mut find: impl FnMut(&str, &Trace, &Definitions) -> Result<Vec<T>, Failure>,
    device_of: impl Fn(&T) -> DeviceId,
) -> Result<Vec<(String, &'t Trace, T)>, Failure> {
    let (mut kept, mut seen) = (Vec::new(), Vec::new());
    for (name, trace) in names(traces).into_iter().zip(traces) {
        for found in find(&name, trace, &trace.definitions().0)? {
            let device = device_of(&found);
            seen.push(device);
            kept.extend(wanted.includes(device).then(|| (name.clone(), trace, found)));
        }
    }
    if !seen.is_empty() {
        wanted.check(seen)?;
    }
    Ok(kept)
}

/// Libraries whose symbols could not be read, and why; each once.
pub fn problems<'s>(all: impl Iterator<Item = &'s Symbols>) -> Vec<String> {
    let all: BTreeSet<&String> = all.flat_map(|symbols| symbols.problems()).collect();
    all.into_iter().cloned().collect()
}

/// The end of a reading command, after it has read `traces`: warns of their damage, and prints what was found.
pub fn show<'t, D: Serialize>(
    traces: impl IntoIterator<Item = &'t Trace>,
    json: bool,
    schema: &'static str,
    facts: impl FnOnce() -> D,
    text: impl FnOnce() -> String,
) -> Outcome {
    let traces: Vec<&Trace> = traces.into_iter().collect();
    caveats::warn_damage(traces.iter().copied());
    match json {
        true => console::print(&console::json(&Document::new(schema, &facts(), traces))?)?,
        false => console::print_text(&text())?,
    }
    Ok(DONE)
}

/// Runs `read` with a progress bar on stderr. `read` calls its argument with bytes done and bytes in all.
pub fn with_progress<R>(read: impl FnOnce(Progress) -> R) -> R {
    /// The progress bar appears after this time.
    const NOTICEABLE: Duration = Duration::from_millis(300);
    // indicatif draws it only if stderr is a terminal.
    let bar = ProgressBar::no_length();
    let style = "reading {bar:40} {bytes} of {total_bytes}, {eta} left";
    ProgressStyle::with_template(style).into_iter().for_each(|style| bar.set_style(style));
    let began = Instant::now();
    let read = read(&|done, total| {
        if began.elapsed() > NOTICEABLE {
            bar.set_length(total);
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    read
}

/// The first line of text on the newest run, which the command line does not name.
pub fn heading(chosen: Option<&Path>) -> String {
    chosen.map_or(String::new(), |chosen| format!("{}\n\n", chosen.display()))
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
