//! Moments as people write them: `--at peak`, `--at peak-allocated`, `--at end`, `--at oom`, `--at step:23`, `--at 12.5`.

use vramtrace_reader::analysis::{Moment, Process, StepMoment};
use vramtrace_reader::units::seconds;

use crate::error::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "give `peak`, `peak-allocated`, `end`, `oom`, `step:23` (its peak), `step:23:end`, or seconds since the start, e.g. 12.5"
)]
pub struct NotAMoment;

/// The help of an option that takes a moment.
pub const HELP: &str = "Which moment: `peak` (of each device), `peak-allocated` (of PyTorch's blocks), `end`, `oom` (the \
    last request that failed), `step:23` (the peak of a training step), `step:23:end`, or seconds since the start";

pub fn parse(text: &str) -> Result<Moment, NotAMoment> {
    match text {
        "peak" => return Ok(Moment::Peak),
        "end" => return Ok(Moment::End),
        "oom" => return Ok(Moment::OutOfMemory),
        "peak-allocated" => return Ok(Moment::AllocatedPeak),
        _ => {}
    }
    if let Some(step) = text.strip_prefix("step:") {
        let (number, after) = match step.strip_suffix(":end") {
            Some(number) => (number, true),
            None => (step, false),
        };
        let number = number.parse().ok().filter(|number| *number > 0).ok_or(NotAMoment)?;
        return Ok(Moment::Step(StepMoment { number, after }));
    }
    match text.trim_end_matches('s').trim_end().parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => {
            Ok(Moment::At((seconds * 1e9) as u64))
        }
        _ => Err(NotAMoment),
    }
}

/// Fails if a moment in seconds is behind the end of all processes. `option`: the one that gave it.
pub fn require_in(processes: &[Process], moment: Moment, option: &str) -> Result<(), Failure> {
    let ends: Vec<(String, u64)> = processes
        .iter()
        .map(|process| (process.trace.display().to_string(), process.ending.last_ns))
        .collect();
    match moment {
        Moment::At(at_ns) => require_before_end(&ends, at_ns, option),
        _ => Ok(()),
    }
}

/// As [`require_in`]. `ends`: names of traces with the times of their last events, ns.
pub fn require_before_end(ends: &[(String, u64)], at_ns: u64, option: &str) -> Result<(), Failure> {
    // Times are printed in ms.
    const ROUNDED_NS: u64 = 1_000_000;
    let last_ns = ends.iter().map(|(_, last_ns)| *last_ns).max().unwrap_or(0);
    if at_ns <= last_ns.saturating_add(ROUNDED_NS) {
        return Ok(());
    }
    let (at, last) = (seconds(at_ns), seconds(last_ns));
    Err(Failure::new(match ends {
        [(name, _)] => format!("{option} {at}: {name} ends at {last}"),
        _ => format!("{option} {at}: the last of these {} traces ends at {last}", ends.len()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        assert_eq!(parse("peak"), Ok(Moment::Peak));
        assert_eq!(parse("end"), Ok(Moment::End));
        assert_eq!(parse("oom"), Ok(Moment::OutOfMemory));
        assert_eq!(parse("peak-allocated"), Ok(Moment::AllocatedPeak));
        assert_eq!(parse("12.5"), Ok(Moment::At(12_500_000_000)));
        assert_eq!(parse("3 s"), Ok(Moment::At(3_000_000_000)));
        let step = |number, after| Ok(Moment::Step(StepMoment { number, after }));
        assert_eq!(parse("step:23"), step(23, false));
        assert_eq!(parse("step:1:end"), step(1, true));
        for bad in [
            "",
            "-1",
            "step:",
            "step:0",
            "step:1:",
            "step:-1",
            "step:1:peak",
            "inf",
            "nan",
            "peaks",
            "s",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
