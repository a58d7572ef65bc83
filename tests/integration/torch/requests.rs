//! The requested bytes of PyTorch's blocks in a trace.

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup};
use vramtrace_format::{Alloc, BLOCK_REQUESTS, Definition, Event, Space, TraceReader};

/// PyTorch from 2.10 on, and before.
const LIBRARIES: [&str; 2] = ["libc10_cuda-requests.so", "libc10_cuda-requests-2.9.so"];

fn setup(library: &str, mode: &str) -> Setup {
    let library = libraries().join(library);
    Setup::simulated().devices("2x24GiB").arg(library.display()).arg(mode).contradicts()
}

/// The blocks in order; and whether the trace says that it has requests.
fn blocks(run: &Run) -> (Vec<Alloc>, bool) {
    let bytes = testkit::trace_bytes(&run.only_trace());
    let reader = TraceReader::new(&bytes).unwrap();
    let noted = |definition: Definition| matches!(definition, Definition::Setting { name, .. } if name == BLOCK_REQUESTS);
    let noted = reader.definitions().any(noted);
    let block = |event: Event| match event {
        Event::Alloc(alloc) => (alloc.space == Space::Block).then_some(alloc),
        _ => None,
    };
    (reader.events().filter_map(|stamped| block(stamped.event)).collect(), noted)
}

fn requests(run: &Run) -> Vec<(u64, Option<u64>)> {
    blocks(run).0.into_iter().map(|block| (block.size, block.requested)).collect()
}

#[test]
fn a_block_has_the_request_of_its_own_call() {
    let program = Program::c("torch");
    for library in LIBRARIES {
        let bare = program.run(setup(library, "requests")).ok();
        let ours = program.run(setup(library, "requests").preload()).ok();
        assert_eq!(bare.stdout, ours.stdout);
        assert!(ours.stdout.contains("requests: divisions 8\n"), "{}", ours.stdout);
        assert!(blocks(&ours).1, "{library}");
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
        assert_eq!(requests(&ours), expected, "{library}");
    }
}

#[test]
fn threads_do_not_mix_their_requests() {
    for library in LIBRARIES {
        let run = Program::c("torch");
        let run = run.run(setup(library, "requests-of-threads").arg(5000).preload()).ok();
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
    let setup = || Setup::simulated().arg("-c").arg(code).arg(alone.display());
    let python = Program("python3".into());
    let (bare, ours) = (python.run(setup()).ok(), python.run(setup().preload()).ok());
    assert_eq!((&*bare.stdout, &*ours.stdout), ("4\n", "4\n"), "{}", ours.stderr);
    assert_eq!(ours.stderr, "");
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
