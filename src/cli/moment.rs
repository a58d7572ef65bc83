//! Moments as people write them, `--at peak`, `--at peak-allocated`, `--at end`, `--at oom`, `--at step:23`, `--at 12.5`, and
//! the level at which memory is shown, `--level driver|tensor`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use vramtrace_format::Kind;
use vramtrace_reader::analysis::frag::ROUNDED_NS;
use vramtrace_reader::analysis::{Level, Moment, Process, StepMoment};
use vramtrace_reader::trace::Trace;
use vramtrace_reader::units::seconds;

use crate::error::Failure;

/// The options of commands that show memory at one moment.
#[derive(clap::Args)]
pub struct MomentArgs {
    /// Which moment: `peak` (of each device), `peak-allocated` (of PyTorch's blocks), `end`, `oom` (the
    /// last request that failed), `step:23` (the peak of a training step), `step:23:end`, or seconds since the start
    #[arg(long, value_name = "MOMENT", default_value = "peak", value_parser = parse)]
    pub at: Moment,
    #[command(flatten)]
    pub level: LevelArgs,
}

#[derive(clap::Args)]
pub struct LevelArgs {
    /// Driver memory, or PyTorch's blocks in place of it [default: tensor, where recorded]
    #[arg(long = "level", value_name = "LEVEL", value_parser = level_parser())]
    pub given: Option<Level>,
}

fn level_parser() -> impl TypedValueParser<Value = Level> {
    let driver = PossibleValue::new("driver").help("Allocations from the driver");
    let tensor = PossibleValue::new("tensor");
    let tensor = tensor.help("Blocks of PyTorch's cache in place of its segments");
    PossibleValuesParser::new([driver, tensor]).map(|name| match name.as_str() {
        "driver" => Level::Driver,
        _ => Level::Tensor,
    })
}

const NOT_A_MOMENT: &str = "give `peak`, `peak-allocated`, `end`, `oom`, `step:23` (its peak), `step:23:end`, or seconds since the start, e.g. 12.5";

pub fn parse(text: &str) -> Result<Moment, &'static str> {
    match text {
        "peak" => return Ok(Moment::Peak),
        "end" => return Ok(Moment::End),
        "oom" => return Ok(Moment::OutOfMemory),
        "peak-allocated" => return Ok(Moment::AllocatedPeak),
        _ => {}
    }
    if let Some(step) = text.strip_prefix("step:") {
        let whole = step.strip_suffix(":end");
        let (number, after) = (whole.unwrap_or(step), whole.is_some());
        let number = number.parse().ok().filter(|number| *number > 0).ok_or(NOT_A_MOMENT)?;
        return Ok(Moment::Step(StepMoment { number, after }));
    }
    match text.trim_end_matches('s').trim_end().parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => {
            Ok(Moment::At((seconds * 1e9) as u64))
        }
        _ => Err(NOT_A_MOMENT),
    }
}

/// Fails if a moment in seconds is behind the end of all processes. `option`: the one that gave it.
pub fn require_in(processes: &[Process], moment: Moment, option: &str) -> Result<(), Failure> {
    let Moment::At(at_ns) = moment else { return Ok(()) };
    let last_ns = processes.iter().map(|process| process.ending.last_ns).max().unwrap_or(0);
    if at_ns <= last_ns.saturating_add(ROUNDED_NS) {
        return Ok(());
    }
    let what = match processes {
        [one] => one.trace.display().to_string(),
        all => format!("the last of these {} traces", all.len()),
    };
    Err(Failure::new(behind_end(option, at_ns, &what, last_ns)))
}

pub fn behind_end(option: &str, at_ns: u64, what: &str, last_ns: u64) -> String {
    format!("{option} {}: {what} ends at {}", seconds(at_ns), seconds(last_ns))
}

/// Fails if the options need blocks of PyTorch's cache and no trace has any.
pub fn require_blocks(
    traces: &[Trace],
    level: Option<Level>,
    at: Option<Moment>,
) -> Result<(), Failure> {
    let option = match (level, at) {
        (Some(Level::Tensor), _) => "--level tensor",
        (_, Some(Moment::AllocatedPeak)) => "--at peak-allocated",
        _ => return Ok(()),
    };
    let has_blocks = |trace: &Trace| {
        let (definitions, _) = trace.definitions();
        definitions.sites().any(|site| site.kind == Some(Kind::Block))
    };
    let Some(first) = traces.first().filter(|_| !traces.iter().any(has_blocks)) else {
        return Ok(());
    };
    Err(Failure::new(format!(
        "{option}: {} has no blocks of PyTorch's cache: recorded without PyTorch, or with \
         VRAMTRACE_TENSORS=off",
        first.path().display()
    )))
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
        for bad in ",-1,step:,step:0,step:1:,step:-1,step:1:peak,inf,nan,peaks,s".split(',') {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
