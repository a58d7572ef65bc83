//! Moments as people write them: `--at peak`, `--at peak-allocated`, `--at end`, `--at 12.5`.

use vramtrace_reader::analysis::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give `peak`, `peak-allocated`, `end`, or seconds since the start, e.g. 12.5")]
pub struct NotAMoment;

pub fn parse(text: &str) -> Result<Moment, NotAMoment> {
    match text {
        "peak" => return Ok(Moment::Peak),
        "end" => return Ok(Moment::End),
        "peak-allocated" => return Ok(Moment::AllocatedPeak),
        _ => {}
    }
    match text.trim_end_matches('s').trim_end().parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => {
            Ok(Moment::At((seconds * 1e9) as u64))
        }
        _ => Err(NotAMoment),
    }
}

/// `at the peak`.
pub fn words(moment: Moment) -> &'static str {
    match moment {
        Moment::Peak => "at the peak",
        Moment::AllocatedPeak => "at the peak of PyTorch's blocks",
        Moment::End => "at the end",
        Moment::At(_) => "at that time",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        assert_eq!(parse("peak"), Ok(Moment::Peak));
        assert_eq!(parse("end"), Ok(Moment::End));
        assert_eq!(parse("peak-allocated"), Ok(Moment::AllocatedPeak));
        assert_eq!(parse("12.5"), Ok(Moment::At(12_500_000_000)));
        assert_eq!(parse("3 s"), Ok(Moment::At(3_000_000_000)));
        for bad in ["", "-1", "inf", "nan", "peaks", "s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
