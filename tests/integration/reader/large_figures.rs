//! Figures and times at the ends of their range: a trace may say anything, and no command ends by a panic.

use testkit::Scratch;
use testkit::trace_builder::{SECOND, TraceBuilder};
use vramtrace_format::{Definition, DeviceId, Event, Kind, Mark, RefusedBy, Space, StackId};

use super::READING;

const OTHERS: [Kind; 6] =
    [Kind::Pool, Kind::Vmm, Kind::Managed, Kind::Array, Kind::HostPinned, Kind::Imported];
const DAY: u64 = 86_400 * SECOND;

/// Calls of months, with sizes of 2^63 and more, at distinct addresses and at the same ones.
fn extreme(last: u64) -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    for (id, text) in [(1, "step"), (2, "request")] {
        builder.define(Definition::Text { id, text: text.into() });
    }
    for (id, name) in [(1, "forward"), (2, "main"), (3, "cache")] {
        builder.code(id, name, "/work/model.py", 3 * id as i32);
    }
    builder.stack(1, &[], &[1, 2], &[]);
    builder.stack(2, &[], &[3, 2], &[]);
    builder.context(1, 0);
    let mut now = 1000;
    for step in 0..40u64 {
        now += last / 50;
        builder.event(now, Event::Mark { name: 1, mark: Mark::Push });
        builder.event(now, Event::Mark { name: 2, mark: Mark::Start });
        for (part, size) in [1 << 63, u64::MAX, u64::MAX - 1, 5 << 60].into_iter().enumerate() {
            let key = (step << 20) + ((part as u64) << 10) + 1;
            builder.alloc_by(now + part as u64, Kind::Device, key, size, 1 + part as u32 % 2);
            for (nth, kind) in OTHERS.into_iter().enumerate() {
                builder.alloc_by(now, kind, key + 77 * (1 + nth as u64), size, 2);
            }
            builder.alloc_by(now + 5, Kind::Block, key, size / 2, 1);
            builder.refused(now + 6, Kind::Device, size, RefusedBy::Cap, u64::MAX);
            if step % 3 == 0 {
                builder.free(now + 10, Space::Device, key);
            }
        }
        let (device, reserved, stack) = (DeviceId(0), u64::MAX, StackId(1));
        builder.event(now, Event::CacheState { device, allocated: reserved, reserved });
        let (size, allocated) = (u64::MAX, u64::MAX - 5);
        builder.event(now, Event::CacheOom { device, size, allocated, reserved, stack });
        builder.sample(now, Some(u64::MAX - step), u64::MAX);
        builder.event(now + last / 100, Event::Mark { name: 0, mark: Mark::Pop });
    }
    builder.event(last, Event::Ended);
    builder
}

#[test]
fn no_figure_and_no_time_ends_a_command() {
    let scratch = Scratch::new();
    extreme(200 * DAY).write(&scratch.0.join("a.vtrace"));
    extreme(u64::MAX >> 1).write(&scratch.0.join("b.vtrace"));
    scratch.contradicts();
    let mut panics = Vec::new();
    let more =
        ["holders --json --at peak", "verify", "diff b.vtrace", "diff --format json b.vtrace"];
    for words in READING.into_iter().chain(more) {
        for trace in ["a.vtrace", "b.vtrace"] {
            panics.extend(panic_of(&scratch, &format!("{words} {trace}")));
        }
    }
    assert!(panics.is_empty(), "{}", panics.join(""));
}

/// What a command prints when it ends by a panic.
fn panic_of(scratch: &Scratch, words: &str) -> Option<String> {
    let output = scratch.run(words);
    let printed = String::from_utf8_lossy(&output.stderr);
    let ends = matches!(output.status.code(), Some(0..=2)) && !printed.contains("panicked");
    (!ends).then(|| format!("{words}: {}\n{printed}", output.status))
}

#[test]
fn no_figure_ends_an_import() {
    let scratch = Scratch::new();
    let row = |at: u64, action: &str, place: u64, size: u64| {
        format!("1,{at}.5,{action},0x{place:x},{size},0\n")
    };
    let mut log = "Thread,Time,Action,Pointer,Size,Stream\n".to_string();
    for n in 0..6u64 {
        log += &row(n << 31, "allocate", 1 + n, u64::MAX / 2);
        log += &row(n << 31, "allocate failure", 0, u64::MAX);
    }
    std::fs::write(scratch.0.join("log.csv"), log).unwrap();
    for words in ["import log.csv -o log.vtrace", "report log.vtrace", "leaks log.vtrace"] {
        assert_eq!(panic_of(&scratch, words), None);
    }
}
