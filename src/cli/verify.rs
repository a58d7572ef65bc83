//! `vramtrace verify`: checks that the events, sums, addresses and checkpoints of a trace are consistent.

use vramtrace_reader::analysis::verify::{Verification, verify};
use vramtrace_reader::report::json::{VERIFY, VerifyReport};
use vramtrace_reader::units::{clean, several};

use super::reading::show;
use super::select::{ProcessArgs, names};
use crate::error::{DONE, FOUND, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Check that a trace agrees with itself: each free has its allocation, addresses do \
        not overlap, PyTorch's blocks and holes fill their segments, sums equal what is live and \
        never fall below zero, the peak is their maximum, the recorder's totals and checkpoints \
        equal the events, and the file does not end inside a window.\n\n\
        Exit status 0: all of this holds, one line a trace. 1: each violation on a line, with \
        time, address, what is expected and what was found; a file that was cut is one. 2: bad \
        input. What a damaged or bounded trace leaves unchecked is listed, and changes no exit \
        status.",
    after_help = "Examples:\n  \
        vramtrace verify                       the newest run here\n  \
        vramtrace verify train.vtrace --json | jq '.traces[0].violations'"
)]
pub struct Args {
    #[command(flatten)]
    processes: ProcessArgs,
    /// How many violations to list of each trace
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Print JSON (schema vramtrace.verify/2)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let selected = args.processes.open()?.traces;
    let traces: Vec<Verification> = selected.iter().map(verify).collect();
    let report = VerifyReport { holds: traces.iter().all(|found| found.holds), traces };
    show(
        [],
        args.json,
        VERIFY,
        || &report,
        || {
            let named = names(&selected).into_iter().zip(&report.traces);
            named.map(|(name, found)| text(&clean(&name), found, args.top)).collect()
        },
    )?;
    Ok(if report.holds { DONE } else { FOUND })
}

fn text(name: &str, found: &Verification, top: usize) -> String {
    let mut lines = vec![match found.violated {
        0 => format!(
            "{name}: holds: {}, all sums and addresses checked {}, {} and {} of the recorder \
             compared",
            several(found.events, "event"),
            several(found.audits, "time"),
            several(found.totals, "total"),
            several(found.checkpoints, "checkpoint")
        ),
        violated => format!("{name}: {}", several(violated, "violation")),
    }];
    let shown = found.violations.iter().take(top);
    lines.extend(shown.map(|violation| format!("    {violation}")));
    let more = found.violated.saturating_sub(top as u64);
    if more > 0 {
        lines.push(format!("    and {more} more; --top {} lists them", found.violated));
    }
    lines.extend(found.unchecked.iter().map(|line| format!("    not checked: {line}")));
    lines.iter().map(|line| clean(line) + "\n").collect()
}
