//! How a run ended, and what helps, at whatever moment it is looked at.

use testkit::trace_builder::{SECOND, TraceBuilder, cap_event};
use testkit::{MIB, Scratch};
use vramtrace_format::{DeviceId, Event, Kind, RefusedBy, Space, StackId};

/// PyTorch takes a segment, and gives up on a request of `size` under a cap of 64 MiB.
fn out_of_memory(size: u64) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.event(0, cap_event(0, 64 * MIB));
    t.alloc(SECOND, Kind::Device, 1 << 40, 20 * MIB);
    t.alloc(SECOND, Kind::Block, 1 << 40, 16 * MIB);
    t.refused(5 * SECOND, Kind::Device, size, RefusedBy::Cap, 64 * MIB);
    let (device, allocated, reserved) = (DeviceId(0), 16 * MIB, 20 * MIB);
    let failed = Event::CacheOom { device, size, allocated, reserved, stack: StackId(0) };
    t.event(5 * SECOND, failed);
    t.event(6 * SECOND, Event::Ended);
    t
}

#[test]
fn a_run_that_ended_out_of_memory_did_so_at_every_moment() {
    let scratch = Scratch::with(&out_of_memory(100 * MIB));
    for at in ["end", "2", "peak", "0.5"] {
        let report = scratch.text(&format!("report t.vtrace --at {at}"));
        assert!(report.contains("ended    torch.OutOfMemoryError"), "{at}: {report}");
        let document = scratch.json(&format!("report t.vtrace --at {at}"));
        assert_eq!(document["processes"][0]["ended"], "out_of_memory", "{at}");
    }
    let report = scratch.text("report t.vtrace --at 2");
    assert!(report.contains("of this moment, but for the curves: they are of the whole run"));
    // Of several processes as well.
    let ranks = Scratch::new();
    for rank in [0, 1] {
        let t = out_of_memory(100 * MIB).rank(rank, 2);
        t.write(&ranks.0.join(format!("{rank}.vtrace")));
    }
    let report = ranks.text("report . --at 2");
    let rows = report.lines().filter(|line| line.ends_with("  out of memory"));
    assert_eq!(rows.count(), 2, "{report}");
}

/// What is over the limit already is short too; nothing is advised where nothing fits, and nothing that no device serves.
#[test]
fn advice_is_what_helps() {
    let scratch = Scratch::with(&out_of_memory(100 * MIB));
    scratch.prints(
        "endings/advice",
        &["whatif t.vtrace", "whatif t.vtrace --capacity 24GiB", "oom t.vtrace"],
    );
    for (name, size) in [("a", 1 << 50), ("b", 20 << 40)] {
        out_of_memory(size).write(&scratch.0.join(format!("{name}.vtrace")));
    }
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, 200 * MIB);
    t.refused(2 * SECOND, Kind::Device, MIB, RefusedBy::Cap, 64 * MIB);
    t.event(3 * SECOND, Event::Ended);
    t.write(&scratch.0.join("c.vtrace"));
    scratch.prints(
        "endings/no-advice",
        &[
            "whatif a.vtrace --capacity 1024TiB",
            "whatif b.vtrace --capacity 1024TiB",
            "oom a.vtrace",
            "oom b.vtrace",
            "oom c.vtrace",
        ],
    );
}

#[test]
fn of_moments_with_the_highest_reserve_the_fullest_is_shown() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, 20 * MIB);
    t.alloc(SECOND, Kind::Block, 1 << 40, MIB);
    t.free(2 * SECOND, Space::Block, 1 << 40);
    t.alloc(3 * SECOND, Kind::Block, 1 << 40, 12 * MIB);
    t.free(4 * SECOND, Space::Block, 1 << 40);
    t.alloc(5 * SECOND, Kind::Block, 1 << 40, 3 * MIB);
    let document = Scratch::with(&t).text("frag t.vtrace --json");
    for part in ["\"at_s\": 3.0", "\"allocated_bytes\": 12582912"] {
        assert!(document.contains(part), "{document}");
    }
}
