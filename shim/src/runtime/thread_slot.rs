//! What the trace writer keeps for each thread: its number, and when it recorded last.

use crate::runtime::tls::thread_block;
use vramtrace_format::ThreadId;

#[repr(C)]
struct Slot {
    /// Owner << 16 | number. The owner tells a forked child that the number is its parent's.
    number: u64,
    last_ns: u64,
}

thread_block!(fn slot() -> *mut Slot = "vramtrace_thread", 16, align 16);

/// This thread's number under this owner (an address: 48 bits), if it has one.
#[inline(always)]
pub fn number(owner: usize) -> Option<ThreadId> {
    // SAFETY: the slot is this thread's own.
    let number = unsafe { (*slot()).number };
    (number >> 16 == owner as u64).then_some(ThreadId(number as u16))
}

pub fn set_number(owner: usize, thread: ThreadId) {
    // SAFETY: as above.
    unsafe { (*slot()).number = (owner as u64) << 16 | u64::from(thread.0) }
}

/// When this thread last read the trace writer's clock.
#[inline(always)]
pub fn last_ns() -> u64 {
    // SAFETY: as above.
    unsafe { (*slot()).last_ns }
}

#[inline(always)]
pub fn set_last_ns(now: u64) {
    // SAFETY: as above.
    unsafe { (*slot()).last_ns = now }
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
