//! What a recorded call reads of its thread, of nearly all calls on one line of the cache: the trace writer's number of the
//! thread, the time of its last event, and what is noted for its next block of PyTorch's.

use crate::runtime::errno;
use crate::runtime::tls::thread_cells;
use core::cell::Cell;
use vramtrace_format::ThreadId;

#[repr(C)]
struct Slot {
    /// The number, and above its 16 bits the owner. In a forked child the owner differs, so the parent's number is not used.
    numbered: Cell<u64>,
    last_ns: Cell<u64>,
}

thread_cells!(fn slot() -> &Slot, 16 bytes of the block at 48);

/// Devices whose streams are noted.
pub const STREAMS: usize = 16;

/// What is noted of a thread for its next block: see `model/torch_lanes.rs` and `model/torch_requests.rs`.
#[repr(C)]
pub struct NextBlock {
    /// The bytes that were requested; 0: nothing was noted.
    pub requested: Cell<u64>,
    pub divisions: Cell<u64>,
    /// The capture that the driver named last, plus 1; 0: none.
    pub capture: Cell<u64>,
    /// Of the devices.
    pub streams: [Cell<u64>; STREAMS],
}

thread_cells!(pub fn next_block() -> &NextBlock, 192 bytes of the block at 64);

/// The kernel's number of this thread.
pub fn tid() -> i32 {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Whether this process has a thread with this number.
pub fn lives(tid: i32) -> bool {
    let process = std::process::id();
    // SAFETY: plain numbers; signal 0 is not delivered.
    let known = unsafe { libc::syscall(libc::SYS_tgkill, process, tid, 0) } == 0;
    known || errno::get() != libc::ESRCH
}

/// The number that this thread has in the trace of `owner` (the trace writer's address), if it has one.
#[inline(always)]
pub fn number(owner: usize) -> Option<ThreadId> {
    let numbered = slot().numbered.get();
    // No address of a program has 48 bits.
    (numbered >> 16 == owner as u64).then_some(ThreadId(numbered as u16))
}

pub fn set_number(owner: usize, thread: ThreadId) {
    slot().numbered.set((owner as u64) << 16 | u64::from(thread.0));
}

/// The time at which this thread last read the trace writer's clock.
#[inline(always)]
pub fn last_ns() -> u64 {
    slot().last_ns.get()
}

#[inline(always)]
pub fn set_last_ns(now: u64) {
    slot().last_ns.set(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_and_an_owner_knows_its_own() {
        set_number(0x1234, ThreadId(7));
        assert_eq!(number(0x1234), Some(ThreadId(7)));
        assert_eq!(number(0x1235), None);
        std::thread::spawn(|| assert_eq!(number(0x1234), None)).join().unwrap();
    }
}
