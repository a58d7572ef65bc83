//! The bytes that PyTorch's allocator was asked for, which its report of the block does not name.
//!
//! The allocator asks its configuration, with the requested bytes, by how many divisions of a power of two to round them up.
//! It does so once for each request of 512 bytes or more, on the thread that reports the block afterwards. Both are noted
//! here, and the block's report takes them. What was noted for a request that got no block must not be taken for another
//! one: it is taken once only, a refusal that is reported drops it, and the block must have a size that the allocator gives
//! to such a request.

use crate::runtime::thread_slot::next_block;
use vramtrace_format::block_size::{MIN_BLOCK, rounded};

const MIB: u64 = 1 << 20;
/// The allocator does not split a rest of this size or less off a block for a larger request.
const UNSPLIT: u64 = MIB;
/// With `max_split_size_mb`, which is at least 10 MiB, nor up to this size, unless `max_non_split_rounding_mb` is larger.
const OVERSIZE: u64 = 10 * MIB;
const UNSPLIT_OVERSIZE: u64 = 20 * MIB;

/// What a block's report took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// As large as the block.
    Whole,
    /// These bytes.
    Part(u64),
    /// None that the block could be for. Requests below 512 bytes are not noted.
    Unknown,
}

/// The allocator rounds a request up on this thread.
#[inline(always)]
pub fn note(requested: u64, divisions: u64) {
    next_block().requested.set(requested);
    next_block().divisions.set(divisions);
}

/// The request that was noted last got no block.
pub fn forget() {
    next_block().requested.set(0);
}

/// The request of a block of this size that is reported now.
#[inline(always)]
pub fn of_block(size: u64) -> Request {
    let noted = next_block();
    let requested = noted.requested.take();
    if requested == size {
        return Request::Whole;
    }
    match requested != 0 && is_for(size, requested, noted.divisions.get()) {
        true => Request::Part(requested),
        false => Request::Unknown,
    }
}

/// Whether the allocator serves such a request from a block of this size: the request rounded up, or more by what it does
/// not split off.
#[inline(never)]
fn is_for(size: u64, requested: u64, divisions: u64) -> bool {
    let least = rounded(requested, divisions);
    let more = match least {
        0..=MIB => 0,
        OVERSIZE.. => UNSPLIT_OVERSIZE,
        _ => UNSPLIT,
    };
    size != MIN_BLOCK && (least..=least.saturating_add(more)).contains(&size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(requested: u64, divisions: u64, size: u64) -> Request {
        note(requested, divisions);
        of_block(size)
    }

    #[test]
    fn a_request_is_taken_once_and_on_its_thread() {
        assert_eq!(of_block(1024), Request::Unknown);
        note(1000, 0);
        std::thread::spawn(|| assert_eq!(of_block(1024), Request::Unknown)).join().unwrap();
        assert_eq!(of_block(1024), Request::Part(1000));
        assert_eq!(of_block(1024), Request::Unknown);
        note(1000, 0);
        forget();
        assert_eq!(of_block(1024), Request::Unknown);
        note(1000, 0);
        note(2048, 0);
        assert_eq!(of_block(2048), Request::Whole, "the last one");
    }

    #[test]
    fn the_size_is_one_that_the_allocator_gives() {
        assert_eq!(noted(513, 0, 1024), Request::Part(513));
        assert_eq!(noted(513, 0, 1536), Request::Unknown);
        assert_eq!(noted(1536, 0, 1024), Request::Unknown);
        assert_eq!(noted(512, 0, 512), Request::Whole);
        // Large blocks are handed out whole if at most 1 MiB would be left.
        assert_eq!(noted(MIB, 0, MIB + 512), Request::Unknown, "a small one");
        assert_eq!(noted(MIB + 1, 0, 2 * MIB + 512), Request::Part(MIB + 1));
        assert_eq!(noted(MIB + 1, 0, 2 * MIB + 1024), Request::Unknown);
        assert_eq!(noted(9 * MIB, 0, 11 * MIB), Request::Unknown);
        assert_eq!(noted(10 * MIB, 0, 30 * MIB), Request::Part(10 * MIB));
        assert_eq!(noted(10 * MIB, 0, 30 * MIB + 512), Request::Unknown);
    }

    #[test]
    fn the_divisions_are_those_of_the_request() {
        assert_eq!(noted(5 * MIB, 4, 5 * MIB), Request::Whole);
        assert_eq!(noted(9 * MIB / 2 + 1, 4, 5 * MIB), Request::Part(9 * MIB / 2 + 1));
        assert_eq!(noted(2049, 4, 2560), Request::Part(2049));
        assert_eq!(noted(2561, 4, 2560), Request::Unknown);
        assert_eq!(noted(2049, 0, 3072), Request::Unknown);
        assert_eq!(noted(u64::MAX, 4, u64::MAX), Request::Whole);
        assert_eq!(noted(u64::MAX - 1, u64::MAX, 512), Request::Unknown);
    }
}
