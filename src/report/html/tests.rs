//! Tests of the columns; tests/integration/reader/page.rs has those of the page.

use vramtrace_format::{Kind, Space};

use super::recorder::Recorder;
use crate::analysis::roles::RoleFinder;
use crate::replay::Until;
use crate::symbols::Symbols;
use crate::testing::{MS, TraceBuilder};
use crate::trace::open;

/// Small allocations are in the sums, and not listed one by one.
#[test]
fn small_blocks_are_lumped_where_there_are_too_many() {
    let mut builder = TraceBuilder::new();
    for n in 0..1000u64 {
        builder.alloc(n * MS, Kind::Device, (1 << 40) + n * (1 << 30), 4096);
        builder.alloc(n * MS, Kind::Device, (1 << 50) + n * (1 << 30), 4 << 20);
        if n % 2 == 0 {
            builder.free(n * MS, Space::Device, (1 << 40) + n * (1 << 30));
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    let trace = open(file.path()).unwrap();
    let definitions = trace.definitions().0;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let roles = RoleFinder::new(&trace, &definitions, &symbols);
    let read = |below| {
        let mut recorder = Recorder::new(&definitions, &roles, below, Vec::new(), Vec::new());
        trace.replay_until(&definitions, Until::End, &mut recorder, &mut |_, _| {});
        recorder.finish().unwrap()
    };
    let (all, whole) = read(0);
    let (large, short) = read(1 << 20);
    assert_eq!([all.memory, all.lumped], [2000, 0]);
    assert_eq!([large.memory, large.lumped], [1000, 1000]);
    assert!(short.len() < whole.len(), "{} of {}", short.len(), whole.len());
}
