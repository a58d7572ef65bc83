//! An allocator of the program that keeps pieces, each larger than those before: a later request is larger than any
//! piece that is kept, so that a new one is allocated, and the smaller ones are never used again.
//!
//! It grows as a leak does. What tells them apart is that the sizes rise from piece to piece, and that a frame of the
//! stack names an allocator: a list of ever larger pieces that a program forgets is a leak.

use super::judge::JudgedLeak;
use super::pieces::LEAST;
use super::verdict::LargerPieces;
use crate::analysis::{Level, StackClassifier};

/// Such a pool takes more than this many times the bytes of its largest pieces.
const TIMES: u64 = 2;

impl JudgedLeak {
    /// The verdict on growth, if it is that of such an allocator.
    pub(super) fn larger_pieces(&self, classifier: &StackClassifier) -> Option<LargerPieces> {
        let JudgedLeak { at: (level, device), case, leak } = self;
        let stays = case.highest_count * 10 >= case.allocations * 9;
        let of_driver = *level == Level::Driver && leak.driver.is_none();
        if !of_driver || leak.count < LEAST || !stays || !classifier.names_pool(leak.stack) {
            return None;
        }
        let exact_bytes = case.pieces.exact()?;
        (leak.bytes > exact_bytes.saturating_mul(TIMES)).then_some(LargerPieces {
            device: *device,
            stack: leak.stack,
            bytes: leak.bytes,
            pieces: leak.count,
            exact_bytes,
            bytes_per_second: leak.rate(),
        })
    }
}
