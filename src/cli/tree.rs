//! `vramtrace tree`: who holds the memory, from the outermost frame in.

use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::tree::Tree;
use vramtrace_reader::analysis::{MomentFacts, Process, RolesOf, StackClassifier};
use vramtrace_reader::facts::ProcessId;
use vramtrace_reader::report::json::{DeviceTree, TREE, TreeReport};
use vramtrace_reader::report::text::tree::{TreeOptions, tree};
use vramtrace_reader::report::wording::gpu_name;
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::seconds;

use super::reading::{HeldArgs, show};
use crate::console;
use crate::error::Outcome;

#[derive(clap::Args)]
#[command(
    long_about = "Who holds the GPU memory, as a tree of calls: each line with all that is held \
        below it, from the outermost frame in. Frames that only forward a call (torch.nn's calls of \
        modules, wrappers, importlib) are left out.",
    after_help = "\
Examples:
  vramtrace tree                                       the newest run here, at its peak
  vramtrace tree train.vtrace --by role                weights, gradients, activations on top
  vramtrace tree --at end --no-fold --least 0          every frame"
)]
pub struct Args {
    #[command(flatten)]
    held: HeldArgs,
    /// What stands above the frames
    #[arg(long, value_enum, default_value = "frame")]
    by: By,
    /// Keep frames that only forward a call
    #[arg(long)]
    no_fold: bool,
    /// Merge branches that hold less than this many percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    least: f64,
    /// How many levels of branches to show
    #[arg(long, value_name = "N", default_value_t = 24)]
    depth: usize,
    /// Facts for programs (schema vramtrace.tree/2), all nodes
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum By {
    /// Frames alone
    Frame,
    Library,
    /// What it is for; docs/roles.md
    Role,
}

/// Width of the output where stdout is not a terminal.
const COLUMNS: usize = 100;

pub fn run(args: Args) -> Outcome {
    let read = args.held.ask((args.by == By::Role).then_some(RolesOf::All))?;
    let all: Vec<DeviceTree> = read.each().flat_map(|of| device_trees(of, &args)).collect();
    let document = || TreeReport {
        at: MomentFacts::of(args.held.moment.at, all.iter().map(|of| of.at_ns)),
        devices: &all,
    };
    show(&read.traces, args.json, TREE, document, || text(&all, read.processes.len() > 1, &args))
}

fn device_trees((process, trace): (&Process, &Trace), args: &Args) -> Vec<DeviceTree> {
    let (who, roles) = args.held.held((process, trace), args.by == By::Role);
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let tree_of = |device: DeviceId| {
        let mut tree = Tree::new(&classifier, !args.no_fold);
        match (&roles, args.by) {
            (Some(roles), _) => roles.add_to(&mut tree, device),
            (None, by) => tree.add_holdings(&who.live, device, by == By::Library),
        }
        tree.finish(&gpu_name(device))
    };
    let device_tree = |(device, at_ns): (&DeviceId, &u64)| DeviceTree {
        process: ProcessId::of(&process.header),
        device: *device,
        root: tree_of(*device),
        name: process.name(),
        at_ns: *at_ns,
    };
    who.live.at_ns.iter().map(device_tree).filter(|of| of.root.held.bytes > 0).collect()
}

fn text(all: &[DeviceTree], several: bool, args: &Args) -> String {
    let how = TreeOptions {
        least: args.least / 100.0,
        depth: args.depth,
        width: console::width().unwrap_or(COLUMNS),
    };
    let when = args.held.moment.at.words();
    let one = |of: &DeviceTree| {
        let name = if several { format!("{}, ", of.name) } else { String::new() };
        let heading = format!("{name}{}, {when} ({})", of.root.name, seconds(of.at_ns));
        tree(&of.root, &heading, how)
    };
    match all.is_empty() {
        true => format!("no GPU memory was held {when}\n"),
        false => all.iter().map(one).collect::<Vec<_>>().join("\n"),
    }
}
