//! `vramtrace oom`: why a run was out of memory.

use vramtrace_reader::analysis::StackClassifier;
use vramtrace_reader::analysis::oom::{Explained, Oom, OomsFound, explain, list};
use vramtrace_reader::replay::State;
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::oom as json;
use vramtrace_reader::report::oom::{ListedOom, ProcessRefusals};
use vramtrace_reader::report::shell;
use vramtrace_reader::report::text::oom as text;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Definitions;

use super::caveats;
use super::select::{DeviceArgs, Input, ProcessArgs};
use crate::console::{self, print, print_text};
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Explain why a run was out of memory: the request and its line, the limit it \
        met, the parts of the memory in use, whether fragmentation was the cause, who held the \
        memory, what grew before, and what to try.\n\n\
        Out of memory is a request of PyTorch's cache on which PyTorch gave up; of other callers, \
        one that was refused and after which the thread got no memory, or that was refused \
        again after a second. Other refusals were absorbed (PyTorch empties its cache and asks \
        again) and are counted only. Requests that failed within a second of each other are one.\n\n\
        Exit status: 0 with and without an out-of-memory (`vramtrace report --fail-on refusal` \
        reports by status), 2 for bad input.",
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
    /// How many lines to list of holders and of what grew
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print the first lines only: what was asked, the limit, the use, the cause, what to try
    #[arg(long, conflicts_with_all = ["full", "json"])]
    short: bool,
    /// Show every frame, and files with their whole path
    #[arg(long)]
    full: bool,
    /// Print JSON (schema vramtrace.oom/1)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Number(usize),
    All,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("give `all`, or a number from 1: `vramtrace oom` lists them")]
struct NotAnOom;

fn which(text: &str) -> Result<Which, NotAnOom> {
    match (text, text.parse::<usize>()) {
        ("all", _) => Ok(Which::All),
        (_, Ok(number)) if number > 0 => Ok(Which::Number(number)),
        _ => Err(NotAnOom),
    }
}

/// One process with its out-of-memory events.
struct ProcessRead {
    input: Input,
    definitions: Definitions,
    found: OomsFound,
    end: State,
    /// Names of the frames of the requests' stacks.
    symbols: Symbols,
}

impl ProcessRead {
    fn new(input: Input) -> ProcessRead {
        let (definitions, _) = input.trace.definitions();
        let (found, end) = list(&input.trace, &definitions);
        let swallowed = found.swallowed.iter().map(|one| one.refusal.refused.stack);
        let stacks = found.ooms.iter().map(|oom| oom.stack).chain(swallowed);
        let symbols = Symbols::of(&definitions, input.trace.header(), stacks);
        ProcessRead { input, definitions, found, end, symbols }
    }

    /// Refusals that were no out-of-memory. `alone`: the run has one process, which needs no name.
    fn absorbed(&self, alone: bool) -> ProcessRefusals<'_> {
        let name = if alone { String::new() } else { self.input.name.clone() };
        ProcessRefusals { name, end: &self.end, refusals: &self.found.refusals }
    }
}

/// An out-of-memory: the index of its process, its index there, and its number in the run.
#[derive(Clone, Copy)]
struct Place {
    process: usize,
    index: usize,
    number: usize,
}

pub fn run(args: Args) -> Outcome {
    let processes: Vec<ProcessRead> =
        args.processes.open()?.into_inputs().map(ProcessRead::new).collect();
    let all = numbered(&processes);
    let of_device = |place: &&Place| args.device.includes(oom(&processes, **place).device);
    let here: Vec<Place> = all.iter().filter(of_device).copied().collect();
    let chosen = chosen(&args, &processes, &all, &here)?;
    let explained = explained(&processes, &chosen);
    caveats::warn_damage(processes.iter().map(|read| &read.input.trace));
    match args.json {
        true => print(&as_json(&args, &processes, &here, &explained)?)?,
        false => print_text(&as_text(&args, &processes, &here, &explained, all.len()))?,
    }
    Ok(DONE)
}

fn oom(processes: &[ProcessRead], place: Place) -> &Oom {
    &processes[place.process].found.ooms[place.index]
}

/// All out-of-memory events of the run, numbered from 1 in order of time.
fn numbered(processes: &[ProcessRead]) -> Vec<Place> {
    let mut all: Vec<Place> = processes
        .iter()
        .enumerate()
        .flat_map(|(process, read)| {
            (0..read.found.ooms.len()).map(move |index| Place { process, index, number: 0 })
        })
        .collect();
    all.sort_by_key(|place| {
        let start = processes[place.process].input.trace.header().start_unix_ns;
        start.saturating_add(oom(processes, *place).time_ns)
    });
    for (place, number) in all.iter_mut().zip(1..) {
        place.number = number;
    }
    all
}

fn chosen(
    args: &Args,
    processes: &[ProcessRead],
    all: &[Place],
    here: &[Place],
) -> Result<Vec<Place>, Failure> {
    match args.at {
        Some(Which::All) => Ok(here.to_vec()),
        Some(Which::Number(number)) => {
            let found = here.iter().find(|place| place.number == number);
            let there = match (all.len(), here.len()) {
                (0, _) => "the run has no out-of-memory".to_string(),
                (_, 0) => "the run has no out-of-memory on this device".to_string(),
                (1, _) => "the run has 1 out-of-memory: --at 1 shows it".to_string(),
                (n, these) if n == these => format!("the run has {n}: give a number from 1 to {n}"),
                (n, _) => {
                    let numbers: Vec<String> =
                        here.iter().map(|place| place.number.to_string()).collect();
                    format!("the run has {n}, on this device {}", numbers.join(", "))
                }
            };
            match found {
                Some(place) => Ok(vec![*place]),
                None => Err(Failure::new(format!("--at {number}: {there}"))),
            }
        }
        None => {
            let ended = |place: &&Place| {
                let running = processes[place.process].input.trace.is_running();
                !running && !oom(processes, **place).went_on
            };
            // When one rank ends, the others often fail after it: the first is the cause.
            let first = here.iter().find(ended).map(|place| place.process);
            let last =
                |process| here.iter().rev().find(|place| place.process == process && ended(place));
            let chosen = first.and_then(last).or(here.last());
            Ok(chosen.into_iter().copied().collect())
        }
    }
}

/// Each with its place, in order.
fn explained(processes: &[ProcessRead], chosen: &[Place]) -> Vec<(Place, Explained)> {
    let mut all = Vec::new();
    for (process, read) in processes.iter().enumerate() {
        let here: Vec<Place> =
            chosen.iter().filter(|place| place.process == process).copied().collect();
        if here.is_empty() {
            continue;
        }
        let ooms: Vec<(usize, Oom)> =
            here.iter().map(|place| (place.number, read.found.ooms[place.index].clone())).collect();
        let explained = explain(&read.input.trace, &read.definitions, &ooms);
        all.extend(here.into_iter().zip(explained));
    }
    all.sort_by_key(|(place, _)| place.number);
    all
}

fn listed(processes: &[ProcessRead], place: Place) -> ListedOom<'_> {
    let read = &processes[place.process];
    ListedOom {
        number: place.number,
        oom: &read.found.ooms[place.index],
        header: read.input.trace.header(),
        trace: read.input.trace.path(),
        definitions: &read.definitions,
        symbols: &read.symbols,
    }
}

fn as_json(
    args: &Args,
    processes: &[ProcessRead],
    here: &[Place],
    explained: &[(Place, Explained)],
) -> Result<String, Failure> {
    let full = |place: &Place| {
        explained.iter().find(|(of, _)| of.number == place.number).map(|(_, explained)| explained)
    };
    let all = json::OomsReport {
        schema: json::SCHEMA,
        ooms: here
            .iter()
            .map(|place| json::facts(&listed(processes, *place), full(place), args.top))
            .collect(),
        processes: processes
            .iter()
            .map(|read| {
                let trace = &read.input.trace;
                let (path, running) = (trace.path().display().to_string(), trace.is_running());
                json::process(
                    &read.absorbed(false),
                    trace.header(),
                    path,
                    running,
                    &read.found.ooms,
                )
            })
            .collect(),
        not_reported: processes
            .iter()
            .flat_map(|read| {
                let header = read.input.trace.header();
                json::not_reported(&read.found.swallowed, &read.symbols, header, &read.definitions)
            })
            .collect(),
    };
    let all = WithDamage::new(&all, processes.iter().map(|read| &read.input.trace));
    console::json(&all)
}

/// Up to so many processes without an out-of-memory get one line each; more are summed up.
const QUIET: usize = 3;
/// Lines of the list of all out-of-memory events.
const LISTED: usize = 20;

fn as_text(
    args: &Args,
    processes: &[ProcessRead],
    here: &[Place],
    explained: &[(Place, Explained)],
    of: usize,
) -> String {
    let given = args.processes.given();
    let parts = explained.iter().map(|(place, explained)| {
        let read = &processes[place.process];
        let trace = &read.input.trace;
        let shown = text::OomOptions {
            top: args.top,
            full: args.full,
            short: args.short,
            running: trace.is_running(),
            of,
        };
        let headers = processes.iter().map(|read| read.input.trace.header());
        let one = shell::of_process(&given, trace.header(), trace.path(), headers);
        text::text(explained, trace.header(), &read.definitions, &one, shown)
    });
    let mut out = parts.collect::<Vec<_>>().join("\n");
    if args.short && !explained.is_empty() {
        return out;
    }
    for read in processes {
        let classifier = StackClassifier::new(&read.symbols, read.input.trace.header());
        let who = match processes.len() {
            1 => String::new(),
            _ => format!("{} ", read.input.name),
        };
        let (all, definitions) = (&read.found.swallowed, &read.definitions);
        out.push_str(&text::swallowed(&who, all, &classifier, definitions));
    }
    let all: Vec<ListedOom> = here.iter().map(|place| listed(processes, *place)).collect();
    let shown: Vec<usize> = explained.iter().map(|(place, _)| place.number).collect();
    out.push_str(&text::others(&all, &shown, LISTED));
    let quiet: Vec<&ProcessRead> =
        processes.iter().filter(|read| read.found.ooms.is_empty()).collect();
    let quiet = match quiet.len() {
        0..=QUIET => {
            quiet.iter().map(|read| text::none(&read.absorbed(processes.len() == 1))).collect()
        }
        _ => {
            let all: Vec<_> = quiet.iter().map(|read| read.absorbed(false)).collect();
            let named = quiet.iter().zip(&all).map(|(read, quiet)| {
                let trace = &read.input.trace;
                (trace.header(), trace.path(), quiet)
            });
            text::none_of(&named.collect::<Vec<_>>())
        }
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
            assert!(which(bad).unwrap_err().to_string().contains("`all`"), "{bad}");
        }
    }
}
