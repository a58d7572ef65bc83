//! `vramtrace` alone: the verdict on the newest run here, or the first commands to type.

use vramtrace_reader::analysis::{Moment, read_all};
use vramtrace_reader::trace::{TraceError, load};

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
    let mut loaded = match load(&[]) {
        Err(TraceError::NoneHere(_)) => {
            print(FIRST)?;
            return Ok(DONE);
        }
        loaded => loaded?,
    };
    loaded.warnings.iter().for_each(message);
    caveats::warn_versions(&loaded.traces);
    let mut processes =
        read_all(&loaded.traces, Moment::End, verdict::collect(&loaded.traces), &|_, _| {});
    caveats::retain_known(&mut processes, &mut loaded.traces)?;
    caveats::warn_damage(&loaded.traces);
    caveats::warn_tails_in_memory(&loaded.traces);
    let given = loaded.chosen.map(|chosen| chosen.display().to_string()).unwrap_or_default();
    let mut out = format!("{given}\n");
    for line in verdict::lines(&mut processes, &loaded.traces, &given) {
        out.push_str(&line);
        out.push('\n');
    }
    print(&out)?;
    Ok(DONE)
}
