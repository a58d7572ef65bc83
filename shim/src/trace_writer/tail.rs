//! The tail file: memory for the windows being filled, which survives a kill of the process.
//!
//! If a mapped file is truncated, the next store raises SIGBUS. So the trace, which users handle, is
//! not mapped, but this file is, beside the trace or in memory (`tail_place.rs`). It has a hidden name, and a mode that keeps even its owner from
//! truncating it by mistake. Its memory is reused as soon as a window is in the trace, and it is
//! removed at an orderly end.

use super::failure::Failure;
use super::means::Means;
use super::named_file::{NamedFile, ZEROS, allocate, within_limit, write};
use super::tail_place::{self, is_mappable, leaves_half};
use crate::runtime::fallible::TryPush;
use crate::runtime::faults::{beside_granted, pages_granted};
use crate::runtime::forked_child;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::system::{self, Part};
use crate::runtime::{errno, hash_table};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use vramtrace_format::tail::TAIL_START;
use vramtrace_format::{HEADER_BYTES, Header, SLOT, StopReason, TailPlace};

pub struct Tail {
    file: NamedFile,
    place: TailPlace,
    length: u64,
    /// Whether a page is cheaper to write first than to touch: on a disk, a touch of a page that
    /// has blocks and no contents goes through the filesystem by itself (5 us; written in bulk
    /// before, 1 us).
    write_first: bool,
    /// Mapped ranges that hold no window.
    free: Vec<Range>,
}

#[derive(Clone, Copy)]
struct Range {
    words: &'static [AtomicU64],
    /// All zeros: no window was in it.
    fresh: bool,
}

/// Slots at the start: a window of each kind.
const FIRST: usize = 2;

impl Tail {
    /// Creates the tail of the trace with this header. `None`: there is no place for it.
    pub fn create(table: &Table, trace: &Path, header: &Header, means: Means) -> Option<Tail> {
        let tag = header.file_tag();
        let begin = |place, (file, opened): (NamedFile, Opened)| {
            let page = Header { tail: Some(place), ..header.clone() }.to_page();
            Tail::begin(place, file, &opened, &page).map_err(|file| file.remove()).ok()
        };
        let beside = || begin(TailPlace::Beside, tail_place::beside(table, trace, tag).ok()?);
        let in_memory = || begin(TailPlace::Memory, tail_place::in_memory(table, tag)?);
        let tail = (means.map && beside_granted()).then(beside).flatten();
        tail.or_else(|| means.memory.then(in_memory).flatten())
    }

    /// The lock shows other processes that this one is running. It belongs to the description that is
    /// opened here, which the mappings keep. (Not on an overlay, whose mappings keep the file below.)
    fn begin(
        place: TailPlace,
        file: NamedFile,
        opened: &Opened,
        page: &[u8; HEADER_BYTES],
    ) -> Result<Tail, NamedFile> {
        let Some(write_first) = is_mappable(opened) else { return Err(file) };
        let headed = within_limit(HEADER_BYTES as u64).and_then(|()| {
            system::flock(opened, libc::LOCK_EX | libc::LOCK_NB);
            write(opened, &[Part::Bytes(page)], 0)
        });
        let length = TAIL_START as u64;
        let mut tail = Tail { file, place, length, write_first, free: Vec::new() };
        let grown = headed.and_then(|()| tail.grow(opened, SLOT, FIRST));
        if grown.is_ok() { Ok(tail) } else { Err(tail.file) }
    }

    pub fn place(&self) -> TailPlace {
        self.place
    }

    /// How many ranges of so many bytes [`Tail::take`] has.
    pub fn count(&self, bytes: usize) -> usize {
        self.free.iter().filter(|range| size_of_val(range.words) == bytes).count()
    }

    /// Makes sure that [`Tail::take`] has this many ranges of so many bytes.
    pub fn provide(&mut self, table: &Table, bytes: usize, count: usize) -> Result<(), Failure> {
        let there = self.count(bytes);
        if there >= count {
            return Ok(());
        }
        let (opened, _) = self.file.open(table)?;
        self.grow(&opened, bytes, count - there)
    }

    /// Zeroed memory for a window. `None`: none of so many bytes is free.
    pub fn take(&mut self, bytes: usize) -> Option<&'static [AtomicU64]> {
        let at = self.free.iter().position(|range| size_of_val(range.words) == bytes)?;
        let Range { words, fresh } = self.free.swap_remove(at);
        if !fresh {
            // SAFETY: nobody uses a range that is free.
            unsafe { words.as_ptr().cast_mut().write_bytes(0, words.len()) };
        }
        Some(words)
    }

    /// Returns the memory of a window that is in the trace: it is no longer part of the tail.
    pub fn give(&mut self, words: &'static [AtomicU64]) {
        // Before other contents change, so that a kill in between leaves no window.
        words[0].store(0, Ordering::SeqCst);
        // Without host memory for the list the range is not reused: the tail grows instead.
        let _ = self.free.try_push(Range { words, fresh: false });
    }

    /// Unlinks the file; its mappings stay.
    pub fn remove(self) {
        self.file.remove();
    }

    /// Extends the file with blocks, which are mapped and touched: stores to them cannot fail.
    fn grow(&mut self, opened: &Opened, bytes: usize, count: usize) -> Result<(), Failure> {
        let (offset, all) = (self.length, bytes * count);
        within_limit(offset + all as u64)?;
        if self.place == TailPlace::Memory {
            leaves_half(opened, all as u64)?;
        }
        allocate(opened, 0, offset, all as u64)?;
        if self.write_first {
            let _ = write_zeros(opened, offset, all);
        }
        let memory = map(opened, offset, all)?;
        self.length = offset + all as u64;
        for words in memory.chunks_exact(bytes / 8) {
            let _ = self.free.try_push(Range { words, fresh: true });
        }
        Ok(())
    }
}

fn map(opened: &Opened, offset: u64, bytes: usize) -> Result<&'static [AtomicU64], Failure> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if !pages_granted("tail") {
        return Err(Failure { reason: StopReason::MapFailed, errno: libc::ENOMEM });
    }
    let (shared, number) = (libc::MAP_SHARED, opened.as_fd().as_raw_fd());
    // SAFETY: a fresh mapping; touches nothing that exists.
    let at =
        unsafe { libc::mmap(null_mut(), bytes, access, shared, number, offset as libc::off_t) };
    if at == libc::MAP_FAILED {
        return Err(Failure::last(StopReason::MapFailed));
    }
    populate(at, bytes).inspect_err(|_| hash_table::unmap(at.cast(), bytes))?;
    forked_child::leave_out(at.cast(), bytes);
    // SAFETY: mapped for good, and accessed by atomics alone.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), bytes / 8) })
}

/// Writes zeros to a range of new blocks, which creates its pages in bulk. If that fails, they are
/// created one by one when touched.
fn write_zeros(opened: &Opened, offset: u64, bytes: usize) -> Result<(), Failure> {
    let mut places = (offset..offset + bytes as u64).step_by(ZEROS.len());
    places.try_for_each(|at| write(opened, &[Part::Bytes(&ZEROS)], at))
}

/// Touches every page for writing, so that an error is found here and not as a SIGBUS at a store. A range of the recorder's.
fn populate(at: *mut c_void, bytes: usize) -> Result<(), Failure> {
    loop {
        // SAFETY: populating keeps the contents.
        if unsafe { libc::madvise(at, bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        match errno::get() {
            libc::EINTR | libc::EAGAIN => {}
            // Before Linux 5.14: the blocks are there, which is what a store needs.
            libc::EINVAL => return Ok(()),
            libc::EFAULT => {
                return Err(Failure { reason: StopReason::DiskFull, errno: libc::EFAULT });
            }
            errno => return Err(Failure::of(errno, StopReason::MapFailed)),
        }
    }
}
