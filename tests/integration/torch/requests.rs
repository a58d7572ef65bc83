//! The requested bytes of PyTorch's blocks in a trace.

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup};
use vramtrace_format::{Alloc, BLOCK_REQUESTS};

use super::recorded::{Recorded, setup};

/// PyTorch from 2.10 on, and before.
const LIBRARIES: [&str; 2] = ["libc10_cuda-requests.so", "libc10_cuda-requests-2.9.so"];

/// The blocks in order; and whether the trace says that it has requests.
fn blocks(run: &Run) -> (Vec<Alloc>, bool) {
    let recorded = Recorded::by(run);
    (recorded.blocks().collect(), recorded.has_setting(BLOCK_REQUESTS))
}

#[test]
fn a_block_has_the_request_of_its_own_call() {
    for library in LIBRARIES {
        let ours = Program::c("torch").same_as_bare(setup(library, "requests"));
        assert!(ours.stdout.contains("requests: divisions 8\n"), "{}", ours.stdout);
        let (found, noted) = blocks(&ours);
        assert!(noted, "{library}");
        let expected = [
            (512, None),
            (1024, Some(1000)),
            (2048, None),
            ((2 << 20) + 4096, Some((2 << 20) - 100)),
            // Not the request before, for which another size is right.
            (1536, Some(0)),
            // Not the refused one, of which the size would be right.
            (1024, Some(0)),
            (512, None),
            // The request was for a block that did not come, and is used up.
            (5120, Some(0)),
            (2560, Some(2049)),
            (2048, None),
            (6144, Some(6000)),
            (3072, Some(3000)),
        ];
        let requests = found.iter().map(|block| (block.size, block.requested));
        assert_eq!(requests.collect::<Vec<_>>(), expected, "{library}");
    }
}

#[test]
fn threads_do_not_mix_their_requests() {
    for library in LIBRARIES {
        let setup = setup(library, "requests-of-threads").arg(5000).preload();
        let run = Program::c("torch").run(setup).ok();
        assert!(run.stdout.contains("requests: 80000 blocks\n"), "{}", run.stdout);
        let (found, noted) = blocks(&run);
        assert_eq!((found.len(), noted), (40_000, true));
        for block in found {
            let thread = (block.key - 0x7000_0000_0000) >> 36;
            let requested = (thread > 0).then(|| block.size - thread);
            assert_eq!(block.requested, requested, "{block:?}");
        }
    }
}

/// A PyTorch without the function, and one whose calls do not go through the linker: the trace has sizes alone, and claims
/// no more.
#[test]
fn where_the_call_is_not_seen_no_request_is_claimed() {
    for (library, mode) in
        [("libc10_cuda.so", "blocks"), ("libc10_cuda-requests-bound.so", "requests")]
    {
        let run = Program::c("torch").run(setup(library, mode).preload()).ok();
        let (found, noted) = blocks(&run);
        assert!(!noted, "{library}");
        assert!(!found.is_empty() && found.iter().all(|block| block.requested.is_none()));
    }
}

/// No address in the caller's tables leads to the library then: it is found by its name.
#[test]
fn a_caller_of_that_function_alone_has_its_answer() {
    let code = "import ctypes, sys\n\
        c10 = ctypes.CDLL(sys.argv[1] + '/libc10.so')\n\
        ctypes.c_size_t.in_dll(c10, 'asked_divisions').value = 4\n\
        print(ctypes.CDLL(sys.argv[1] + '/libdivisions.so').divisions(ctypes.c_size_t(1000)))\n";
    let alone = libraries().join("alone");
    let setup = Setup::simulated().arg("-c").arg(code).arg(alone.display());
    let ours = Program("python3".into()).same_as_bare(setup);
    assert_eq!((&*ours.stdout, &*ours.stderr), ("4\n", ""));
}

/// Nothing reads the requests of samples, so the calls pass. The program has its answers.
#[test]
fn where_samples_are_recorded_requests_are_not() {
    for library in LIBRARIES {
        for (mode, count) in [("requests", 0), ("requests-of-threads", 5000)] {
            let program = Program::c("torch");
            let bare = program.run(setup(library, mode).arg(count)).ok();
            let sampled = setup(library, mode).arg(count).env("VRAMTRACE_RECORD", "sampled");
            let ours = program.run(sampled.preload()).ok();
            assert_eq!(bare.stdout, ours.stdout);
            let (found, noted) = blocks(&ours);
            assert!(!noted, "{library} {mode}");
            assert!(found.iter().all(|block| block.requested.is_none()), "{library} {mode}");
        }
    }
}
