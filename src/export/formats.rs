//! The formats: each with its name, the end of its files' names, and the options that it takes.

use super::TimelineFormat;
use super::stacks::StackFormat;

/// One format of `vramtrace export`.
#[derive(Clone, Copy, Debug)]
pub struct ExportFormat {
    pub name: &'static str,
    /// As files in this format are called.
    pub suffix: &'static str,
    /// Where it is written when nothing else is asked for.
    pub default_file: Option<&'static str>,
    pub options: &'static [ExportOption],
    /// Why it takes no others.
    pub nature: &'static str,
    pub writer: Writer,
}

/// What writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// What happened over time, of several processes.
    Timeline(TimelineFormat),
    /// Who held the memory at one moment.
    Stacks(StackFormat),
    /// One process as PyTorch itself would have recorded it.
    TorchSnapshot,
}

/// Options that some formats take and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportOption {
    From,
    To,
    MinSize,
    At,
    Level,
    Device,
}

impl ExportOption {
    /// As it is written on the command line.
    pub fn flag(self) -> &'static str {
        match self {
            ExportOption::From => "--from",
            ExportOption::To => "--to",
            ExportOption::MinSize => "--min-size",
            ExportOption::At => "--at",
            ExportOption::Level => "--level",
            ExportOption::Device => "--device",
        }
    }
}

const OF_TIMELINES: &[ExportOption] =
    &[ExportOption::From, ExportOption::To, ExportOption::MinSize, ExportOption::Level];
const OF_STACKS: &[ExportOption] = &[ExportOption::At, ExportOption::Level, ExportOption::Device];

const fn timeline(
    name: &'static str,
    suffix: &'static str,
    format: TimelineFormat,
) -> ExportFormat {
    ExportFormat {
        name,
        suffix,
        default_file: None,
        options: OF_TIMELINES,
        nature: "a timeline of all devices",
        writer: Writer::Timeline(format),
    }
}

const fn stacks(name: &'static str, suffix: &'static str, format: StackFormat) -> ExportFormat {
    ExportFormat {
        name,
        suffix,
        default_file: None,
        options: OF_STACKS,
        nature: "the stacks of one moment",
        writer: Writer::Stacks(format),
    }
}

pub const FORMATS: [ExportFormat; 7] = [
    timeline("csv", "csv", TimelineFormat::Csv),
    timeline("chrome", "json", TimelineFormat::Chrome),
    timeline("perfetto", "perfetto-trace", TimelineFormat::Perfetto),
    stacks("folded", "folded", StackFormat::Folded),
    stacks("speedscope", "speedscope.json", StackFormat::Speedscope),
    stacks("pprof", "pb.gz", StackFormat::Pprof),
    ExportFormat {
        name: "torch-snapshot",
        suffix: "pickle",
        default_file: Some("snapshot.pickle"),
        options: &[],
        nature: "the whole run of one process",
        writer: Writer::TorchSnapshot,
    },
];

impl ExportFormat {
    pub fn named(name: &str) -> Option<ExportFormat> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    /// What is wrong with the first of these options that it does not take.
    pub fn refuses(&self, given: impl IntoIterator<Item = ExportOption>) -> Option<String> {
        let refused = given.into_iter().find(|option| !self.options.contains(option))?;
        let takers = FORMATS.iter().filter(|format| format.options.contains(&refused));
        let takers: Vec<&str> = takers.map(|format| format.name).collect();
        let own: Vec<&str> = self.options.iter().map(|option| option.flag()).collect();
        let instead = match own.is_empty() {
            true => String::new(),
            false => format!("; for {} give {}", self.name, own.join(", ")),
        };
        Some(format!(
            "{} is not for {}, which is {}: it is for the formats {}{instead}",
            refused.flag(),
            self.name,
            self.nature,
            takers.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_option_names_the_formats_that_take_it() {
        let csv = ExportFormat::named("csv").unwrap();
        assert_eq!(csv.refuses([ExportOption::From, ExportOption::Level]), None);
        let why = csv.refuses([ExportOption::From, ExportOption::At]).unwrap();
        assert!(why.starts_with("--at is not for csv"), "{why}");
        assert!(why.contains("for the formats folded, speedscope, pprof"), "{why}");
        assert!(why.ends_with("for csv give --from, --to, --min-size, --level"), "{why}");
    }

    #[test]
    fn every_option_is_taken_by_a_format() {
        use ExportOption::{At, Device, From, Level, MinSize, To};
        for option in [From, To, MinSize, At, Level, Device] {
            assert!(FORMATS.iter().any(|format| format.options.contains(&option)), "{option:?}");
        }
    }
}
