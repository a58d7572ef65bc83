//! The export formats: names, suffixes of files, and the options that each takes.

use super::TimelineFormat;
use super::stacks::StackFormat;

/// One format of `vramtrace export`.
#[derive(Clone, Copy, Debug)]
pub struct ExportFormat {
    pub name: &'static str,
    /// The suffix of files in this format.
    pub suffix: &'static str,
    /// The output file where none is given. `None`: the command line must name one.
    pub default_file: Option<&'static str>,
    /// The options of the command line that only some formats take, and this one does.
    pub options: &'static [&'static str],
    /// What the format contains, for the message about an option that it does not take.
    pub nature: &'static str,
    pub writer: Writer,
}

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A timeline of several processes.
    Timeline(TimelineFormat),
    /// Bytes by stack at one moment.
    Stacks(StackFormat),
    /// A memory snapshot of PyTorch, of one process.
    TorchSnapshot,
    /// A directory of tables.
    Tables,
}

const OF_TIMELINES: &[&str] = &["--from", "--to", "--min-size", "--level"];
const OF_STACKS: &[&str] = &["--at", "--level", "--device"];

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

/// All formats.
pub const FORMATS: [ExportFormat; 6] = [
    timeline("csv", "csv", TimelineFormat::Csv),
    timeline("perfetto", "perfetto-trace", TimelineFormat::Perfetto),
    stacks("folded", "folded", StackFormat::Folded),
    stacks("pprof", "pb.gz", StackFormat::Pprof),
    ExportFormat {
        name: "torch-snapshot",
        suffix: "pickle",
        default_file: Some("snapshot.pickle"),
        options: &[],
        nature: "the whole run of one process",
        writer: Writer::TorchSnapshot,
    },
    ExportFormat {
        name: "parquet",
        suffix: "parquet",
        default_file: None,
        options: &["--tables", "--run"],
        nature: "a directory of tables with the whole run",
        writer: Writer::Tables,
    },
];

impl ExportFormat {
    /// The format with this name.
    pub fn named(name: &str) -> Option<ExportFormat> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    /// The error message for the first of these options that the format does not take. `None`: it takes
    /// all of them.
    pub fn refuses(&self, given: impl IntoIterator<Item = &'static str>) -> Option<String> {
        let refused = given.into_iter().find(|option| !self.options.contains(option))?;
        let takers = FORMATS.iter().filter(|format| format.options.contains(&refused));
        let takers: Vec<&str> = takers.map(|format| format.name).collect();
        let instead = match self.options {
            [] => String::new(),
            own => format!("; for {} give {}", self.name, own.join(", ")),
        };
        Some(format!(
            "{refused} is not for {}, which is {}: it is for the formats {}{instead}",
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
        assert_eq!(csv.refuses(["--from", "--level"]), None);
        let why = csv.refuses(["--from", "--at"]).unwrap();
        assert!(why.starts_with("--at is not for csv"), "{why}");
        assert!(why.contains("for the formats folded, pprof"), "{why}");
        assert!(why.ends_with("for csv give --from, --to, --min-size, --level"), "{why}");
    }
}
