//! `vramtrace holders`: who holds the memory.

use std::path::PathBuf;

use vramtrace_reader::analysis::ranks::{Holders, merge};
use vramtrace_reader::analysis::{
    GroupBy, Holdings, Level, Moment, NamedHoldings, Process, StackClassifier, read_all,
};
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::holders::{
    HoldersReport, MomentFacts, SCHEMA, facts_by, not_known,
};
use vramtrace_reader::report::json::run::{HeldFacts, held_facts};
use vramtrace_reader::report::text::holders::{ListingOptions, listing};
use vramtrace_reader::report::text::merged;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{count, size};

use super::select::{DeviceArgs, ProcessArgs};
use super::{caveats, level, moment};
use crate::error::{DONE, Failure, Outcome};

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
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Which moment: `peak` (of each device), `peak-allocated` (of PyTorch's blocks), `end`, or
    /// seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse)]
    at: Moment,
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long, value_enum)]
    level: Option<level::LevelName>,
    /// What makes two allocations one holder
    #[arg(long, value_enum, default_value = "line")]
    by: Key,
    /// How many to list: of a run, or of each process and device
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    /// Every process by itself, also where several have the same holders
    #[arg(long)]
    each: bool,
    /// Show every frame
    #[arg(long)]
    full: bool,
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

impl From<Key> for GroupBy {
    fn from(key: Key) -> GroupBy {
        match key {
            Key::Line => GroupBy::Line,
            Key::Function => GroupBy::Function,
            Key::Library => GroupBy::Library,
            Key::Stack => GroupBy::Stack,
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
    let mut loaded = args.processes.open()?;
    need_stacks(&loaded.traces)?;
    // The peaks are looked up from the state at the end.
    let level = args.level.map(Level::from);
    level::need_blocks(&loaded.traces, level, Some(args.at))?;
    let read = if args.at.is_peak() { Moment::End } else { args.at };
    let mut processes = read_all(&loaded.traces, read, &|_, _| {});
    caveats::keep_known(&mut processes, &mut loaded.traces)?;
    args.device
        .check(processes.iter().flat_map(|process| process.state.devices.keys().copied()))?;
    let named: Vec<(&Process, NamedHoldings)> = processes
        .iter()
        .zip(&loaded.traces)
        .map(|(process, trace)| (process, who(process, trace, &args, level)))
        .collect();
    caveats::tell_damage(&loaded.traces);
    let text = match args.json {
        true => json(&named, &loaded.traces, &args, level)?,
        false => text(&loaded.chosen, &named, &args),
    };
    crate::console::print(&text)?;
    Ok(DONE)
}

fn who(process: &Process, trace: &Trace, args: &Args, level: Option<Level>) -> NamedHoldings {
    let level = level.unwrap_or(Level::of(&process.state));
    let mut live = Holdings::at(trace, &process.definitions, &process.state, args.at, level);
    live.retain(|device| args.device.includes(device));
    let symbols = Symbols::of(&process.definitions, &process.header, live.stacks());
    NamedHoldings { symbols, peak: Holdings::default(), live }
}

fn text(chosen: &Option<PathBuf>, named: &[(&Process, NamedHoldings)], args: &Args) -> String {
    let mut out = String::new();
    if let Some(chosen) = chosen {
        out.push_str(&format!("{}\n\n", chosen.display()));
    }
    let how = ListingOptions {
        by: args.by.into(),
        top: args.top,
        full: args.full,
        when: moment::words(args.at),
    };
    if named.len() > 1 && !args.each {
        return out + &of_run(named, how);
    }
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

/// The holders of all processes, each once.
fn of_run(named: &[(&Process, NamedHoldings)], how: ListingOptions) -> String {
    let classifiers = classifiers(named);
    let sources = sources(named, &classifiers, how.by);
    let all = merge(&sources, how.by);
    let who: Vec<merged::Named> =
        named.iter().map(|(process, _)| (&process.header, process.trace.as_path())).collect();
    let bytes = all.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
    if all.is_empty() {
        return format!("no GPU memory was held {}\n", how.when);
    }
    let processes = count(named.len() as u64);
    let each = if how.when.starts_with("at the peak") { ", each device at its own" } else { "" };
    format!(
        "{processes} processes, {}{each}: {}\n{}",
        how.when,
        size(bytes),
        merged::table(&sources, &all, &who, ("", bytes), how)
    )
}

fn classifiers<'n>(named: &'n [(&Process, NamedHoldings)]) -> Vec<StackClassifier<'n>> {
    named.iter().map(|(process, who)| StackClassifier::new(&who.symbols, &process.header)).collect()
}

fn sources<'c, 'n>(
    named: &'n [(&Process, NamedHoldings)],
    classifiers: &'c [StackClassifier<'n>],
    by: GroupBy,
) -> Vec<Holders<'c, 'n>> {
    let mut sources = Vec::new();
    for (process, ((_, who), classifier)) in named.iter().zip(classifiers).enumerate() {
        let holders = classifier.holders(&who.live, by);
        sources.push(Holders { process, classifier, holders });
    }
    sources
}

/// Of several processes each holder once.
fn merged_facts(named: &[(&Process, NamedHoldings)], by: GroupBy) -> Vec<HeldFacts> {
    if named.len() < 2 {
        return Vec::new();
    }
    let classifiers = classifiers(named);
    let sources = sources(named, &classifiers, by);
    let of = |process: usize| {
        let header = &named[process].0.header;
        (header.pid, header.rank)
    };
    merge(&sources, by).iter().map(|merged| held_facts(&sources, merged, of)).collect()
}

fn json(
    named: &[(&Process, NamedHoldings)],
    traces: &[Trace],
    args: &Args,
    level: Option<Level>,
) -> Result<String, Failure> {
    let facts = |(process, who): &(&Process, NamedHoldings)| {
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
    let all = HoldersReport {
        schema: SCHEMA,
        at: MomentFacts { label, seconds: asked.or(only).map(|ns| ns as f64 / 1e9) },
        level: level.or(finest).unwrap_or(Level::Driver).name(),
        holders,
        merged: merged_facts(named, args.by.into()),
        not_known: named.iter().flat_map(|(process, who)| not_known(process, &who.live)).collect(),
        problems,
    };
    crate::console::json(&WithDamage::new(&all, traces))
}
