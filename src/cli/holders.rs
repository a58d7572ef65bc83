//! `vramtrace holders`: who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::analysis::{By, Holdings, Level, Moment, Process, Who, read_all};
use vramtrace_reader::report::holders::{At, Holders, Listing, SCHEMA, facts_by, listing};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Trace, load};

use super::{DONE, Failure, Outcome, level, moment, say};

#[derive(clap::Args)]
#[command(
    long_about = "Who holds the GPU memory: by the line that wanted it, with the line of the \
        program's own that led there, and by the library that asked the driver.",
    after_help = "\
Examples:
  vramtrace holders                                    the newest run here, at its peak
  vramtrace holders train.vtrace --at end --full       with every frame
  vramtrace holders --level driver                     segments, not what is in them
  vramtrace holders --by library                       cuBLAS, NCCL, PyTorch told apart
  vramtrace holders --json | jq '.holders[0].frames[0]'"
)]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
    /// Which moment: `peak` (of each device), `peak-allocated` (of PyTorch's blocks), `end`, or
    /// seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse)]
    at: Moment,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::Name>,
    /// What makes two allocations one holder
    #[arg(long, value_enum, default_value = "line")]
    by: Key,
    /// How many to list of each process and device
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    /// Show every frame
    #[arg(long)]
    full: bool,
    /// Only the process of this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Facts for programs (schema vramtrace.holders/1), all holders
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Key {
    Line,
    Function,
    Library,
    Stack,
}

impl From<Key> for By {
    fn from(key: Key) -> By {
        match key {
            Key::Line => By::Line,
            Key::Function => By::Function,
            Key::Library => By::Library,
            Key::Stack => By::Stack,
        }
    }
}

/// What a trace without stacks is told by.
pub const NO_STACKS: &str = "this trace has no stacks: recorded with VRAMTRACE_STACKS=none";

/// Fails where no trace has stacks though memory was allocated.
pub fn need_stacks(traces: &[Trace]) -> Result<(), Failure> {
    let mut lacking = None;
    for trace in traces {
        let (definitions, _) = trace.definitions();
        if !definitions.stacks().is_empty() {
            return Ok(());
        }
        if definitions.sites().next().is_some() {
            lacking = lacking.or(Some(trace));
        }
    }
    lacking.map_or(Ok(()), |trace| {
        let path = trace.path().display();
        let (definitions, _) = trace.definitions();
        Err(Failure::new(match definitions.imported_from() {
            Some(form) => format!("{path}: no stacks: imported from a {form}, which has none"),
            None => format!("{path}: {NO_STACKS}; record it with VRAMTRACE_STACKS=native,python"),
        }))
    })
}

pub fn run(args: Args) -> Outcome {
    let mut loaded = load(&args.traces)?;
    loaded.warnings.iter().for_each(say);
    if let Some(rank) = args.rank {
        loaded.traces.retain(|trace| trace.header().rank == Some(rank));
        if loaded.traces.is_empty() {
            return Err(Failure::new(format!("--rank {rank}: no such process in these traces")));
        }
    }
    need_stacks(&loaded.traces)?;
    // The peaks are looked up from the state at the end.
    let level = args.level.map(Level::from);
    level::need_blocks(&loaded.traces, level, Some(args.at))?;
    let read = if args.at.is_peak() { Moment::End } else { args.at };
    let processes = read_all(&loaded.traces, read, &|_, _| {});
    let named: Vec<(&Process, Who)> = processes
        .iter()
        .zip(&loaded.traces)
        .map(|(process, trace)| (process, who(process, trace, args.at, level)))
        .collect();
    let text = match args.json {
        true => json(&named, &args, level)?,
        false => text(&loaded.chosen, &named, &args),
    };
    super::print(&text)?;
    Ok(DONE)
}

fn who(process: &Process, trace: &Trace, at: Moment, level: Option<Level>) -> Who {
    let level = level.unwrap_or(Level::of(&process.state));
    let live = Holdings::at(trace, &process.definitions, &process.state, at, level);
    let symbols = Symbols::of(&process.definitions, &process.header, live.stacks());
    Who { symbols, peak: Holdings::default(), live }
}

fn text(chosen: &Option<PathBuf>, named: &[(&Process, Who)], args: &Args) -> String {
    let mut out = String::new();
    if let Some(chosen) = chosen {
        out.push_str(&format!("{}\n\n", chosen.display()));
    }
    let how = Listing {
        by: args.by.into(),
        top: args.top,
        full: args.full,
        when: moment::words(args.at),
    };
    for (process, who) in named {
        if named.len() > 1 {
            out.push_str(&format!("{}\n", process.name()));
        }
        if process.definitions.stacks().is_empty() && !who.live.is_empty() {
            out.push_str(&format!("{NO_STACKS}\n\n"));
            continue;
        }
        out.push_str(&listing(process, who, &who.live, how));
    }
    out
}

fn json(named: &[(&Process, Who)], args: &Args, level: Option<Level>) -> Result<String, Failure> {
    let facts = |(process, who): &(&Process, Who)| {
        facts_by(process, who, &who.live, None, args.by.into(), usize::MAX)
    };
    let mut holders: Vec<_> = named.iter().flat_map(facts).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    let (label, asked) = match args.at {
        Moment::Peak => ("peak", None),
        Moment::AllocatedPeak => ("peak-allocated", None),
        Moment::End => ("end", None),
        Moment::At(time_ns) => ("time", Some(time_ns)),
    };
    // One moment where there is one: peaks are of a device each.
    let mut moments: Vec<u64> =
        named.iter().flat_map(|(_, who)| who.live.at_ns.values().copied()).collect();
    moments.dedup();
    let only = match moments[..] {
        [only] => Some(only),
        _ => None,
    };
    let mut problems: Vec<String> =
        named.iter().flat_map(|(_, who)| who.symbols.problems().to_vec()).collect();
    problems.sort();
    problems.dedup();
    let finest = named.iter().map(|(process, _)| Level::of(&process.state)).max();
    let all = Holders {
        schema: SCHEMA,
        at: At { label, seconds: asked.or(only).map(|ns| ns as f64 / 1e9) },
        level: level.or(finest).unwrap_or(Level::Driver).name(),
        holders,
        problems,
    };
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}
