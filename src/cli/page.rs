//! `vramtrace report --html`: writes a run as one HTML file.

use std::path::{Path, PathBuf};

use vramtrace_reader::analysis::{Moment, read_all};
use vramtrace_reader::report::html::{COLLECT, PageRun, Redaction, write};
use vramtrace_reader::units::{count, size};

use super::output::Output;
use super::select::{ProcessArgs, Selected, paths};
use super::{caveats, page_choice};
use crate::console::message;
use crate::error::{DONE, Outcome};

#[derive(clap::Args)]
pub struct PageArgs {
    /// Write one HTML file for a browser; it loads nothing from a network
    #[arg(long, conflicts_with_all = ["json", "at", "by", "fail_on", "ordinal", "all"])]
    pub html: bool,
    /// Where the page goes; `-` is stdout [default: vramtrace.html]
    #[arg(short, long, value_name = "FILE", requires = "html")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "html")]
    force: bool,
    /// Compare with another run, the one before: a trace, a run's directory, or a PyTorch snapshot;
    /// without --html the text ends with what changed, as `vramtrace diff` prints it
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["json", "by", "ordinal"])]
    pub against: Vec<PathBuf>,
    /// Without directories, command lines and host names
    #[arg(long, requires = "html")]
    redact: bool,
}

/// Writes the page. With `hints` it names the file and its size on stderr.
pub fn run(args: &PageArgs, processes: &ProcessArgs, hints: bool) -> Outcome {
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from("vramtrace.html"));
    let output = Output::new(&path, args.force)?;
    let mut runs = vec![read(label(&processes.traces), processes.open()?)];
    if !args.against.is_empty() {
        let other = ProcessArgs::of(args.against.clone());
        runs.push(read(label(&args.against), other.open()?));
    }
    for run in &runs {
        output.refuse_inputs(paths(&run.traces))?;
    }
    let processes = runs.iter().flat_map(|run| &run.processes);
    let hosts = processes.map(|process| process.header.host.clone()).collect();
    let redaction = args.redact.then_some(Redaction { hosts });
    output.write(|out| write(&mut runs, redaction.as_ref(), out))?;
    for run in &runs {
        caveats::warn_damage(&run.traces);
    }
    if hints && !output.is_stdout() {
        let bytes = path.metadata().map_or(0, |meta| meta.len());
        message(format_args!("{}: {}; open it in a browser", output.shown(), size(bytes)));
    }
    Ok(DONE)
}

/// Reads the traces of a run to their end.
fn read(label: String, selected: Selected) -> PageRun {
    let all = selected.traces.len();
    let Selected { traces, names, chosen } = page_choice::of_large(selected);
    let few = traces.len();
    let processes = read_all(&traces, Moment::End, COLLECT, &|_, _| {});
    let chosen = chosen.as_deref().map(shown);
    let mut label = if label.is_empty() { chosen.unwrap_or_default() } else { label };
    if few < all {
        label.push_str(&format!(" ({few} of {} processes)", count(all as u64)));
    }
    PageRun { label, names, processes, traces }
}

/// The name of a run in output.
pub fn label(paths: &[PathBuf]) -> String {
    match paths {
        [] => String::new(),
        [one] => shown(one),
        [first, rest @ ..] => format!("{} and {} more", shown(first), rest.len()),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_by_what_was_given() {
        assert_eq!(label(&[]), "");
        assert_eq!(label(&["a".into()]), "a");
        assert_eq!(label(&["a".into(), "b".into(), "c".into()]), "a and 2 more");
    }
}
