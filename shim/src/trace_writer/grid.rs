//! The grid of an open trace: which slots of the file are taken, reserved or free, the windows that are not
//! completely in the trace, and the place and memory of the next one.

use super::credit::Credit;
use super::failure::Failure;
use super::file::OpenFile;
use super::retention::Retention;
use super::slots::Slots;
use super::tail::Tail;
use super::window::Window;
use crate::runtime::fallible::{MakeRoom, TryPush};
use crate::runtime::hash_table::{self, NoMemory};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use vramtrace_format::{SLOT, StopReason, WindowHeader, WindowKind, WindowWriter, slot_offset};

/// The state of the file's grid; changed under its lock.
pub(super) struct Grid {
    pub(super) slots: Slots,
    /// Of the definition windows.
    pub(super) definitions: Vec<u32>,
    /// Next sequence of event and definition windows.
    pub(super) sequences: [u64; 2],
    /// Bytes of records in windows that are complete and in the trace.
    pub(super) retired_bytes: u64,
    /// Windows that are not completely in the trace.
    pub(super) open: Vec<&'static Window>,
    /// Ranges of slots that are reserved in the file for the next windows.
    pub(super) reserved: Vec<Reserved>,
    pub(super) tail: Option<Tail>,
    /// Nanoseconds for writes without a tail.
    pub(super) credit: Credit,
    pub(super) retention: Retention,
}

#[derive(Clone, Copy)]
pub(super) struct Reserved {
    pub(super) slot: u32,
    pub(super) slots: u16,
}

impl Grid {
    /// Whether a window of so many slots can begin without a task.
    pub(super) fn has_room(&self, slots: u16) -> bool {
        let is_reserved = self.reserved.iter().any(|reserved| reserved.slots == slots);
        is_reserved && self.tail.as_ref().is_some_and(|tail| tail.count(slots as usize * SLOT) > 0)
    }

    pub(super) fn take_reserved(&mut self, slots: u16) -> Option<u32> {
        let at = self.reserved.iter().position(|reserved| reserved.slots == slots)?;
        Some(self.reserved.remove(at).slot)
    }

    /// Makes room for one more window in all lists.
    pub(super) fn make_room(&mut self) -> Result<(), NoMemory> {
        self.slots.make_room()?;
        self.definitions.make_room()?;
        self.open.make_room()?;
        self.reserved.make_room()?;
        self.retention.make_list_room()
    }
}

pub(super) const NO_MEMORY: Failure =
    Failure { reason: StopReason::MapFailed, errno: libc::ENOMEM };

/// Reserves places in the file for so many windows, each of so many slots, and memory in the tail.
pub(super) fn make_room(
    file: &OpenFile,
    grid: &mut Grid,
    windows: u16,
    slots: u16,
) -> Result<(), Failure> {
    let bytes = slots as usize * SLOT;
    if grid.reserved.iter().all(|reserved| reserved.slots != slots) {
        grid.make_room().map_err(|NoMemory| NO_MEMORY)?;
        let first = grid.slots.take(windows * slots);
        file.reserve(slot_offset(u64::from(first)), u64::from(windows) * bytes as u64)
            .inspect_err(|_| grid.slots.give(first, windows * slots))?;
        for window in 0..windows {
            let slot = first + u32::from(window * slots);
            let _ = grid.reserved.try_push(Reserved { slot, slots });
        }
    }
    if let Some(tail) = &mut grid.tail {
        // Without memory of the tail, windows get private memory.
        let _ = tail.provide(file.table(), bytes, windows.into());
    }
    Ok(())
}

/// Begins a window at a reserved place.
pub(super) fn new_window(
    tag: u64,
    grid: &mut Grid,
    kind: WindowKind,
    slots: u16,
    now_ns: u64,
) -> Result<&'static Window, Failure> {
    let bytes = slots as usize * SLOT;
    grid.make_room().map_err(|NoMemory| NO_MEMORY)?;
    let (words, in_tail) = window_memory(&mut grid.tail, bytes)?;
    let slot = grid.take_reserved(slots).ok_or(NO_MEMORY)?;
    let next = &mut grid.sequences[kind as usize - 1];
    let sequence = *next;
    *next += 1;
    let header = WindowHeader { kind, slots, sequence, slot, base_time_ns: now_ns, file: tag };
    let writer = WindowWriter::begin(words, header);
    grid.retention.placed(kind, header.sequence, slot, slots);
    if kind == WindowKind::Definitions {
        let _ = grid.definitions.try_push(slot);
    }
    let (written, stored) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let made = Box::leak(Box::new(Window { writer, words, in_tail, written, stored }));
    let _ = grid.open.try_push(made);
    Ok(made)
}

/// Memory of the tail, or private memory if the tail has none, whose contents are lost at a kill unless
/// they are in the trace. True: the tail's.
pub(super) fn window_memory(
    tail: &mut Option<Tail>,
    bytes: usize,
) -> Result<(&'static [AtomicU64], bool), Failure> {
    if let Some(words) = tail.as_mut().and_then(|tail| tail.take(bytes)) {
        return Ok((words, true));
    }
    let memory = hash_table::pages(bytes).map_err(|NoMemory| NO_MEMORY)?;
    // SAFETY: the memory is mapped, zero, aligned to a page, and used through atomics alone until the window is complete;
    // `Window::release` says why nobody comes after that.
    Ok((unsafe { std::slice::from_raw_parts(memory.cast(), bytes / 8) }, false))
}
