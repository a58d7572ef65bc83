//! `vramtrace` alone: the verdict on the newest run here, or the first commands to type. `vramtrace FILE`: the verdict on
//! this trace, run or recording of another tool.

use std::path::PathBuf;

use vramtrace_format::Header;
use vramtrace_reader::analysis::{Moment, read_all};
use vramtrace_reader::report::shell;
use vramtrace_reader::trace::{Trace, TraceError, load};

use super::select::ProcessArgs;
use super::{caveats, verdict};
use crate::console::{message, print};
use crate::error::{DONE, Outcome};

const FIRST: &str = "\
There is no recorded run in this directory yet. Begin with one of these:
  vramtrace demo                   a recorded out-of-memory, explained; needs no GPU
  vramtrace run python train.py    records your program, and ends with a verdict
  vramtrace doctor                 what prevents recording on this machine
All commands: vramtrace --help
";

pub fn run() -> Outcome {
    let loaded = match load(&[]) {
        Err(TraceError::NoneHere(_)) => {
            print(FIRST)?;
            return Ok(DONE);
        }
        loaded => loaded?,
    };
    loaded.warnings.iter().for_each(message);
    caveats::warn_versions(&loaded.traces);
    let given = loaded.chosen.iter().map(|chosen| format!(" {}", shell::path(chosen))).collect();
    show(loaded.traces, given)
}

/// The verdict on the recordings that these paths name.
pub fn of(paths: Vec<PathBuf>) -> Outcome {
    let args = ProcessArgs::of(paths);
    show(args.open()?.traces, args.given())
}

/// `given`: the arguments that name the run in a command, each after a space.
fn show(mut traces: Vec<Trace>, given: String) -> Outcome {
    let mut processes = read_all(&traces, Moment::End, verdict::collect(&traces), &|_, _| {});
    caveats::retain_known(&mut processes, &mut traces, |_| false)?;
    caveats::warn_damage(&traces);
    caveats::warn_tails_in_memory(&traces);
    let headers: Vec<Header> = traces.iter().map(|trace| trace.header().clone()).collect();
    let mut out = format!("{}\n", given.trim_start());
    for line in verdict::lines(&mut processes, &traces, &headers, &given) {
        out.push_str(&line);
        out.push('\n');
    }
    print(&out)?;
    Ok(DONE)
}
