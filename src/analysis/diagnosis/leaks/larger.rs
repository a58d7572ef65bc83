//! An allocator of the program that keeps pieces, each larger than those before: a later request is larger than any
//! piece that is kept, so that a new one is allocated, and the smaller ones are never used again.
//!
//! It grows as a leak does. What tells them apart is that the sizes rise from piece to piece, and that a frame of the
//! stack names an allocator: a list of ever larger pieces that a program forgets is a leak.

use super::judge::JudgedLeak;
use super::pieces::LEAST;
use super::sorted::pool_of;
use super::verdict::LargerPieces;
use crate::analysis::{Level, StackClassifier};

/// Such a pool takes more than this many times the bytes of its largest pieces.
const TIMES: u64 = 2;

impl JudgedLeak {
    /// The verdict on growth, if it is that of such an allocator.
    pub(super) fn larger_pieces(&self, classifier: &StackClassifier) -> Option<LargerPieces> {
        let JudgedLeak { case, leak } = self;
        let (level, device) = case.at;
        let of_driver = level == Level::Driver && leak.driver.is_none();
        let stays = case.sums.highest_count * 10 >= case.sums.allocations * 9;
        if !of_driver || leak.count < LEAST || !stays {
            return None;
        }
        if !classifier.names_pool(case.stack) || pool_of(classifier, level, case.stack).is_some() {
            return None;
        }
        let exact_bytes = case.sums.pieces.exact()?;
        (leak.bytes > exact_bytes.saturating_mul(TIMES)).then(|| LargerPieces {
            device,
            bytes: leak.bytes,
            pieces: leak.count,
            exact_bytes,
            rate: leak.rate,
            stack: classifier.named(case.stack),
            library: classifier.library_at(case.stack, level),
        })
    }
}
