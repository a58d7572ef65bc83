//! The streams and private pools of PyTorch's blocks in a trace.

use testkit::{Program, Run};
use vramtrace_format::BLOCK_STREAMS;

use super::recorded::{Recorded, setup};

/// (size in units of 512 B, stream, pool) of each block in order; and whether the trace says that it has streams.
fn blocks(run: &Run) -> (Vec<(u64, u64, u16)>, bool) {
    let recorded = Recorded::by(run);
    let rows = recorded.blocks().map(|block| {
        let site = &recorded.sites[&block.site];
        (block.size / 512, site.stream, site.pool)
    });
    (rows.collect(), recorded.has_setting(BLOCK_STREAMS))
}

#[test]
fn blocks_have_the_stream_of_their_thread_and_the_pool_of_their_capture() {
    let ours = Program::c("torch").same_as_bare(setup("libc10_cuda-streams.so", "streams"));
    assert!(ours.stdout.contains("streams 35 67\n"), "PyTorch has them too: {}", ours.stdout);
    let (found, noted) = blocks(&ours);
    assert!(noted);
    let expected = [
        (1, 0, 0),
        (2, 0x23, 0),
        (3, 0x43, 0),
        (4, 0x23, 0),
        (20, 0, 0),
        (5, 0, 0),
        (6, 0, 0),
        (7, 0x63, 1),
        (9, 0, 0),
        (6, 0, 0),
        (8, 0x63, 2),
        (9, 0, 0),
    ];
    assert_eq!(found, expected);
}

/// A PyTorch without the function: what its blocks' streams are is not known, and the trace does not claim it.
#[test]
fn without_the_function_no_stream_is_claimed() {
    let run = Program::c("torch").run(setup("libc10_cuda.so", "blocks").preload()).ok();
    let (found, noted) = blocks(&run);
    assert!(!noted);
    assert!(found.iter().all(|(_, stream, pool)| (*stream, *pool) == (0, 0)), "{found:?}");
}
