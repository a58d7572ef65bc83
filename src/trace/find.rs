//! Finds the traces that a command line names: files, directories of runs, or the newest run in the working
//! directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::Trace;
use super::file::OpenError;

/// The extension of a trace's file name.
pub use vramtrace_format::outspec::EXTENSION;

/// Why no trace was found. The message names the path, the problem, and what to give instead.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{}: {source}", .path.display())]
    Open { path: PathBuf, source: OpenError },
    #[error("{}: cannot be read as a directory: {source}", .path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: no trace (*.vtrace) in this directory: give a trace file or the directory of a run, \
         or record one with `vramtrace run CMD`",
        .0.display()
    )]
    NoneInDirectory(PathBuf),
    #[error(
        "{}: none of the traces in this directory can be read; the first: {first}",
        .path.display()
    )]
    NoneReadable { path: PathBuf, first: String },
    #[error(
        "no trace here: {} holds neither *.vtrace nor a directory with such; give a trace file \
         or the directory of a run, or record one with `vramtrace run CMD`",
        .0.display()
    )]
    NoneHere(PathBuf),
}

/// The traces that were found, in order of rank, then start.
#[derive(Debug)]
pub struct LoadedTraces {
    pub traces: Vec<Trace>,
    /// Files of a directory that could not be read.
    pub warnings: Vec<String>,
    /// The run that was chosen where no path was given: its directory, or its first file.
    pub chosen: Option<PathBuf>,
}

/// Opens the trace files and directories of runs in `paths`. Without a path, opens the newest run in the
/// working directory, finished or not.
pub fn load(paths: &[PathBuf]) -> Result<LoadedTraces, TraceError> {
    let mut loaded = LoadedTraces { traces: Vec::new(), warnings: Vec::new(), chosen: None };
    if paths.is_empty() {
        load_newest(Path::new("."), &mut loaded)?;
    }
    for path in paths {
        if path.is_dir() {
            load_directory(path, &mut loaded)?;
        } else {
            loaded.traces.push(open(path)?);
        }
    }
    loaded.traces.sort_by_key(|trace| {
        let header = trace.header();
        (header.rank.unwrap_or(u32::MAX), header.start_unix_ns, header.pid)
    });
    // A file may be named twice: by its path and by its directory.
    let mut seen = std::collections::HashSet::new();
    loaded.traces.retain(|trace| {
        let path = trace.path();
        seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()))
    });
    leave_out_copies(&mut loaded);
    Ok(loaded)
}

/// Of a trace and its packed copy, keeps the copy: the longer file, which contains all of the trace.
fn leave_out_copies(loaded: &mut LoadedTraces) {
    let identity = |trace: &Trace| {
        let header = trace.header();
        (header.uuid, header.pid, header.process_start_ticks, header.start_unix_ns)
    };
    let mut at = 1;
    while at < loaded.traces.len() {
        let this = identity(&loaded.traces[at]);
        let Some(other) = loaded.traces[..at].iter().position(|other| identity(other) == this)
        else {
            at += 1;
            continue;
        };
        if loaded.traces[at].len() > loaded.traces[other].len() {
            loaded.traces.swap(at, other);
        }
        let out = loaded.traces.remove(at);
        let kept = loaded.traces[other].path().display();
        loaded.warnings.push(format!("{} is left out: {kept} is a copy", out.path().display()));
    }
}

fn open(path: &Path) -> Result<Trace, TraceError> {
    Trace::open(path).map_err(|source| TraceError::Open { path: path.to_path_buf(), source })
}

fn load_directory(path: &Path, loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let files = traces_in(path)
        .map_err(|source| TraceError::Directory { path: path.to_path_buf(), source })?;
    if files.is_empty() {
        return Err(TraceError::NoneInDirectory(path.to_path_buf()));
    }
    let before = loaded.traces.len();
    let mut broken = Vec::new();
    for file in files {
        match open(&file) {
            Ok(trace) => loaded.traces.push(trace),
            Err(error) => broken.push(error.to_string()),
        }
    }
    if loaded.traces.len() == before {
        let first = broken.swap_remove(0);
        return Err(TraceError::NoneReadable { path: path.to_path_buf(), first });
    }
    loaded.warnings.extend(broken);
    Ok(())
}

/// Trace files directly in a directory, by name.
fn traces_in(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(path)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_trace(path) && path.is_file())
        .collect();
    files.sort();
    Ok(files)
}

/// Whether the path has the name of a trace: `NAME.vtrace`, or `NAME.vtrace.2` from older recorders.
pub fn is_trace(path: &Path) -> bool {
    let is = |path: &Path| path.extension().is_some_and(|extension| extension == EXTENSION);
    let numbered = path.extension().is_some_and(|extension| {
        let digits = extension.as_encoded_bytes();
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    });
    is(path) || numbered && path.file_stem().is_some_and(|stem| is(Path::new(stem)))
}

/// Loads the newest run: that of a subdirectory with any name, or of the files in the directory itself.
fn load_newest(here: &Path, loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let unreadable = |source| TraceError::Directory { path: here.to_path_buf(), source };
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(here).map_err(unreadable)?.flatten() {
        let path = relative(here, &entry.path());
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden
            && path.is_dir()
            && let Some(start) = newest_start(&path)
            && newest.as_ref().is_none_or(|(best, _)| start > *best)
        {
            newest = Some((start, path));
        }
    }
    let lone = lone_run(here).map_err(unreadable)?;
    let lone_start = lone.first().map(|trace| trace.header().start_unix_ns);
    match newest {
        Some((start, directory)) if lone_start.is_none_or(|lone| start >= lone) => {
            load_directory(&directory, loaded)?;
            loaded.chosen = Some(directory);
            Ok(())
        }
        _ if lone.is_empty() => {
            let full = fs::canonicalize(here).unwrap_or_else(|_| here.to_path_buf());
            Err(TraceError::NoneHere(full))
        }
        _ => {
            loaded.chosen = Some(lone[0].path().to_path_buf());
            loaded.traces = lone;
            Ok(())
        }
    }
}

/// A path without a leading `./`, for messages.
fn relative(here: &Path, path: &Path) -> PathBuf {
    match here == Path::new(".") {
        true => path.strip_prefix(here).unwrap_or(path).to_path_buf(),
        false => path.to_path_buf(),
    }
}

fn newest_start(directory: &Path) -> Option<u64> {
    traces_in(directory)
        .ok()?
        .iter()
        .filter_map(|path| Trace::open(path).ok())
        .map(|trace| trace.header().start_unix_ns)
        .max()
}

/// The newest trace in the directory itself, and the other traces of the same run: those of its parent, of
/// a sibling or of another rank that were still written when it began.
fn lone_run(here: &Path) -> std::io::Result<Vec<Trace>> {
    let mut traces: Vec<Trace> = traces_in(here)?
        .iter()
        .filter_map(|path| Trace::open(&relative(here, path)).ok())
        .collect();
    traces.sort_by_key(|trace| std::cmp::Reverse(trace.header().start_unix_ns));
    let Some(newest) = traces.first() else { return Ok(traces) };
    let of_newest = newest.header().clone();
    let mut run_of = std::collections::HashSet::from([of_newest.pid]);
    traces.retain(|trace| {
        let header = trace.header();
        let related = header.uuid == of_newest.uuid
            || header.pid == of_newest.parent_pid
            || header.parent_pid == of_newest.parent_pid
            || run_of.contains(&header.parent_pid)
            || (header.world_size.is_some() && header.world_size == of_newest.world_size);
        let together = last_written_ns(trace.path()) >= of_newest.start_unix_ns;
        let belongs = related && together;
        if belongs {
            run_of.insert(header.pid);
        }
        belongs
    });
    Ok(traces)
}

fn last_written_ns(path: &Path) -> u64 {
    fs::metadata(path)
        .and_then(|meta| meta.modified())
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos() as u64)
}
