//! `vramtrace leaks`: the stacks whose memory grows or is never freed.

use std::path::{Path, PathBuf};

use vramtrace_format::size;
use vramtrace_reader::analysis::leaks::{Leaks, Suppressions, UnusedRule, find};
use vramtrace_reader::analysis::parallel;
use vramtrace_reader::files;
use vramtrace_reader::report::json::{LEAKS, LeaksReport};
use vramtrace_reader::report::text::leaks::{details, of_run};
use vramtrace_reader::trace::Trace;

use super::reading::{heading, show};
use super::select::{DeviceArgs, ProcessArgs, Selected};
use crate::error::{Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "List the stacks whose GPU memory grows or is never freed. Verdicts, each with \
        its evidence:\n\n  \
        growing       the bytes that a stack never frees rise after warm-up, with their rate\n  \
        never_freed   left when nearly all other memory was freed at the end\n  \
        freed_at_end  it grew, and was freed when the process ended\n\n\
        Steady memory, caches that are full, steps that come and go, pools of frameworks, imports \
        and contexts are no leaks. The first fifth of the run is warm-up. Works on a process that \
        still runs.",
    after_help = "\
Examples:
  vramtrace leaks                                      the newest run here, also while it runs
  vramtrace leaks train.vtrace --full                  with every frame
  vramtrace leaks --min 1MiB --suppressions known.txt  without the small and the known ones
  vramtrace leaks --json | jq '.leaks[] | [.verdict, .bytes, .rate_bytes_per_s]'

A suppressions file has a pattern a line, with * and ?; a pattern with a / fits whole paths:
  # known and wanted
  function: Tokenizer.encode
  file: */site-packages/cachetools/*
  library: libcublas*"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Leave out leaks of fewer bytes: `1MiB`, `64k`, or plain bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    min: u64,
    /// A file with patterns of leaks that are known and accepted
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// How many to list of each process
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Show every frame
    #[arg(long)]
    full: bool,
    /// Facts for programs (schema vramtrace.leaks/2), all leaks
    #[arg(long)]
    json: bool,
}

/// Parses bytes: a size with its unit, or a plain number.
pub fn bytes(text: &str) -> Result<u64, vramtrace_format::error::NotUnderstood> {
    text.parse().or_else(|_| size::parse(text))
}

/// Maximum size of a suppressions file in bytes.
const MAX_SUPPRESSIONS_BYTES: u64 = 64 << 20;

/// The rules of a suppressions file; none without a file.
pub fn suppressions(path: Option<&Path>) -> Result<Suppressions, Failure> {
    let Some(path) = path else { return Ok(Suppressions::default()) };
    let named = |why: &dyn std::fmt::Display| {
        Failure::new(format!("--suppressions {}: {why}", path.display()))
    };
    let text =
        files::read_given_text(path, MAX_SUPPRESSIONS_BYTES).map_err(|error| named(&error))?;
    Suppressions::parse(&text).map_err(|error| named(&error))
}

/// The leaks of each trace, in the order of `traces`. `least`: smaller leaks are left out, bytes.
pub fn find_all(traces: &[Trace], rules: &Suppressions, least: u64) -> Vec<Leaks> {
    let all: Vec<&Trace> = traces.iter().collect();
    parallel::each(&all, &|_, _| {}, |_, trace, _| find(trace, rules, least))
}

pub fn run(args: Args) -> Outcome {
    let rules = suppressions(args.suppressions.as_deref())?;
    let Selected { traces, chosen, .. } = args.processes.open()?;
    let mut found = find_all(&traces, &rules, args.min);
    args.device.check(found.iter().flat_map(|leaks| leaks.peaks.keys().copied()))?;
    found.iter_mut().for_each(|leaks| leaks.retain(|device| args.device.includes(device)));
    let text = || heading(chosen.as_deref()) + &text(&found, &rules, &args);
    show(&traces, args.json, LEAKS, || LeaksReport::of(&found, &rules), text)
}

fn text(found: &[Leaks], rules: &Suppressions, args: &Args) -> String {
    let mut out = match found {
        [one] => details(one, args.top, args.full),
        all => of_run(all, args.top, args.full),
    };
    for UnusedRule { line, rule } in rules.unused(found) {
        out.push_str(&format!("\nline {line} of the suppressions matches no leak: {rule}"));
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}
