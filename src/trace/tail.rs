//! The tail file of a trace: the windows that a process was filling. It exists while the process runs,
//! and after it was killed. A reader copies the windows to their places in the mapped trace; `vramtrace
//! run` writes them into the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vramtrace_format::tail::{self, TAIL_START};
use vramtrace_format::window::WINDOW_HEADER;
use vramtrace_format::{HEADER_BYTES, Header, SLOT, WindowHeader, WindowKind, slot_offset};

use super::holes::data_ranges;
use super::own::{check_own, header_of};
use super::process::is_running;
use super::tail_place::Beside;
use crate::files::{Access, Directory, Map, try_lock};

/// Maximum size in bytes of the windows that are taken from a tail. A recorder fills a few of at most 1 MiB at a time.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum distance in bytes of a window behind the end of the trace: the trace may have been cut.
const MAX_BEHIND_END: u64 = 64 << 30;

/// Copies of the windows of a tail.
pub(super) struct Tail {
    header: Header,
    windows: Vec<(WindowHeader, Vec<u8>)>,
    /// Places in the trace of windows that were left out: no recorder writes them there, or so many.
    pub(super) impossible: Vec<u64>,
    /// Its file is in memory of this host.
    pub(super) in_memory: bool,
}

impl Tail {
    /// The tail of the trace with this name, file and header. `None`: it has none, or its file is missing.
    pub(super) fn of(trace: &Path, file: &File, beside: &Beside, header: &Header) -> Option<Tail> {
        let found = beside.tail(trace.file_name()?, file, header)?;
        let length = file.metadata().ok()?.len();
        let tail = Tail::read(&found.file, header.file_tag(), length).ok()?;
        Some(Tail { in_memory: found.is_in_memory(), ..tail })
    }

    /// The header page of the tail with the trace's name, for a trace whose own header was cut off.
    pub(super) fn header_beside(trace: &Path, beside: &Beside) -> Option<Header> {
        let begin = [b".", trace.file_name()?.as_bytes(), b"."].concat();
        header_of(&beside.find(|name| name.starts_with(&begin))?.file).ok()
    }

    /// `length`: of the trace.
    fn read(file: &File, tag: u64, length: u64) -> io::Result<Tail> {
        let header = header_of(file)?;
        let (windows_of, impossible) = (Vec::new(), Vec::new());
        let mut tail = Tail { header, windows: windows_of, impossible, in_memory: false };
        let end = length.saturating_add(MAX_BEHIND_END);
        let mut left = MAX_BYTES;
        // Definitions are copied after events, so that the definitions of all copied events are there.
        for kind in [WindowKind::Events, WindowKind::Definitions] {
            for (at, header) in windows(file, tag)?.into_iter().filter(|(_, h)| h.kind == kind) {
                let place = slot_offset(header.slot.into());
                if header.bytes() as u64 > left || place + header.bytes() as u64 > end {
                    tail.impossible.push(place);
                } else if let Some(bytes) = copy(file, at, &header) {
                    left -= bytes.len() as u64;
                    tail.windows.push((header, bytes));
                }
            }
        }
        Ok(tail)
    }

    /// A private map of the trace with these windows at their places. Adds their ranges to `data`.
    pub(super) fn over(&self, trace: &File, data: &mut Vec<Range<u64>>) -> io::Result<Map> {
        let length = trace.metadata()?.len();
        let ends = self.ranges().map(|range| range.end);
        let end = ends.max().unwrap_or(0).max(length).max(HEADER_BYTES as u64);
        let end = usize::try_from(end).map_err(io::Error::other)?;
        let map = Map::with_changes(trace, end, |map| {
            map[..HEADER_BYTES].copy_from_slice(&self.page());
            for (header, bytes) in &self.windows {
                let at = slot_offset(header.slot.into()) as usize;
                map[at..at + bytes.len()].copy_from_slice(bytes);
            }
        })?;
        data.extend(self.ranges());
        data.push(0..HEADER_BYTES as u64);
        join(data);
        Ok(map)
    }

    /// The header page of the whole trace.
    fn page(&self) -> [u8; HEADER_BYTES] {
        without_tail(&self.header).to_page()
    }

    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.windows.iter().map(|(header, bytes)| {
            let at = slot_offset(header.slot.into());
            at..at + bytes.len() as u64
        })
    }
}

/// Writes the tail of a killed process into its trace, and removes the tail. Does nothing where there is no
/// tail, or where the process may still write.
///
/// Others may write the directory. So both files must be this user's own, with no other name and not writable by
/// others: then nobody else wrote what is in them. They must have the same header page, so that a process of this user
/// wrote this tail for this trace. All is checked on the descriptors that are read and written.
pub fn merge(trace: &Path) -> io::Result<()> {
    let (directory, name) = Directory::of(trace)?;
    let file = directory.open(name, Access::Write)?;
    check_own(&file)?;
    let header = header_of(&file)?;
    let beside = Beside::inside(directory);
    let Some(found) = beside.tail(name, &file, &header) else { return Ok(()) };
    check_own(&found.file)?;
    // A recorder that has it open holds a lock on it.
    if is_running(&header) || !try_lock(&found.file).unwrap_or(false) {
        return Ok(());
    }
    let tail = Tail::read(&found.file, header.file_tag(), file.metadata()?.len())?;
    if without_tail(&tail.header) != without_tail(&header) {
        return Err(io::Error::other("the tail is of another trace"));
    }
    for ((_, bytes), range) in tail.windows.iter().zip(tail.ranges()) {
        file.write_all_at(bytes, range.start)?;
    }
    file.write_all_at(&tail.page(), 0)?;
    found.remove()
}

fn without_tail(header: &Header) -> Header {
    Header { tail: None, ..header.clone() }
}

/// The windows of the trace with this tag, with their offsets in the tail. Holes of the tail are not read.
fn windows(file: &File, tag: u64) -> io::Result<Vec<(u64, WindowHeader)>> {
    let data = data_ranges(file)?;
    let mut found = Vec::new();
    let mut at = TAIL_START as u64;
    while let Some(range) = data.get(data.partition_point(|range| range.end <= at)) {
        let slots = range.start.saturating_sub(at) / SLOT as u64;
        at += slots * SLOT as u64;
        let header = header_at(file, at).filter(|header| header.file == tag);
        found.extend(header.map(|header| (at, header)));
        at += header.map_or(SLOT, |header| header.bytes()) as u64;
    }
    Ok(found)
}

fn header_at(file: &File, at: u64) -> Option<WindowHeader> {
    let mut begin = [0; WINDOW_HEADER];
    file.read_exact_at(&mut begin, at).ok()?;
    tail::header_at(&begin)
}

/// A copy of a window. `None`: the tail ends in it, or the process replaced it during the copy; then it is in the
/// trace.
fn copy(file: &File, at: u64, header: &WindowHeader) -> Option<Vec<u8>> {
    let mut bytes = vec![0; header.bytes()];
    file.read_exact_at(&mut bytes, at).ok()?;
    (header_at(file, at) == Some(*header)).then_some(bytes)
}

/// Sorts the ranges and joins those that touch or overlap.
fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}
