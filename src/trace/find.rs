//! Finds the traces that a command line names: files, directories of runs, or the newest run in the working
//! directory.

use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::file::OpenError;
use super::runs::newest_run;
use super::tail_place::Beside;
use super::{Trace, compressed};
use crate::files::Directory;
use crate::units::count;

/// The extension of a trace's file name.
pub use vramtrace_format::outspec::EXTENSION;

/// How many traces are opened at most. Each takes one or two mappings, and a process may have 65,530 of them.
const MOST_TRACES: usize = 30_000;
/// How many files of runs are looked at to find the newest run.
const MOST_LOOKS: usize = 100_000;
/// How many files with the same problem are named.
const NAMED: usize = 10;

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
    let mut seen = HashSet::new();
    loaded.traces.retain(|trace| {
        let path = trace.path();
        seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()))
    });
    leave_out_copies(&mut loaded);
    Ok(loaded)
}

/// Of a trace and its packed copy, keeps the copy: the longer file, which contains all of the trace.
fn leave_out_copies(loaded: &mut LoadedTraces) {
    let mut kept: Vec<Trace> = Vec::with_capacity(loaded.traces.len());
    let mut places = HashMap::new();
    let mut left_out = Vec::new();
    for trace in loaded.traces.drain(..) {
        let header = trace.header();
        let identity = (header.uuid, header.pid, header.process_start_ticks, header.start_unix_ns);
        match places.entry(identity) {
            Entry::Vacant(new) => {
                new.insert(kept.len());
                kept.push(trace);
            }
            Entry::Occupied(place) => {
                let known = &mut kept[*place.get()];
                let out = match trace.len() > known.len() {
                    true => std::mem::replace(known, trace),
                    false => trace,
                };
                let known = known.path().display();
                left_out.push(format!("{} is left out: {known} is a copy", out.path().display()));
            }
        }
    }
    loaded.traces = kept;
    loaded.warnings.extend(some(left_out, "are left out: they are copies"));
}

/// The first of many lines, and how many more files there are.
fn some(mut lines: Vec<String>, what: &str) -> Vec<String> {
    if let Some(more) = lines.len().checked_sub(NAMED + 1) {
        lines.truncate(NAMED);
        lines.push(format!("{} more files {what}", count(more as u64 + 1)));
    }
    lines
}

fn open(path: &Path) -> Result<Trace, TraceError> {
    Trace::open(path).map_err(|source| TraceError::Open { path: path.to_path_buf(), source })
}

fn load_directory(path: &Path, loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let room = MOST_TRACES.saturating_sub(loaded.traces.len());
    let files = traces_in(path, room)
        .map_err(|source| TraceError::Directory { path: path.to_path_buf(), source })?;
    if files.all == 0 {
        return Err(TraceError::NoneInDirectory(path.to_path_buf()));
    }
    let before = loaded.traces.len();
    let mut broken = Vec::new();
    let beside = Beside::at(path);
    for file in &files.first {
        match Trace::open_beside(file, &beside) {
            Ok(trace) => loaded.traces.push(trace),
            Err(source) => {
                broken.push(TraceError::Open { path: file.clone(), source }.to_string());
            }
        }
    }
    if loaded.traces.len() == before && !broken.is_empty() {
        let first = broken.swap_remove(0);
        return Err(TraceError::NoneReadable { path: path.to_path_buf(), first });
    }
    loaded.warnings.extend(some(broken, "cannot be read"));
    loaded.warnings.extend(files.left_out(path));
    let of_directory = loaded.traces.split_off(before);
    let (newest, others) = newest_run(of_directory, last_written_ns);
    if !others.is_empty() {
        loaded.warnings.push(other_runs(path, &newest, &others));
    }
    loaded.traces.extend(newest);
    Ok(())
}

/// Says which of several runs of a directory is shown.
fn other_runs(directory: &Path, newest: &[Trace], others: &[Vec<Trace>]) -> String {
    const NAMED: usize = 3;
    let of_run = |traces: &[Trace]| {
        let first = traces.iter().min_by_key(|trace| trace.header().start_unix_ns);
        let name = first.map_or_else(String::new, |trace| trace.path().display().to_string());
        match traces.len() {
            1 => name,
            several => format!("{name} and {} more", several - 1),
        }
    };
    let mut earlier: Vec<String> = others.iter().rev().take(NAMED).map(|run| of_run(run)).collect();
    if others.len() > NAMED {
        earlier.push(format!("{} more runs", others.len() - NAMED));
    }
    format!(
        "{}: traces of {} runs; this is the newest ({}). Earlier: {}; name the files of a run to read it",
        directory.display(),
        others.len() + 1,
        of_run(newest),
        earlier.join(", "),
    )
}

/// Trace files directly in a directory.
struct TracesIn {
    /// The first by name.
    first: Vec<PathBuf>,
    /// How many there are.
    all: u64,
}

impl TracesIn {
    fn left_out(&self, directory: &Path) -> Option<String> {
        (self.all > self.first.len() as u64).then(|| {
            format!(
                "{}: {} of {} traces are read, the first by name; give files, or a directory with \
                 fewer",
                directory.display(),
                count(self.first.len() as u64),
                count(self.all)
            )
        })
    }
}

/// The trace files directly in a directory, the first `most` by name. Other entries take no memory.
fn traces_in(path: &Path, most: usize) -> std::io::Result<TracesIn> {
    let mut first = BinaryHeap::new();
    let mut all = 0;
    for entry in Directory::at(path)?.entries()? {
        let file = path.join(entry.file_name());
        let is_file = || match entry.file_type() {
            Ok(kind) if kind.is_symlink() => file.is_file(),
            kind => kind.is_ok_and(|kind| kind.is_file()),
        };
        if !(is_trace(&file) || has_compressed_name(&file)) || !is_file() {
            continue;
        }
        all += 1;
        first.push(file);
        if first.len() > most {
            first.pop();
        }
    }
    Ok(TracesIn { first: first.into_sorted_vec(), all })
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

/// Whether the path has the name of a trace, and that of a file compressed with gzip behind it.
fn has_compressed_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == compressed::EXTENSION)
        && path.file_stem().is_some_and(|stem| is_trace(Path::new(stem)))
}

/// Loads the newest run: that of a subdirectory with any name, or of the files in the directory itself.
fn load_newest(here: &Path, loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let unreadable = |source| TraceError::Directory { path: here.to_path_buf(), source };
    let mut newest: Option<(u64, PathBuf)> = None;
    let mut looks = MOST_LOOKS;
    let directory = Directory::at(here).map_err(unreadable)?;
    for entry in directory.entries().map_err(unreadable)? {
        let path = relative(here, &here.join(entry.file_name()));
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_directory = || match entry.file_type() {
            Ok(kind) if kind.is_symlink() => path.is_dir(),
            kind => kind.is_ok_and(|kind| kind.is_dir()),
        };
        if looks > 0
            && !hidden
            && is_directory()
            && let Some(start) = newest_start(&path, &mut looks)
            && newest.as_ref().is_none_or(|(best, _)| start > *best)
        {
            newest = Some((start, path));
        }
    }
    if looks == 0 {
        loaded.warnings.push(format!(
            "more than {} files of runs are here: the run that was chosen may not be the newest; name one",
            count(MOST_LOOKS as u64)
        ));
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

fn newest_start(directory: &Path, looks: &mut usize) -> Option<u64> {
    let files = traces_in(directory, *looks).ok()?.first;
    *looks -= files.len();
    files.iter().filter_map(|path| Trace::started_unix_ns(path)).max()
}

/// The newest trace in the directory itself, and the other traces of the same run: those of its parent, of
/// a sibling or of another rank that were still written when it began.
fn lone_run(here: &Path) -> std::io::Result<Vec<Trace>> {
    let beside = Beside::at(here);
    let mut traces: Vec<Trace> = traces_in(here, MOST_TRACES)?
        .first
        .iter()
        .filter_map(|path| Trace::open_beside(&relative(here, path), &beside).ok())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::training;

    #[test]
    fn the_first_traces_by_name_are_read_and_the_others_counted() {
        let place = tempfile::tempdir().unwrap();
        for name in ["d", "b", "e", "a", "c"] {
            std::fs::write(place.path().join(name).with_extension("vtrace"), "").unwrap();
            std::fs::write(place.path().join(name).with_extension("txt"), "").unwrap();
        }
        std::fs::create_dir(place.path().join("0.vtrace")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place.path().join("1.vtrace")).unwrap();
        let found = traces_in(place.path(), 2).unwrap();
        let names: Vec<_> = found.first.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!((names, found.all), (vec!["a.vtrace".as_ref(), "b.vtrace".as_ref()], 5));
        assert!(found.left_out(place.path()).unwrap().contains(": 2 of 5 traces are read"));
        assert_eq!(traces_in(place.path(), 5).unwrap().left_out(place.path()), None);
    }

    #[test]
    fn copies_and_files_that_are_no_traces_are_named_up_to_ten() {
        let place = tempfile::tempdir().unwrap();
        for n in 0..50 {
            training().write(&place.path().join(format!("{n:02}.vtrace")));
            std::fs::write(place.path().join(format!("{n}.text.vtrace")), "no trace").unwrap();
        }
        let loaded = load(&[place.path().to_path_buf()]).unwrap();
        assert_eq!((loaded.traces.len(), loaded.warnings.len()), (1, 22));
        let more = |line: &str| loaded.warnings.iter().filter(|found| *found == line).count();
        assert_eq!(more("40 more files cannot be read"), 1);
        assert_eq!(more("39 more files are left out: they are copies"), 1);
    }
}
