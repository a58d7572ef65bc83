//! Finds the traces that a command line names: files, directories of runs, or the newest run in the working
//! directory.

use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::fs::{self, DirEntry, FileType};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use vramtrace_format::Error;

use super::open::{OpenError, open, open_beside, started_unix_ns};
use super::runs::newest_run;
use super::tail_place::Beside;
use super::{Trace, compressed};
use crate::files::Directory;
use crate::units::count;

/// The extension of a trace's file name.
pub use vramtrace_format::outspec::EXTENSION;

/// Maximum number of traces that are opened. Each takes one or two mappings, and a process may have 65,530 of them.
const MAX_TRACES: usize = 30_000;
/// Maximum number of files that are examined to find the newest run.
const MAX_EXAMINED_FILES: usize = 100_000;
/// How many files with the same problem are named.
const NAMED: usize = 10;

/// Why a file that was named is not read, and what can be.
fn why_not(source: &OpenError) -> String {
    const GIVE: &str = "give a trace (.vtrace), a run's directory, or a PyTorch memory snapshot";
    match source {
        OpenError::Io(error) if error.kind() == ErrorKind::NotFound => {
            format!("no such file: {GIVE}")
        }
        OpenError::Io(error) if error.kind() == ErrorKind::PermissionDenied => error.to_string(),
        OpenError::Format(Error::NewerMajor { .. } | Error::OlderMajor { .. }) => {
            source.to_string()
        }
        other => format!("{other}: {GIVE}"),
    }
}

/// Why no trace was found. The message names the path, the problem, and what to give instead.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file was named.
    #[error("{}: {}", .path.display(), why_not(.source))]
    Given { path: PathBuf, source: OpenError },
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
        load_newest(&mut loaded)?;
    }
    for path in paths {
        if path.is_dir() {
            load_directory(path, &mut loaded)?;
        } else {
            let given = |source| TraceError::Given { path: path.clone(), source };
            loaded.traces.push(open(path).map_err(given)?);
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
    let host_and_pid = |trace: &Trace| (trace.header().host.clone(), trace.header().pid);
    let run = Arc::new(loaded.traces.iter().map(host_and_pid).collect());
    let traces = loaded.traces.into_iter().map(|trace| trace.of_run(Arc::clone(&run))).collect();
    Ok(LoadedTraces { traces, ..loaded })
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

/// Loads the newest run in a directory; the empty path is the working directory.
fn load_directory(path: &Path, loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let room = MAX_TRACES.saturating_sub(loaded.traces.len());
    let (files, all) = traces_in(path, room).map_err(|source| unreadable(path, source))?;
    if all == 0 {
        return Err(TraceError::NoneInDirectory(path.to_path_buf()));
    }
    let (mut traces, mut broken) = (Vec::new(), Vec::new());
    let beside = Beside::at(path);
    for file in &files {
        match open_beside(file, &beside) {
            Ok(trace) => traces.push(trace),
            Err(error) => broken.push(format!("{}: {error}", file.display())),
        }
    }
    if traces.is_empty() && !broken.is_empty() {
        let first = broken.swap_remove(0);
        return Err(TraceError::NoneReadable { path: path.to_path_buf(), first });
    }
    loaded.warnings.extend(some(broken, "cannot be read"));
    let directory = or_here(path).display();
    if all > files.len() as u64 {
        loaded.warnings.push(format!(
            "{directory}: {} of {} traces are read, the first by name; give files, or a directory with fewer",
            count(files.len() as u64),
            count(all)
        ));
    }
    let (newest, earlier) = newest_run(traces, last_written_ns);
    if earlier > 0 {
        let first = newest.iter().min_by_key(|trace| trace.header().start_unix_ns);
        loaded.warnings.push(format!(
            "{directory}: traces of {} runs; this is the newest ({}); name the files of another to read it",
            earlier + 1,
            first.map_or(path, |trace| trace.path()).display(),
        ));
    }
    loaded.traces.extend(newest);
    Ok(())
}

fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn unreadable(path: &Path, source: std::io::Error) -> TraceError {
    TraceError::Directory { path: or_here(path).to_path_buf(), source }
}

/// The trace files directly in a directory, the first `most` by name, and how many there are. Other entries take no memory.
fn traces_in(path: &Path, most: usize) -> std::io::Result<(Vec<PathBuf>, u64)> {
    let mut first = BinaryHeap::new();
    let mut all = 0;
    for entry in Directory::at(path)?.entries()? {
        let file = path.join(entry.file_name());
        if (is_trace(&file) || has_compressed_name(&file)) && is(&entry, FileType::is_file) {
            all += 1;
            first.push(file);
        }
        if first.len() > most {
            first.pop();
        }
    }
    Ok((first.into_sorted_vec(), all))
}

/// Whether an entry is of this type, or a link to such.
fn is(entry: &DirEntry, wanted: impl Fn(&FileType) -> bool) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => {
            fs::metadata(entry.path()).is_ok_and(|to| wanted(&to.file_type()))
        }
        kind => kind.is_ok_and(|kind| wanted(&kind)),
    }
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

/// Loads the newest run: that of a subdirectory with any name, or of the files in the working directory itself.
fn load_newest(loaded: &mut LoadedTraces) -> Result<(), TraceError> {
    let here = Path::new("");
    let directory = Directory::at(here).map_err(|source| unreadable(here, source))?;
    let entries = directory.entries().map_err(|source| unreadable(here, source))?;
    let visible = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let directories = entries.filter(|entry| visible(entry) && is(entry, FileType::is_dir));
    let directories = directories.map(|entry| PathBuf::from(entry.file_name()));
    let mut looks = MAX_EXAMINED_FILES;
    let starts = [here.to_path_buf()].into_iter().chain(directories).filter_map(|directory| {
        let files = traces_in(&directory, looks).ok()?.0;
        looks -= files.len();
        let start = files.iter().filter_map(|path| started_unix_ns(path)).max()?;
        Some((start, directory))
    });
    let newest = starts.max_by_key(|(start, _)| *start);
    if looks == 0 {
        loaded.warnings.push(format!(
            "more than {} files of runs are here: the run that was chosen may not be the newest; name one",
            count(MAX_EXAMINED_FILES as u64)
        ));
    }
    let Some((_, directory)) = newest else {
        return Err(TraceError::NoneHere(fs::canonicalize(".").unwrap_or_else(|_| ".".into())));
    };
    load_directory(&directory, loaded)?;
    let last = || loaded.traces.iter().max_by_key(|trace| trace.header().start_unix_ns);
    loaded.chosen = match directory == here {
        true => last().map(|trace| trace.path().to_path_buf()),
        false => Some(directory),
    };
    Ok(())
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
        let (first, all) = traces_in(place.path(), 2).unwrap();
        let names: Vec<_> = first.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!((names, all), (vec!["a.vtrace".as_ref(), "b.vtrace".as_ref()], 5));
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
