//! The streams and private pools of PyTorch's blocks in a trace.

use std::collections::HashMap;

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup};
use vramtrace_format::{BLOCK_STREAMS, Definition, Event, Space, TraceReader};

fn setup(library: &str, mode: &str) -> Setup {
    let library = libraries().join(library);
    Setup::simulated().devices("2x24GiB").arg(library.display()).arg(mode).contradicts()
}

/// (size in units of 512 B, stream, pool) of each block in order; and whether the trace says that it has streams.
fn blocks(run: &Run) -> (Vec<(u64, u64, u16)>, bool) {
    let bytes = testkit::trace_bytes(&run.only_trace());
    let reader = TraceReader::new(&bytes).unwrap();
    let (mut sites, mut noted) = (HashMap::new(), false);
    for definition in reader.definitions() {
        match definition {
            Definition::Site { id, stream, pool, .. } => drop(sites.insert(id, (stream, pool.0))),
            Definition::Setting { name, .. } => noted |= name == BLOCK_STREAMS,
            _ => {}
        }
    }
    let block = |event: Event| match event {
        Event::Alloc(alloc) if alloc.space == Space::Block => {
            let (stream, pool) = sites[&alloc.site];
            Some((alloc.size / 512, stream, pool))
        }
        _ => None,
    };
    (reader.events().filter_map(|stamped| block(stamped.event)).collect(), noted)
}

#[test]
fn blocks_have_the_stream_of_their_thread_and_the_pool_of_their_capture() {
    let program = Program::c("torch");
    let bare = program.run(setup("libc10_cuda-streams.so", "streams")).ok();
    let ours = program.run(setup("libc10_cuda-streams.so", "streams").preload()).ok();
    assert_eq!(bare.stdout, ours.stdout);
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
