//! `vramtrace holders`, and what `report` says of holders: their outputs are kept in `tests/data/kept/holders`.

use testkit::trace_builder::{SECOND, TraceBuilder, cached, training};
use testkit::{MIB, Scratch, flat};
use vramtrace_format::{
    Alloc, ContextId, Definition, DeviceId, Event, Kind, PoolId, Space, StackId,
};

/// Two lines of text a holder; each frame in order with `--full`, without the interpreter's own; documents sorted by
/// bytes, without imports and host memory.
#[test]
fn who_and_from_where() {
    Scratch::with(&training()).prints(
        "holders/training",
        &[
            "t.vtrace",
            "holders t.vtrace",
            "holders t.vtrace --at end --top 1",
            "holders t.vtrace --at 2.5",
            "holders t.vtrace --full --by stack",
            "holders t.vtrace --json | schema at holders.*.bytes holders.*.count holders.*.stacks",
            "holders t.vtrace --json | holders.0.device holders.0.library holders.0.lead",
            "holders t.vtrace --json | holders.0.caller holders.0.frames.2",
            "holders t.vtrace --json --at 1.5 | at",
            "holders t.vtrace --json --by function | holders.*.bytes holders.*.stacks",
            "holders t.vtrace --at noon",
            "holders t.vtrace --level driver --top 1",
            "holders t.vtrace --level tensor",
            "holders t.vtrace --at peak-allocated",
            "report t.vtrace --full",
            "report t.vtrace --json --top 2 | processes.0.devices.0.holders.at_peak.*.bytes",
            "report t.vtrace --json --top 2 | processes.0.devices.0.holders.live.0.library",
        ],
    );
}

#[test]
fn who_calls_the_programs_own_function_for_memory_is_distinguished() {
    let mut t = TraceBuilder::new();
    for (id, name) in [(1, "take"), (2, "weights"), (3, "cache"), (4, "main")] {
        t.code(id, name, "/home/me/serve.py", 10 * id as i32);
    }
    t.stack(1, &[], &[1, 2, 4], &[]);
    t.stack(2, &[], &[1, 3, 4], &[]);
    // Through itself again: that is no other caller.
    t.stack(3, &[], &[1, 1, 3, 4], &[]);
    for (key, stack) in [(1, 1), (2, 2), (3, 3)] {
        t.alloc_by(SECOND * key, Kind::Device, key << 40, 8 * key * MIB, stack);
    }
    let commands = ["holders t.vtrace", "holders t.vtrace --by function"];
    Scratch::with(&t).prints("holders/callers", &commands);
}

#[test]
fn memory_besides_the_allocations_is_listed() {
    let mut t = TraceBuilder::new();
    t.stack(1, &[], &[], &[]);
    t.alloc_by(SECOND, Kind::Pool, 1 << 40, 8 * MIB, 1);
    t.event(2 * SECOND, Event::PoolState { pool: PoolId(1), reserved: 32 * MIB, used: 8 * MIB });
    t.event(3 * SECOND, Event::Ended);
    Scratch::with(&t).prints("holders/pool", &["holders t.vtrace", "report --full t.vtrace"]);
}

#[test]
fn each_device_has_its_own_peak() {
    let mut t = TraceBuilder::new();
    t.code(1, "early", "/home/me/a.py", 1);
    t.code(2, "late", "/home/me/a.py", 2);
    t.stack(1, &[], &[1], &[]);
    t.stack(2, &[], &[2], &[]);
    for (time, device, stack) in [(1, 0, 1), (4, 1, 2)] {
        let alloc = t.allocation(Kind::Device, device, (time << 40) + 1, 8 * MIB);
        t.event(time * SECOND, Event::Alloc(Alloc { stack: StackId(stack), ..alloc }));
    }
    t.free(2 * SECOND, Space::Device, (1 << 40) + 1);
    t.event(5 * SECOND, Event::Ended);
    let commands =
        ["holders t.vtrace", "holders t.vtrace --at end", "holders t.vtrace --json | at"];
    Scratch::with(&t).prints("holders/devices", &commands);
}

#[test]
fn what_has_no_stack_is_a_holder_or_said_so() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    Scratch::with(&t).prints(
        "holders/without-stacks",
        &[
            "holders t.vtrace",
            "report t.vtrace",
            "report t.vtrace --json | processes.0.devices.0.holders",
        ],
    );
    let mut t = training();
    t.alloc(4 * SECOND + 1000, Kind::Device, 9 << 40, 16 * MIB);
    t.alloc_by(4 * SECOND + 2000, Kind::Device, 10 << 40, 8 * MIB, 99);
    let scratch = Scratch::with(&t);
    scratch.contradicts();
    scratch.prints("holders/unreported-stacks", &["holders t.vtrace --at end"]);
}

#[test]
fn unused_contexts_and_pools_that_hide_their_users_are_reported() {
    let mut t = training();
    t.code(9, "worker", "/home/me/loader.py", 8);
    t.module("/v/site-packages/jaxlib/xla_extension.so", 0x6000_0000);
    t.stack(9, &[0x1000_0010], &[9], &[]);
    t.stack(10, &[0x1000_0010, 0x6000_0010], &[3], &[]);
    let (context, device) = (ContextId(7), DeviceId(0));
    t.define(Definition::Context { id: context, device, handle: 0xc7, primary: false });
    t.event(6 * SECOND, Event::ContextCreated { context, device, stack: StackId(9) });
    t.alloc_by(6 * SECOND, Kind::Device, 11 << 40, 512 * MIB, 10);
    let shown = Scratch::with(&t).text("report t.vtrace --full");
    let flat = flat(&shown);
    let unused = "context 7 never held an allocation: made at 6.000 s by loader.py:8 worker";
    assert!(flat.contains(unused) && !flat.contains("context 1 never"), "{shown}");
    assert!(shown.contains("XLA_PYTHON_CLIENT_ALLOCATOR=platform"), "{shown}");
}

/// What is free in the cache is a holder with a name of its own, apart from what PyTorch uses.
#[test]
fn blocks_stand_in_place_of_their_segments() {
    Scratch::with(&cached()).prints(
        "holders/cache",
        &[
            "holders t.vtrace",
            "holders t.vtrace --level driver",
            "holders t.vtrace --by library",
            "holders t.vtrace --at peak-allocated --json | level at holders.*.bytes holders.*.count",
            "holders t.vtrace --at peak-allocated --json | holders.*.name",
            "holders t.vtrace --level driver --json | level holders.*.bytes",
        ],
    );
}
