//! `vramtrace report --html`: writes a run as one HTML file.

use std::path::{Path, PathBuf};

use vramtrace_reader::analysis::{Moment, ranks, read_all};
use vramtrace_reader::report::html::{COLLECT, PageRun, write};
use vramtrace_reader::report::json::run::worth_reading;
use vramtrace_reader::units::{count, size};

use super::caveats;
use super::output::Output;
use super::select::{ProcessArgs, Selected, names};
use crate::console::message;
use crate::error::{DONE, Outcome};

#[derive(clap::Args)]
pub struct PageArgs {
    /// Write one HTML file for a browser; it loads nothing from a network
    #[arg(long, conflicts_with_all = ["json", "at", "by", "ordinal", "all"])]
    pub html: bool,
    /// Where the page goes; `-` is stdout [default: vramtrace.html]
    #[arg(short, long, value_name = "FILE", requires = "html")]
    output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, requires = "html")]
    force: bool,
}

/// Writes the page. With `hints` it names the file and its size on stderr.
pub fn run(args: &PageArgs, processes: &ProcessArgs, hints: bool) -> Outcome {
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from("vramtrace.html"));
    let output = Output::new(&path, args.force)?;
    let mut run = read(label(&processes.traces), output.open_inputs(processes)?);
    output.write(|out| write(&mut run, out))?;
    caveats::warn_damage(&run.traces);
    if hints {
        let bytes = path.metadata().map_or(0, |meta| meta.len());
        output.say(format_args!("{}; open it in a browser", size(bytes)));
    }
    Ok(DONE)
}

/// Reads the traces of a run to their end.
fn read(label: String, selected: Selected) -> PageRun {
    let all = selected.traces.len();
    let Selected { traces, chosen } = of_many(selected);
    let few = traces.len();
    let processes = read_all(&traces, Moment::End, COLLECT, &|_, _| {});
    let chosen = chosen.as_deref().map(shown);
    let mut label = if label.is_empty() { chosen.unwrap_or_default() } else { label };
    if few < all {
        label.push_str(&format!(" ({few} of {} processes)", count(all as u64)));
    }
    PageRun { label, names: names(&traces), processes, traces }
}

/// A run with more processes has those that are worth their reading alone: the page has every block of each, and a
/// browser could not open all of a thousand.
const MANY: usize = 16;
/// The bytes of their traces up to which all are shown nevertheless.
const SHORT_RUN: u64 = 512 << 20;

/// The processes that are shown. A line on stderr says if these are not all.
fn of_many(mut selected: Selected) -> Selected {
    let all = selected.traces.len();
    if all <= MANY {
        return selected;
    }
    let ranks = ranks::read_within(&selected.traces, SHORT_RUN, &|_, _| {});
    let kept = worth_reading(&selected.traces, &ranks, SHORT_RUN);
    let traces = selected.traces.into_iter().enumerate();
    let kept_traces = traces.filter(|(index, _)| kept.binary_search(index).is_ok());
    selected.traces = kept_traces.map(|(_, trace)| trace).collect();
    if kept.len() < all {
        message(format_args!(
            "the page shows {} of {} processes: those that failed, and the one with the highest peak; --rank N shows \
             another one",
            kept.len(),
            count(all as u64),
        ));
    }
    selected
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
