//! How fast a trace is read: events a second, and the whole `vramtrace report`.
//! `cargo bench --bench report [EVENTS]`, default 1,000,000.

#[path = "../tests/support/trace.rs"]
mod trace;

use std::process::Command;
use std::time::Instant;

use trace::TraceBuilder;
use vramtrace_format::physical::MIB;
use vramtrace_format::{Event, Kind, Space, TraceReader};
use vramtrace_reader::trace::Trace;

/// Live at once: what a framework's cache or a text generation keeps.
const LIVE: u64 = 20_000;

fn main() {
    let events: u64 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(1_000_000);
    let mut builder = TraceBuilder::new();
    for n in 0..events / 2 {
        let key = |n: u64| (1 << 40) + n % (2 * LIVE) * 1024;
        builder.alloc(n * 2_000, Kind::Device, key(n), 513 + n % 500);
        if n >= LIVE {
            builder.free(n * 2_000 + 1_000, Space::Device, key(n - LIVE));
        } else {
            builder.alloc(n * 2_000 + 1_000, Kind::Pool, (2 << 40) + n * MIB, MIB);
        }
    }
    builder.event(events * 1_000, Event::Ended);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bench.vtrace");
    builder.write(&path);
    let size = std::fs::metadata(&path).expect("written").len();
    println!("{events} events, {:.1} bytes each, {LIVE} live", size as f64 / events as f64);

    let bytes = std::fs::read(&path).expect("readable");
    timed("decode", events, || TraceReader::new(&bytes).expect("a trace").events().count() as u64);
    timed("replay", events, || {
        let trace = Trace::open(&path).expect("a trace");
        trace.replay(&trace.definitions().0, &mut ()).state.events
    });
    timed("vramtrace report", events, || {
        let mut report = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        let output = report.arg("report").arg(&path).output().expect("runs");
        assert!(output.status.success());
        events
    });
}

/// The best of five.
fn timed(what: &str, events: u64, mut work: impl FnMut() -> u64) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        assert!(work() >= events);
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{what:<18} {:>8.1} ms  {:>6.1} M events/s", best * 1e3, events as f64 / best / 1e6);
}
