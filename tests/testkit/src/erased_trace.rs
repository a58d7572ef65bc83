//! A trace whose first 18 s were erased, and what the recorder's history says of them.

use vramtrace_format::physical::MIB;
use vramtrace_format::{
    Alloc, Counters, Definition, DeviceId, Event, HistoryBin, HistoryDevice, HistoryLevel,
    HistoryPhase, Kind, Listed, Purpose, Space, StackId,
};

use crate::trace_builder::{SECOND, TraceBuilder, counters};

const DEVICE: DeviceId = DeviceId(0);
const EPOCH: u32 = 1;
const FORWARD: u32 = 2;
const LOADER: u32 = 3;

/// Names, highest MiB, when, and for how long, in seconds.
type Row<'r> = (&'r [u32], u64, u64, u64);

fn phase((names, mib, at, open): Row) -> Event {
    let name = |at: usize| names.get(at).copied().unwrap_or(0);
    Event::HistoryPhase(HistoryPhase {
        device: DEVICE,
        depth: names.len() as u8,
        first: name(0),
        second: name(1),
        third: name(2),
        fourth: name(3),
        peak: mib * MIB,
        at_ns: at * SECOND,
        open_ns: open * SECOND,
    })
}

/// The peak of [`without_history`] was in `epoch > forward`, while another thread was in `loader`. Samples tell of up to 10 s in
/// bins of 5 s, then in one of 8 s.
pub fn erased() -> TraceBuilder {
    let mut t = without_history();
    for (id, text) in [(EPOCH, "epoch"), (FORWARD, "forward"), (LOADER, "loader")] {
        t.define(Definition::Text { id, text: text.into() });
    }
    history(&mut t);
    ended(t)
}

/// 160 MiB are live at 18 s, when the events begin: 30 MiB were at 2 s. The peak of 200 MiB was at 12 s.
pub fn without_history() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.header.max_bytes = Some(16 * MIB);
    t.lose();
    t.stack(1, &[], &[], &[]);
    let (space, size, stack) = (Space::Device, 32 * MIB, StackId(1));
    let site = t.site(Kind::Device, 0);
    t.event(18 * SECOND, Event::StateBegin { id: 3, what: Purpose::Checkpoint, cache_ooms: 0 });
    for n in 1..=5u64 {
        let alloc = Alloc { site, space, key: n << 40, size, stack, requested: None };
        let listed = Listed::new(3, n * SECOND, &Event::Alloc(alloc));
        t.event(18 * SECOND, Event::StateEvent(listed));
    }
    let highest = Counters { peak: 200 * MIB, peak_time_ns: 12 * SECOND, ..counters(0) };
    t.event(18 * SECOND, Event::StateEvent(Listed::new(3, 0, &Event::Counters(highest))));
    t.event(18 * SECOND, Event::StateEnd { id: 3, cut: false });
    t
}

/// A free, and the end.
pub fn ended(mut t: TraceBuilder) -> TraceBuilder {
    t.free(20 * SECOND, Space::Device, 1 << 40);
    t.event(25 * SECOND, Event::Ended);
    t
}

fn history(t: &mut TraceBuilder) {
    let bins: [(u64, u64, u64, &[Row]); 3] = [
        (0, 5, 96, &[(&[EPOCH, FORWARD], 96, 2, 1), (&[EPOCH], 96, 3, 4), (&[], 0, 0, 1)]),
        (5, 10, 128, &[(&[EPOCH, FORWARD], 128, 6, 2), (&[EPOCH], 120, 8, 2)]),
        (
            10,
            18,
            200,
            &[
                (&[EPOCH, FORWARD], 200, 12, 3),
                (&[LOADER], 200, 12, 2),
                (&[EPOCH], 200, 15, 2),
                (&[], 160, 17, 1),
            ],
        ),
    ];
    let mut all = Vec::new();
    for (from, until, mib, rows) in bins {
        let (from_ns, until_ns) = (from * SECOND, until * SECOND);
        all.push(Event::HistoryBin(HistoryBin { tier: 0, samples: 5, from_ns, until_ns }));
        let peak = mib * MIB;
        let figures =
            HistoryDevice { device: DEVICE, peak, refused_by_cap: 0, refused_by_driver: 0 };
        all.push(Event::HistoryDevice(figures));
        all.push(Event::HistoryLevel(HistoryLevel {
            device: DEVICE,
            of_framework: false,
            lowest: peak / 2,
            highest: peak,
            allocations: until,
            frees: 0,
            other_stacks: 0,
            other_lowest: 0,
            other_highest: 0,
            other_grew: 0,
        }));
        all.extend(rows.iter().map(|row| phase(*row)));
    }
    let id = 1;
    t.event(19 * SECOND, Event::StateBegin { id, what: Purpose::History, cache_ooms: 0 });
    all.iter().for_each(|event| t.event(19 * SECOND, *event));
    t.event(19 * SECOND, Event::StateEnd { id, cut: false });
}
