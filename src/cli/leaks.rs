//! `vramtrace leaks`: the stacks whose memory grows or is never freed.

use std::path::{Path, PathBuf};

use vramtrace_format::size;
use vramtrace_reader::analysis::leaks::{Leaks, Suppressions, find};
use vramtrace_reader::analysis::parallel;
use vramtrace_reader::files;
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::leaks::report;
use vramtrace_reader::report::text::leaks::{details, of_run};
use vramtrace_reader::trace::Trace;

use super::caveats;
use super::select::{DeviceArgs, ProcessArgs};
use crate::console::{json, print, print_text};
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "List the stacks whose GPU memory grows or is never freed. Verdicts, each with \
        its evidence:\n\n  \
        growing       the bytes that a stack never frees rise after warm-up, with their rate\n  \
        never_freed   allocated a few times over the run, or left when all else was freed\n  \
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
    /// Every process by itself, also where several have the same leak
    #[arg(long)]
    each: bool,
    /// Show every frame
    #[arg(long)]
    full: bool,
    /// Facts for programs (schema vramtrace.leaks/1), all leaks
    #[arg(long)]
    json: bool,
}

/// Parses bytes: a size with its unit, or a plain number.
pub fn bytes(text: &str) -> Result<u64, size::SizeError> {
    text.parse().or_else(|_| size::parse(text))
}

/// Most bytes of a suppressions file.
const MOST_RULES: u64 = 64 << 20;

/// The rules of a suppressions file; none without a file.
pub fn suppressions(path: Option<&Path>) -> Result<Suppressions, Failure> {
    let Some(path) = path else { return Ok(Suppressions::default()) };
    let named = |why: &dyn std::fmt::Display| {
        Failure::new(format!("--suppressions {}: {why}", path.display()))
    };
    let text = files::read_given_text(path, MOST_RULES).map_err(|error| named(&error))?;
    Suppressions::parse(&text).map_err(|error| named(&error))
}

/// The leaks of each trace, in the order of `traces`. `least`: smaller leaks are left out, bytes.
pub fn find_all(traces: &[Trace], rules: &Suppressions, least: u64) -> Vec<Leaks> {
    let all: Vec<&Trace> = traces.iter().collect();
    parallel::each(&all, &|_, _| {}, |_, trace, _| find(trace, rules, least))
}

pub fn run(args: Args) -> Outcome {
    let rules = suppressions(args.suppressions.as_deref())?;
    let loaded = args.processes.open()?;
    let mut found = find_all(&loaded.traces, &rules, args.min);
    args.device.check(found.iter().flat_map(|leaks| leaks.peaks.keys().copied()))?;
    for leaks in &mut found {
        leaks.retain(|device| args.device.includes(device));
    }
    caveats::warn_damage(&loaded.traces);
    if args.json {
        let all = report(&found, &rules);
        let all = WithDamage::new(&all, &loaded.traces);
        print(&json(&all)?)?;
        return Ok(DONE);
    }
    let mut out = String::new();
    if let Some(chosen) = &loaded.chosen {
        out.push_str(&format!("{}\n\n", chosen.display()));
    }
    if found.len() > 1 && !args.each {
        out.push_str(&of_run(&found, args.top, args.full));
    }
    let each = args.each || found.len() == 1;
    for (index, leaks) in found.iter().filter(|_| each).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        out.push_str(&details(leaks, args.top, args.full));
    }
    for (line, rule) in rules.unused(&found) {
        out.push_str(&format!("\nline {line} of the suppressions matches no leak: {rule}"));
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    print_text(&out)?;
    Ok(DONE)
}
