//! The inputs of a command: trace files, directories of runs and recordings of other tools; --rank, --pid and
//! --device select from them.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use vramtrace_format::header::MAGIC;
use vramtrace_format::{DeviceId, Header};
use vramtrace_reader::files::{self, Directory};
use vramtrace_reader::import::{self, history::History};
use vramtrace_reader::report::shell;
use vramtrace_reader::trace::{self, LoadedTraces, Trace, is_compressed_trace, load, process_name};

use super::caveats;
use crate::console::message;
use crate::error::Failure;

#[derive(clap::Args)]
pub struct ProcessArgs {
    /// Trace files, a run's directory, or PyTorch snapshots; default: the newest run in the
    /// working directory
    pub traces: Vec<PathBuf>,
    /// Only the process of this rank
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Only the process with this pid
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
}

#[derive(clap::Args)]
pub struct DeviceArgs {
    /// Only this device, by its ordinal as the program saw it
    #[arg(long = "device", value_name = "N")]
    pub ordinal: Option<u8>,
}

/// The opened traces, in order of rank, then of start time.
pub struct Selected {
    pub traces: Vec<Trace>,
    /// The newest run, if the command line names no trace.
    pub chosen: Option<PathBuf>,
}

/// Opens recordings, all of their processes.
pub fn open(traces: &[PathBuf]) -> Result<Selected, Failure> {
    ProcessArgs::of(traces.to_vec()).open()
}

impl ProcessArgs {
    /// All processes of these recordings.
    pub fn of(traces: Vec<PathBuf>) -> ProcessArgs {
        ProcessArgs { traces, rank: None, pid: None }
    }

    /// Opens the traces and applies --rank and --pid. Recordings of other tools are converted to traces.
    pub fn open(&self) -> Result<Selected, Failure> {
        let named = self.traces.iter().flat_map(|path| match recordings_in(path) {
            recordings if recordings.is_empty() => vec![path.clone()],
            recordings => recordings,
        });
        let (foreign, own): (Vec<PathBuf>, Vec<PathBuf>) =
            named.partition(|path| is_other_format(path));
        let mut selected = Selected { traces: Vec::new(), chosen: None };
        if foreign.is_empty() || !own.is_empty() {
            let LoadedTraces { traces, warnings, chosen, .. } = load(&own)?;
            warnings.iter().for_each(message);
            selected = Selected { traces, chosen };
        }
        let several = foreign.len() > 1;
        let mut skipped = Vec::new();
        for path in foreign {
            match imported(&path, several) {
                Ok(traces) => selected.traces.extend(traces),
                // A directory has other files too.
                Err(failure) if !self.traces.contains(&path) => skipped.push(failure),
                Err(failure) => return Err(failure),
            }
        }
        if selected.traces.is_empty() && !skipped.is_empty() {
            return Err(skipped.remove(0));
        }
        skipped.iter().for_each(|failure| message(format!("{}; it is left out", failure.message)));
        caveats::warn_versions(&selected.traces);
        if !selected.traces.iter().any(|trace| self.is_selected(trace)) {
            return Err(self.no_such_process(&selected.traces));
        }
        selected.traces.retain(|trace| self.is_selected(trace));
        Ok(selected)
    }

    /// The inputs as given, with the process that was chosen, each after a space, for a command to paste.
    pub fn given(&self) -> String {
        let traces = self.traces.iter().map(|path| format!(" {}", shell::path(path)));
        let rank = self.rank.map(|rank| format!(" --rank {rank}"));
        let pid = self.pid.map(|pid| format!(" --pid {pid}"));
        traces.chain(rank).chain(pid).collect()
    }

    fn is_selected(&self, trace: &Trace) -> bool {
        let header = trace.header();
        self.rank.is_none_or(|rank| header.rank == Some(rank))
            && self.pid.is_none_or(|pid| header.pid == pid)
    }

    fn no_such_process(&self, traces: &[Trace]) -> Failure {
        let rank = self.rank.map(|rank| format!("--rank {rank}"));
        let pid = self.pid.map(|pid| format!("--pid {pid}"));
        let asked: Vec<String> = rank.into_iter().chain(pid).collect();
        let name = |trace: &Trace| match (trace.header().rank, self.rank.is_some()) {
            (Some(rank), true) => format!("rank {rank}"),
            _ => process_name(&Header { rank: None, ..trace.header().clone() }, trace.path()),
        };
        Failure::new(format!(
            "{}: no such process in these traces; there are {}",
            asked.join(" with "),
            listed(traces.iter().map(name).collect())
        ))
    }
}

impl DeviceArgs {
    pub fn includes(&self, device: DeviceId) -> bool {
        self.ordinal.is_none_or(|ordinal| device.0 == ordinal)
    }

    /// Fails if --device names none of `there`.
    pub fn check(&self, there: impl IntoIterator<Item = DeviceId>) -> Result<(), Failure> {
        let Some(ordinal) = self.ordinal else { return Ok(()) };
        let mut there: Vec<DeviceId> = there.into_iter().collect();
        if there.contains(&DeviceId(ordinal)) {
            return Ok(());
        }
        there.retain(|device| *device != DeviceId::UNKNOWN);
        there.sort_unstable();
        let names: Vec<String> = there.iter().map(|device| device.0.to_string()).collect();
        Err(Failure::new(match names.is_empty() {
            true => format!("--device {ordinal}: these traces show no device"),
            false => format!(
                "--device {ordinal}: no such device in these traces; there are {}",
                listed(names)
            ),
        }))
    }
}

/// The name of each trace in output: its path, or rank and pid if there are several.
pub fn names(traces: &[Trace]) -> Vec<String> {
    match traces {
        [one] => vec![one.path().display().to_string()],
        all => all.iter().map(|trace| process_name(trace.header(), trace.path())).collect(),
    }
}

/// How many names a message lists.
const LISTED: usize = 16;

fn listed(mut names: Vec<String>) -> String {
    names.dedup();
    if names.len() > LISTED {
        names.truncate(LISTED);
        names.push("...".to_string());
    }
    names.join(", ")
}

/// The files of traces.
pub fn paths(traces: &[Trace]) -> impl Iterator<Item = &Path> {
    traces.iter().map(Trace::path)
}

/// Whether a file is no trace, by its name and its first bytes. `false` for a file that cannot be read: opening it as a
/// trace then reports why.
fn is_other_format(path: &Path) -> bool {
    let is_other = |first: Vec<u8>| {
        is_recording(&first) || !first.starts_with(&MAGIC) && !trace::is_trace(path)
    };
    first_bytes(path).is_some_and(is_other) && !is_compressed_trace(path)
}

/// Whether a file begins as a pickle, gzip, CSV, RMM log, or as the JSON or archive of a snapshot or timeline.
fn is_recording(first: &[u8]) -> bool {
    let begins = [&b"\x80"[..], b"\x1f\x8b", b"action,", b"Thread,"];
    let words = ["\"segments\"", "\"device_traces\"", "\"traceEvents\"", "data.pkl"];
    let text = String::from_utf8_lossy(first);
    begins.iter().any(|begin| first.starts_with(begin))
        || first.starts_with(b"PK") && text.contains(words[3])
        || first.trim_ascii_start().starts_with(b"{") && words.iter().any(|it| text.contains(it))
}

fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut first = Vec::new();
    files::open(path).ok()?.take(4096).read_to_end(&mut first).ok()?;
    Some(first)
}

/// The recordings of other tools in a directory without traces, a rank each; of the tables of Nsight Systems that of
/// memory.
fn recordings_in(directory: &Path) -> Vec<PathBuf> {
    let names = Directory::at(directory).and_then(|directory| Ok(directory.names()?.collect()));
    let names: Vec<OsString> = names.unwrap_or_default();
    let mut all: Vec<PathBuf> = names.into_iter().map(|name| directory.join(name)).collect();
    if all.iter().any(|path| trace::is_trace(path) || is_compressed_trace(path)) {
        return Vec::new();
    }
    all.sort();
    let named = |name: &str| all.iter().find(|path| path.ends_with(name)).cloned();
    // Without a table of memory, the message on the one that is always there says how to get it.
    if let Some(table) = named(import::NSYS_TABLE).or_else(|| named("META_DATA_EXPORT.parquet")) {
        return vec![table];
    }
    all.retain(|path| first_bytes(path).is_some_and(|first| is_recording(&first)));
    all
}

/// Converts the file to a temporary trace of each of its processes. A trace is mapped, so its file can be removed at
/// once. `several`: messages name the file.
fn imported(path: &Path, several: bool) -> Result<Vec<Trace>, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("{}: cannot be converted to a trace: {error}", path.display()))
    };
    let of_process = |history: History| {
        let file = files::temporary_file().map_err(|error| failed(&error))?;
        let handle = file.as_file().try_clone().map_err(|error| failed(&error))?;
        import::convert(&history, path, handle).map_err(|error| failed(&error))?;
        let named = |text: &String| format!("{}: {text}", path.display());
        let shown = |text| if several { message(named(text)) } else { message(text) };
        history.caveats.iter().for_each(shown);
        let trace = trace::open(file.path()).map_err(|error| failed(&error))?;
        Ok(trace.shown_as(path))
    };
    import::read(path)?.into_iter().map(of_process).collect()
}

/// Fails for recordings of other tools, for commands that need trace files. `why` is part of the message.
pub fn traces_only(paths: &[PathBuf], why: &str) -> Result<(), Failure> {
    match paths.iter().find(|path| is_other_format(path)) {
        None => Ok(()),
        Some(path) => Err(Failure::new(format!(
            "{}: not a trace: {why}; convert it with `vramtrace import {0} -o TRACE`",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(traces: Vec<PathBuf>, rank: Option<u32>) -> ProcessArgs {
        ProcessArgs { traces, rank, pid: None }
    }

    #[test]
    fn what_others_recorded_is_opened_under_its_own_name() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("requests.csv");
        std::fs::write(&path, "action,addr,size,stream\nalloc,1048576,512,0\n").unwrap();
        let selected = of(vec![path.clone()], None).open().unwrap();
        assert_eq!(selected.traces[0].path(), path);
        assert_eq!(names(&selected.traces), [path.display().to_string()]);
        let refused = of(vec![path.clone()], Some(7)).open().err().unwrap();
        assert!(refused.message.starts_with("--rank 7: no such process"), "{}", refused.message);
        let refused = traces_only(&[path], "it is").err().unwrap();
        assert!(refused.code == 2 && refused.message.contains("vramtrace import"));
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_with_those_that_are() {
        let all = DeviceArgs { ordinal: None };
        let second = DeviceArgs { ordinal: Some(1) };
        assert!(all.check([]).is_ok() && all.includes(DeviceId::UNKNOWN));
        assert!(second.check([DeviceId(0), DeviceId(1)]).is_ok());
        assert!(second.includes(DeviceId(1)) && !second.includes(DeviceId(0)));
        let refused = second.check([DeviceId(2), DeviceId(0), DeviceId(0)]).err().unwrap();
        assert!(refused.message.ends_with("there are 0, 2"), "{}", refused.message);
    }
}
