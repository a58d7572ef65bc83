//! Which recordings a command reads: trace files, directories of runs, and what others recorded;
//! and of them which processes and which device.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use vramtrace_format::{DeviceId, Header};
use vramtrace_reader::import;
use vramtrace_reader::trace::{LoadedTraces, Trace, load, process_name};

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
    ordinal: Option<u8>,
}

/// Opened, in order of rank, then start.
pub struct Selected {
    pub traces: Vec<Trace>,
    /// What people call each trace.
    pub names: Vec<String>,
    /// What was chosen where nothing was named.
    pub chosen: Option<PathBuf>,
}

/// A trace, and what people call it.
pub struct Input {
    pub name: String,
    pub trace: Trace,
}

/// Opens recordings, all of their processes.
pub fn open(traces: &[PathBuf]) -> Result<Selected, Failure> {
    ProcessArgs { traces: traces.to_vec(), rank: None, pid: None }.open()
}

impl ProcessArgs {
    /// All processes of these.
    pub fn of(traces: Vec<PathBuf>) -> ProcessArgs {
        ProcessArgs { traces, rank: None, pid: None }
    }

    /// Opens what is meant. What others recorded is made into traces on the way.
    pub fn open(&self) -> Result<Selected, Failure> {
        let (foreign, own): (Vec<PathBuf>, Vec<PathBuf>) =
            self.traces.iter().cloned().partition(|path| is_foreign(path));
        let mut selected = Selected { traces: Vec::new(), names: Vec::new(), chosen: None };
        if foreign.is_empty() || !own.is_empty() {
            selected.add(load(&own)?);
        }
        for path in foreign {
            selected.names.push(path.display().to_string());
            selected.traces.push(imported(&path)?);
        }
        caveats::tell_versions(&selected.traces);
        self.keep_wanted(&mut selected)?;
        Ok(selected)
    }

    /// The recordings as they were given, to repeat in another command.
    pub fn given(&self) -> String {
        self.traces.iter().map(|path| format!(" {}", path.display())).collect()
    }

    fn is_wanted(&self, trace: &Trace) -> bool {
        let header = trace.header();
        self.rank.is_none_or(|rank| header.rank == Some(rank))
            && self.pid.is_none_or(|pid| header.pid == pid)
    }

    fn keep_wanted(&self, selected: &mut Selected) -> Result<(), Failure> {
        let wanted: Vec<bool> = selected.traces.iter().map(|trace| self.is_wanted(trace)).collect();
        if !wanted.contains(&true) {
            return Err(self.no_such_process(&selected.traces));
        }
        let mut keep = wanted.iter();
        selected.traces.retain(|_| *keep.next().unwrap_or(&true));
        let mut keep = wanted.iter();
        selected.names.retain(|_| *keep.next().unwrap_or(&true));
        Ok(())
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
    pub fn is_given(&self) -> bool {
        self.ordinal.is_some()
    }

    pub fn includes(&self, device: DeviceId) -> bool {
        self.ordinal.is_none_or(|ordinal| device.0 == ordinal)
    }

    /// Fails where one is asked for that none of these is.
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

impl Selected {
    fn add(&mut self, loaded: LoadedTraces) {
        loaded.warnings.iter().for_each(message);
        let alone = loaded.traces.len() == 1;
        let name = |trace: &Trace| match alone {
            true => trace.path().display().to_string(),
            false => process_name(trace.header(), trace.path()),
        };
        self.names.extend(loaded.traces.iter().map(name));
        self.traces.extend(loaded.traces);
        self.chosen = loaded.chosen;
    }

    pub fn into_inputs(self) -> impl Iterator<Item = Input> {
        self.names.into_iter().zip(self.traces).map(|(name, trace)| Input { name, trace })
    }
}

/// Names in a message.
const LISTED: usize = 16;

fn listed(mut names: Vec<String>) -> String {
    names.dedup();
    if names.len() > LISTED {
        names.truncate(LISTED);
        names.push("...".to_string());
    }
    names.join(", ")
}

/// The traces of inputs.
pub fn traces(inputs: &[Input]) -> impl Iterator<Item = &Trace> {
    inputs.iter().map(|input| &input.trace)
}

/// The files of traces.
pub fn paths(traces: &[Trace]) -> impl Iterator<Item = &Path> {
    traces.iter().map(Trace::path)
}

/// A file that is no trace of ours, by its first bytes. One that cannot be read is left to the
/// reader of traces, who says why.
fn is_foreign(path: &Path) -> bool {
    // Opening a FIFO would wait for a writer.
    if !path.is_file() {
        return false;
    }
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut first));
    let begins = [&b"\x80"[..], b"\x1f\x8b", b"action,", b"Thread,"];
    read.is_ok() && begins.iter().any(|begin| first.starts_with(begin))
}

/// The file's history as a trace. It is mapped, so its file need not stay.
fn imported(path: &Path) -> Result<Trace, Failure> {
    let history = import::read(path)?;
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(format!("{}: cannot be made into a trace: {error}", path.display()))
    };
    let file = NamedTempFile::new().map_err(|error| failed(&error))?;
    let handle = file.reopen().map_err(|error| failed(&error))?;
    import::convert(&history, path, handle).map_err(|error| failed(&error))?;
    history.caveats.iter().for_each(message);
    let trace = Trace::open(file.path()).map_err(|error| failed(&error))?;
    Ok(trace.shown_as(path))
}

/// Fails for what others recorded, where a command works on trace files themselves.
pub fn traces_only(paths: &[PathBuf], why: &str) -> Result<(), Failure> {
    match paths.iter().find(|path| is_foreign(path)) {
        None => Ok(()),
        Some(path) => Err(Failure::new(format!(
            "{}: no trace: {why}; make one of it with `vramtrace import {0} -o TRACE`",
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
        assert_eq!(selected.names, [path.display().to_string()]);
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
