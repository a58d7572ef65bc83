//! `vramtrace oom`: why a run was out of memory.

use vramtrace_reader::analysis::StackClassifier;
use vramtrace_reader::analysis::oom::{NotReported, Oom, OomsFound, Swallowed, explain, list};
use vramtrace_reader::replay::State;
use vramtrace_reader::report::json::{OOM, OomsReport};
use vramtrace_reader::report::oom::{ListedOom, ProcessRefusals};
use vramtrace_reader::report::shell;
use vramtrace_reader::report::text::oom::{self as view, OomOptions};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Definitions, Trace};

use super::reading::show;
use super::select::{DeviceArgs, ProcessArgs, names};
use crate::error::{Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Explain why a run was out of memory: the request and its line, the limit it \
        met, the parts of the memory in use, whether fragmentation was the cause, who held the \
        memory, and what to try.\n\n\
        Out of memory is a request of PyTorch's cache on which PyTorch gave up; of other callers, \
        one that was refused, unless the thread got as much within a second. The list says after \
        which of them the run went on. Other refusals were absorbed (PyTorch empties its cache and \
        asks again) and are counted only. Those within a second are one.\n\n\
        Exit status: 0 with and without an out-of-memory, 2 for bad input.",
    after_help = "\
Examples:
  vramtrace oom                                        the newest run here, also while it runs
  vramtrace oom vramtrace-20260101-120000/ --rank 3
  vramtrace oom train.vtrace --at 2                    the second one; `all`: every one in full
  vramtrace oom --short                                the first lines only
  vramtrace oom snapshot.pickle                        a PyTorch memory snapshot
  vramtrace oom --json | jq '.ooms[-1].post_mortem.advice'"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Which one, by its number in the run, or `all` [default: the one that ended the run; of
    /// several processes that ended so the first; else the last]
    #[arg(long, value_name = "WHICH", value_parser = which)]
    at: Option<Which>,
    /// How many holders to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print the first lines only: what was asked, the limit, the use, the cause, what to try
    #[arg(long, conflicts_with_all = ["full", "json"])]
    short: bool,
    /// Show every frame, and files with their whole path
    #[arg(long)]
    full: bool,
    /// Print JSON (schema vramtrace.oom/2)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Number(usize),
    All,
}

fn which(text: &str) -> Result<Which, &'static str> {
    match (text, text.parse::<usize>()) {
        ("all", _) => Ok(Which::All),
        (_, Ok(number)) if number > 0 => Ok(Which::Number(number)),
        _ => Err("give `all`, or a number from 1: `vramtrace oom` lists them"),
    }
}

/// One process with its out-of-memory events.
struct ProcessRead {
    name: String,
    trace: Trace,
    definitions: Definitions,
    found: OomsFound,
    end: State,
    /// Names of the frames of the requests' stacks.
    symbols: Symbols,
}

impl ProcessRead {
    fn new((name, trace): (String, Trace)) -> ProcessRead {
        let (definitions, _) = trace.definitions();
        let (found, end) = list(&trace, &definitions);
        let swallowed = found.swallowed.iter().map(|one| one.refusal.refused.stack);
        let stacks = found.ooms.iter().map(|oom| oom.stack).chain(swallowed);
        let symbols = Symbols::of(&definitions, trace.header(), stacks);
        ProcessRead { name, trace, definitions, found, end, symbols }
    }

    fn refusals(&self) -> ProcessRefusals<'_> {
        ProcessRefusals::of(&self.trace, &self.definitions, &self.found, &self.end)
    }

    fn not_reported(&self) -> Vec<NotReported> {
        let classifier = StackClassifier::new(&self.symbols, self.trace.header());
        let named = |one: &Swallowed| one.named(&classifier, &self.definitions);
        self.found.swallowed.iter().filter_map(named).collect()
    }
}

pub fn run(args: Args) -> Outcome {
    let traces = args.processes.open()?.traces;
    let processes: Vec<ProcessRead> =
        names(&traces).into_iter().zip(traces).map(ProcessRead::new).collect();
    let mut here = numbered(&processes);
    let all = here.len();
    here.retain(|listed| args.device.includes(listed.oom.device));
    let chosen = chosen(args.at, &here, all)?;
    explain_chosen(&processes, &mut here, &chosen);
    let traces = processes.iter().map(|read| &read.trace);
    let document = || OomsReport {
        ooms: &here,
        processes: processes.iter().map(ProcessRead::refusals).collect(),
        not_reported: processes.iter().flat_map(ProcessRead::not_reported).collect(),
    };
    show(traces, args.json, OOM, document, || text(&args, &processes, &here, all))
}

/// All out-of-memory events of the run, numbered from 1 in order of time.
fn numbered(processes: &[ProcessRead]) -> Vec<ListedOom<'_>> {
    let mut all: Vec<ListedOom> = Vec::new();
    for ProcessRead { trace, definitions, found, symbols, .. } in processes {
        let listed = |oom| ListedOom::of(0, oom, trace, definitions, symbols);
        all.extend(found.ooms.iter().map(listed));
    }
    all.sort_by_key(|of| of.trace.header().start_unix_ns.saturating_add(of.oom.time_ns));
    for (listed, number) in all.iter_mut().zip(1..) {
        listed.number = number;
    }
    all
}

/// The numbers of those that are explained: of `here`, which are on the wanted devices, of `all`.
fn chosen(at: Option<Which>, here: &[ListedOom], all: usize) -> Result<Vec<usize>, Failure> {
    let numbers = || here.iter().map(|listed| listed.number);
    match at {
        Some(Which::All) => Ok(numbers().collect()),
        Some(Which::Number(number)) if numbers().any(|here| here == number) => Ok(vec![number]),
        Some(Which::Number(number)) => {
            let there = match (all, here.len()) {
                (0, _) => "the run has no out-of-memory".to_string(),
                (_, 0) => "the run has no out-of-memory on this device".to_string(),
                (1, _) => "the run has 1 out-of-memory: --at 1 shows it".to_string(),
                (n, these) if n == these => format!("the run has {n}: give a number from 1 to {n}"),
                (n, _) => {
                    let numbers: Vec<String> = numbers().map(|here| here.to_string()).collect();
                    format!("the run has {n}, on this device {}", numbers.join(", "))
                }
            };
            Err(Failure::new(format!("--at {number}: {there}")))
        }
        None => {
            let ended = |listed: &&ListedOom| !listed.trace.is_running() && !listed.oom.went_on;
            // When one rank ends, the others often fail after it: the first is the cause.
            let first = here.iter().find(ended).map(|listed| listed.trace.path());
            let last = |trace| here.iter().rev().find(|of| of.trace.path() == trace && ended(of));
            let chosen = first.and_then(last).or(here.last());
            Ok(chosen.map(|listed| listed.number).into_iter().collect())
        }
    }
}

/// Fills in the post-mortems of those with these numbers.
fn explain_chosen(processes: &[ProcessRead], here: &mut [ListedOom], chosen: &[usize]) {
    for ProcessRead { trace, definitions, .. } in processes {
        let mut wanted: Vec<&mut ListedOom> = here.iter_mut().collect();
        wanted.retain(|of| of.trace.path() == trace.path() && chosen.contains(&of.number));
        let ooms: Vec<(usize, Oom)> = wanted.iter().map(|of| (of.number, of.oom.clone())).collect();
        let explained =
            if ooms.is_empty() { Vec::new() } else { explain(trace, definitions, &ooms) };
        for (listed, explained) in wanted.into_iter().zip(explained) {
            listed.post_mortem = Some(explained);
        }
    }
}

/// Up to so many processes without an out-of-memory get one line each; more are summed up.
const QUIET: usize = 3;
/// Lines of the list of all out-of-memory events.
const LISTED: usize = 20;

fn text(args: &Args, processes: &[ProcessRead], ooms: &[ListedOom], of: usize) -> String {
    let given = args.processes.given();
    let headers = || processes.iter().map(|read| read.trace.header());
    let parts = ooms.iter().filter_map(|listed| {
        let running = listed.trace.is_running();
        let Args { top, full, short, .. } = *args;
        let one = shell::of_process(&given, listed.trace.header(), listed.trace.path(), headers());
        let shown = OomOptions { top, full, short, running, of };
        Some(view::text(listed.post_mortem.as_ref()?, &one, shown))
    });
    let mut out = parts.collect::<Vec<_>>().join("\n");
    if args.short && !out.is_empty() {
        return out;
    }
    let alone = processes.len() == 1;
    for read in processes {
        let who = if alone { String::new() } else { format!("{} ", read.name) };
        read.not_reported().iter().for_each(|one| out.push_str(&view::swallowed(&who, one)));
    }
    out.push_str(&view::others(ooms, LISTED));
    let quiet: Vec<_> = processes.iter().filter(|read| read.found.ooms.is_empty()).collect();
    let name = |read: &ProcessRead| if alone { "".into() } else { format!("{}: ", read.name) };
    let quiet = match quiet.len() {
        0..=QUIET => quiet.iter().map(|read| view::none(&name(read), &read.refusals())).collect(),
        _ => view::none_of(&quiet.iter().map(|read| read.refusals()).collect::<Vec<_>>()),
    };
    if !out.is_empty() && !quiet.is_empty() {
        out.push('\n');
    }
    out + &quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_chosen_by_its_number() {
        assert_eq!(which("all"), Ok(Which::All));
        assert_eq!(which("2"), Ok(Which::Number(2)));
        for bad in ["", "0", "-1", "last", "1.5"] {
            assert!(which(bad).unwrap_err().contains("`all`"), "{bad}");
        }
    }
}
