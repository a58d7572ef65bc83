//! `vramtrace holders`: the lines, functions, libraries or roles that hold the memory at a moment.

use std::path::PathBuf;

use vramtrace_reader::analysis::ranks::{Holders, merge};
use vramtrace_reader::analysis::roles::HeldByRole;
use vramtrace_reader::analysis::{
    GroupBy, Holdings, Level, Moment, NamedHoldings, Process, RolesOf, StackClassifier,
};
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::holders::{
    HoldersReport, MomentFacts, SCHEMA, facts_by, facts_by_role, not_known,
};
use vramtrace_reader::report::json::ranks::{HeldFacts, held_facts};
use vramtrace_reader::report::text::holders::{ListingOptions, listing, listing_by_role};
use vramtrace_reader::report::text::merged;
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::{count, size};

use super::reading::{NO_STACKS, Question};
use super::select::{DeviceArgs, ProcessArgs};
use super::{caveats, level, moment};
use crate::console;
use crate::error::{DONE, Failure, Outcome};

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
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = moment::parse, help = moment::HELP)]
    at: Moment,
    /// Show what grew from --at to this moment instead; more of it: `vramtrace diff`
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, conflicts_with_all = ["json", "full", "level", "by"])]
    vs: Option<Moment>,
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

/// A process with its holders, and the bytes by role for `--by role`.
type Named<'p> = (&'p Process, NamedHoldings, Option<HeldByRole>);

pub fn run(args: Args) -> Outcome {
    if let Some(vs) = args.vs {
        return super::diff::moments(&args.processes, &args.device, (args.at, vs), args.top);
    }
    let level = args.level.map(Level::from);
    let roles = args.by.group().is_none().then_some(RolesOf::All);
    let question =
        Question { at: args.at, option: "--at", level, roles, device: Some(&args.device) };
    let read = question.ask(args.processes.open()?)?;
    let named: Vec<Named> =
        read.each().map(|(process, trace)| named(process, trace, &args, level)).collect();
    caveats::warn_damage(&read.traces);
    match args.json {
        true => console::print(&json(&named, &read.traces, &args, level)?)?,
        false => console::print_text(&text(&read.chosen, &named, &args))?,
    }
    Ok(DONE)
}

fn named<'p>(process: &'p Process, trace: &Trace, args: &Args, level: Option<Level>) -> Named<'p> {
    let level = level.unwrap_or(Level::of(&process.state));
    let by_role = args.by.group().is_none();
    let (mut live, mut roles) = process.held_at(trace, args.at, level, by_role);
    live.retain(|device| args.device.includes(device));
    if let Some(roles) = &mut roles {
        roles.retain(|device| live.at_ns.contains_key(&device));
    }
    let symbols = Symbols::of(&process.definitions, &process.header, live.stacks());
    let who = NamedHoldings { symbols, peak: Holdings::default(), live, peak_roles: None };
    (process, who, roles)
}

fn text(chosen: &Option<PathBuf>, named: &[Named], args: &Args) -> String {
    let mut out = String::new();
    if let Some(chosen) = chosen {
        out.push_str(&format!("{}\n\n", chosen.display()));
    }
    let when = args.at.words();
    let how = ListingOptions {
        by: args.by.group().unwrap_or_default(),
        top: args.top,
        full: args.full,
        when: &when,
    };
    // Roles are found for each process alone and cannot be merged.
    if named.len() > 1 && !args.each && args.by.group().is_some() {
        return out + &of_run(named, how);
    }
    for (process, who, roles) in named {
        if named.len() > 1 {
            out.push_str(&format!("{}\n", process.name()));
        }
        if process.definitions.stacks().is_empty() && !who.live.is_empty() {
            out.push_str(&format!("{NO_STACKS}\n\n"));
            continue;
        }
        out.push_str(&match roles {
            Some(roles) => listing_by_role(process, who, roles, how),
            None => listing(process, who, &who.live, how),
        });
    }
    out
}

/// The holders of all processes, merged.
fn of_run(named: &[Named], how: ListingOptions) -> String {
    let classifiers = classifiers(named);
    let sources = sources(named, &classifiers, how.by);
    let all = merge(&sources, how.by);
    let who: Vec<merged::Named> =
        named.iter().map(|(process, ..)| (&process.header, process.trace.as_path())).collect();
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

fn classifiers<'n>(named: &'n [Named<'n>]) -> Vec<StackClassifier<'n>> {
    named
        .iter()
        .map(|(process, who, _)| StackClassifier::new(&who.symbols, &process.header))
        .collect()
}

fn sources<'c, 'n>(
    named: &'n [Named<'n>],
    classifiers: &'c [StackClassifier<'n>],
    by: GroupBy,
) -> Vec<Holders<'c, 'n>> {
    let mut sources = Vec::new();
    for (process, ((_, who, _), classifier)) in named.iter().zip(classifiers).enumerate() {
        let holders = classifier.holders(&who.live, by);
        sources.push(Holders { process, classifier, holders });
    }
    sources
}

/// The merged holders of several processes; empty for one process.
fn merged_facts(named: &[Named], by: GroupBy) -> Vec<HeldFacts> {
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
    named: &[Named],
    traces: &[Trace],
    args: &Args,
    level: Option<Level>,
) -> Result<String, Failure> {
    let facts = |(process, who, roles): &Named| match (roles, args.by.group()) {
        (None, Some(by)) => facts_by(process, who, &who.live, None, by, usize::MAX),
        (Some(roles), _) => facts_by_role(process, who, roles),
        (None, None) => Vec::new(),
    };
    let mut holders: Vec<_> = named.iter().flat_map(facts).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    let times = named.iter().flat_map(|(_, who, _)| who.live.at_ns.values().copied());
    let mut problems: Vec<String> =
        named.iter().flat_map(|(_, who, _)| who.symbols.problems().to_vec()).collect();
    problems.sort();
    problems.dedup();
    let finest = named.iter().map(|(process, ..)| Level::of(&process.state)).max();
    let all = HoldersReport {
        schema: SCHEMA,
        at: MomentFacts::of(args.at, times),
        level: level.or(finest).unwrap_or(Level::Driver).name(),
        holders,
        merged: args.by.group().map_or(Vec::new(), |by| merged_facts(named, by)),
        not_known: named
            .iter()
            .flat_map(|(process, who, _)| not_known(process, &who.live))
            .collect(),
        problems,
    };
    console::json(&WithDamage::new(&all, traces))
}
