//! A window of an open trace with its memory, and the lane of the windows of one kind.

use super::tail::Tail;
use crate::runtime::hash_table;
use crate::runtime::leaked::Leaked;
use crate::runtime::system::Part;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use vramtrace_format::window::WINDOW_HEADER;
use vramtrace_format::{WindowKind, WindowWriter, slot_offset};

/// A window and its memory. Never freed: a thread that still holds a reference when the window becomes
/// full can only find it full, however late.
#[repr(C)]
pub(super) struct Window {
    pub(super) writer: WindowWriter<'static>,
    pub(super) words: &'static [AtomicU64],
    /// Whether the memory is the tail's.
    pub(super) in_tail: bool,
    /// Bytes at its beginning that are in the trace in their final form.
    pub(super) written: AtomicUsize,
    /// The published bytes at the last write.
    pub(super) stored: AtomicUsize,
}

impl Window {
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        slot_offset(u64::from(self.writer.header().slot))
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.words)
    }

    /// A range of the window's bytes, for a write.
    pub(super) fn part(&self, from: usize, end: usize) -> Part<'static> {
        Part::Words(&self.words[from / 8..end / 8])
    }

    /// The header with this published count. (A count higher than the records in the file would name
    /// records that are not there.)
    pub(super) fn begin(&self, published: usize) -> [[u8; 8]; WINDOW_HEADER / 8] {
        const COUNT: usize = WINDOW_HEADER / 8 - 1;
        std::array::from_fn(|at| match at {
            COUNT => (published as u64).to_le_bytes(),
            _ => self.words[at].load(Ordering::Relaxed).to_ne_bytes(),
        })
    }

    /// Whether everything published is in the trace.
    #[inline]
    pub(super) fn is_stored(&self) -> bool {
        let published = self.writer.published();
        published == self.stored.load(Ordering::Relaxed) || published == WINDOW_HEADER
    }

    /// Releases its memory. The window is complete and in the trace: no thread stores into it, and
    /// later appends fail at its cursor.
    pub(super) fn release(&self, tail: &mut Option<Tail>) {
        match tail {
            Some(tail) if self.in_tail => tail.give(self.words),
            _ => hash_table::unmap(self.words.as_ptr().cast_mut().cast(), self.bytes()),
        }
    }
}

/// Windows of one kind, in a row.
pub(super) struct Lane {
    pub(super) current: Leaked<Window>,
    /// Prepared by the thread that passed the middle of the current one.
    pub(super) next: Leaked<Window>,
    /// When the current one was full and there was no next one: since then records are lost. `u64::MAX`: none are.
    /// Changed under the lock of the grid.
    pub(super) held: AtomicU64,
}

impl Lane {
    pub(super) fn new(first: &'static Window) -> Lane {
        let (current, next) = (Leaked::NONE, Leaked::NONE);
        current.set(first);
        Lane { current, next, held: AtomicU64::new(u64::MAX) }
    }

    pub(super) fn kind(&self) -> WindowKind {
        self.current().writer.header().kind
    }

    pub(super) fn held_ns(&self) -> Option<u64> {
        Some(self.held.load(Ordering::Relaxed)).filter(|ns| *ns != u64::MAX)
    }

    /// Whether the next one is missing, though the middle of the current one was passed.
    pub(super) fn lacks_next(&self) -> bool {
        let window = self.current();
        window.writer.reserved() >= window.bytes() / 2 && self.next.get().is_none()
    }

    #[inline]
    pub(super) fn current(&self) -> &'static Window {
        // SAFETY: set when the lane was made, and never emptied.
        unsafe { self.current.get().unwrap_unchecked() }
    }
}
