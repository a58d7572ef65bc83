//! Exports of traces with blocks of PyTorch's cache.

use testkit::Scratch;
use testkit::trace_builder::cached;

/// The free cache is apart; at the driver's level there are no blocks.
#[test]
fn stacks_and_rows_have_blocks_and_the_free_cache() {
    Scratch::with(&cached()).prints(
        "blocks-export",
        &[
            "export t.vtrace --format folded -o -",
            "export t.vtrace --format csv -o -",
            "export t.vtrace --format csv --level driver -o -",
        ],
    );
}
