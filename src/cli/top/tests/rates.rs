//! Rates of growing processes.

use testkit::trace_builder::TraceBuilder;
use vramtrace_format::Kind;

use super::super::look::{GrowthVerdict, Judged};
use super::super::state::State;
use super::{MIB, has, look, screen, three};
use crate::live_processes::followed::Growth;

#[test]
fn a_rate_stands_only_where_a_line_grows() {
    let mut state = State::default();
    let mut seen = look(three());
    let growing = Growth { bytes_per_s: 2.0 * MIB as f64, full_in_s: Some(7_000.0) };
    seen.verdicts = [(4711, Some(growing)), (4712, None)].into();
    state.update(&seen);
    let lines = screen(&state, 80);
    has(
        &lines,
        &[
            "4711 ann 13.00 GiB 12.00 GiB 16.00 GiB 120 116.7 min train",
            "4712 ann 21.00 GiB 20.00 GiB - - - vllm",
            // Not judged yet.
            "99 ann 1.50 GiB 512.00 MiB 1.00 GiB ? ? hpl",
        ],
    );
    state.open(4711);
    has(&screen(&state, 80), &["MiB/min 120 full in 116.7 min"]);
}

#[test]
fn the_rate_of_a_growing_trace_is_that_of_its_leak() {
    let second = 1_000_000_000;
    let mut builder = TraceBuilder::new();
    builder.alloc_by(second, Kind::Device, 1 << 50, 512 * MIB, 1);
    let mut judged = Judged::default();
    let file = tempfile::NamedTempFile::new().unwrap();
    let of = |judged: &mut Judged| -> GrowthVerdict {
        judged.read([(1, file.path().into())].into())[&1]
    };
    let mut rates = Vec::new();
    for n in 0..900u64 {
        let at = second + n * second / 10;
        builder.alloc_by(at, Kind::Device, (1 << 40) + n * MIB, MIB, 2);
        if n % 300 == 299 {
            builder.write(file.path());
            rates.push(of(&mut judged));
        }
    }
    for rate in rates {
        let growth: Growth = rate.expect("it grows");
        assert!((9.0..11.0).contains(&(growth.bytes_per_s / MIB as f64)), "{growth:?}");
    }
    // Memory that stays is none.
    let mut builder = TraceBuilder::new();
    builder.alloc_by(second, Kind::Device, 1 << 50, 512 * MIB, 1);
    builder.alloc_by(30 * second, Kind::Device, 1 << 51, MIB, 2);
    builder.write(file.path());
    assert_eq!(of(&mut Judged::default()), None);
}
