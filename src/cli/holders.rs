//! `vramtrace holders`: the lines, functions, libraries or roles that hold the memory at a moment.

use vramtrace_reader::analysis::ranks::merge;
use vramtrace_reader::analysis::{
    GroupBy, Holder, Level, MomentFacts, NamedHoldings, Process, RolesOf, StackClassifier,
};
use vramtrace_reader::report::json::{HOLDERS, HoldersReport, not_known};
use vramtrace_reader::report::text::holders::{ListingOptions, listing, merged_table};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{count, size};

use super::reading::{HeldArgs, NO_STACKS, Reading, heading, problems, show};
use crate::error::Outcome;

#[derive(clap::Args)]
#[command(
    long_about = "List who holds GPU memory: the line that asked for it, the line of the program that \
        led there, and the library that called the driver.",
    after_help = "\
Examples:
  vramtrace holders                                    the newest run here, at its peak
  vramtrace holders train.vtrace --at end --full       with every frame
  vramtrace holders --level driver                     segments, not what is in them
  vramtrace holders --by library                       cuBLAS, NCCL and PyTorch apart
  vramtrace holders --by role                          weights, gradients, activations
  vramtrace holders --json | jq '.holders[0].frames[0]'"
)]
pub struct Args {
    #[command(flatten)]
    held: HeldArgs,
    /// What makes two allocations one holder
    #[arg(long, value_enum, default_value = "line")]
    by: Key,
    /// How many to list: of a run, or of each process and device
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    /// Show every frame
    #[arg(long)]
    full: bool,
    /// Facts for programs (schema vramtrace.holders/2), all holders
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Key {
    Line,
    Function,
    Library,
    Stack,
    /// What it is for: weights, gradients, activations; docs/roles.md
    Role,
}

impl Key {
    /// `None` for `role`, which cannot be found from the stack alone.
    fn group(self) -> Option<GroupBy> {
        match self {
            Key::Line => Some(GroupBy::Line),
            Key::Function => Some(GroupBy::Function),
            Key::Library => Some(GroupBy::Library),
            Key::Stack => Some(GroupBy::Stack),
            Key::Role => None,
        }
    }
}

/// A process with what it held, and the holders.
struct ProcessHolders<'p> {
    process: &'p Process,
    who: NamedHoldings,
    holders: Vec<Holder>,
}

pub fn run(args: Args) -> Outcome {
    let read = args.held.ask(args.by.group().is_none().then_some(RolesOf::All))?;
    let all: Vec<ProcessHolders> = read.each().map(|of| find(of, &args)).collect();
    let document = || document(&all, &args);
    show(&read.traces, args.json, HOLDERS, document, || text(&read, &all, &args))
}

fn find<'p>((process, trace): (&'p Process, &Trace), args: &Args) -> ProcessHolders<'p> {
    let (who, by_role) = args.held.held((process, trace), args.by.group().is_none());
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let holders = match (&by_role, args.by.group()) {
        (Some(held), _) => held.holders(&classifier, who.live.level),
        (None, by) => classifier.holders(&who.live, by.unwrap_or_default()),
    };
    ProcessHolders { process, who, holders }
}

fn text(read: &Reading, all: &[ProcessHolders], args: &Args) -> String {
    let mut out = heading(read.chosen.as_deref());
    let when = args.held.moment.at.words();
    let by = args.by.group().unwrap_or_default();
    let how = ListingOptions { by, top: args.top, full: args.full, when: &when };
    // Roles are found for each process alone and cannot be merged.
    if all.len() > 1 && args.by.group().is_some() {
        return out + &of_run(all, how);
    }
    for ProcessHolders { process, who, holders } in all {
        if all.len() > 1 {
            out.push_str(&format!("{}\n", process.name()));
        }
        out.push_str(&match process.definitions.stacks().is_empty() && !who.live.held.is_empty() {
            true => format!("{NO_STACKS}\n\n"),
            false => listing(process, who, holders, how),
        });
    }
    out
}

fn holders_of(all: &[ProcessHolders]) -> Vec<Vec<Holder>> {
    all.iter().map(|of| of.holders.clone()).collect()
}

/// The holders of all processes, merged.
fn of_run(all: &[ProcessHolders], how: ListingOptions) -> String {
    let merged = merge(&holders_of(all), how.by);
    let who: Vec<_> =
        all.iter().map(|of| (&of.process.header, of.process.trace.as_path())).collect();
    let bytes = merged.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add);
    if merged.is_empty() {
        return format!("no GPU memory was held {}\n", how.when);
    }
    let processes = count(all.len() as u64);
    let each = if how.when.starts_with("at the peak") { ", each device at its own" } else { "" };
    format!(
        "{processes} processes, {}{each}: {}\n{}",
        how.when,
        size(bytes),
        merged_table(&merged, &who, "", how)
    )
}

fn document(all: &[ProcessHolders], args: &Args) -> HoldersReport {
    let mut holders: Vec<Holder> = all.iter().flat_map(|of| of.holders.clone()).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    let times = all.iter().flat_map(|of| of.who.live.at_ns.values().copied());
    let finest = all.iter().map(|of| Level::of(&of.process.state)).max();
    let several = args.by.group().filter(|_| all.len() > 1);
    HoldersReport {
        at: MomentFacts::of(args.held.moment.at, times),
        level: args.held.moment.level.given.or(finest).unwrap_or(Level::Driver),
        holders,
        merged: several.map_or_else(Vec::new, |by| merge(&holders_of(all), by)),
        not_known: all.iter().flat_map(|of| not_known(of.process, &of.who)).collect(),
        problems: problems(all.iter().map(|of| &of.who.symbols)),
    }
}
