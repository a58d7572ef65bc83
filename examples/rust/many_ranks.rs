//! Writes the traces of a run of many ranks, as the recorder would, to measure the time of
//! `vramtrace report`.
//!
//! ```text
//! cargo run --release --example many_ranks -- DIRECTORY [RANKS [EVENTS [KILLED [REFUSED]]]]
//! ```
//!
//! There are eight ranks per host, each with one card. Rank 17 holds 50 % more than the others. The last
//! KILLED ranks were killed, and have no summary. Of REFUSED the last ranks ran out of memory, the last one first; then
//! all ranks leak 2 MiB in each step, at one line.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use testkit::trace_builder::TraceBuilder;
use vramtrace_format::physical::MIB;
use vramtrace_format::summary::{AtPeak, Change, keep_largest};
use vramtrace_format::{
    Alloc, Counters, Definition, DeviceId, Event, Kind, Listed, Purpose, Refused, RefusedBy, Space,
    StackId, StateHolder, SummaryMoment,
};

const STACKS: u32 = 200;
/// The stack that leaks.
const LEAKING: u32 = 77;
const DEVICE: DeviceId = DeviceId(0);
/// Blocks that are allocated in a step.
const STEP: u64 = 512;
/// Events of a step: of these blocks, and of a segment.
const STEP_EVENTS: u64 = 2 * STEP + 2;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: many_ranks DIRECTORY [RANKS [EVENTS [KILLED [REFUSED]]]]");
        std::process::exit(2);
    };
    let mut number = |default: u64| match arguments.next() {
        None => default,
        Some(text) => text.parse().unwrap_or_else(|_| {
            eprintln!("many_ranks: '{text}' is not a whole number");
            std::process::exit(2);
        }),
    };
    let (ranks, events, killed) = (number(1024), number(200_000), number(0));
    let refused = number(0);
    std::fs::create_dir_all(&directory)?;
    for rank in 0..ranks {
        let path = Path::new(&directory).join(format!("vramtrace.rank{rank}.vtrace"));
        // How many ranks before this one run out of memory later than it; 0: it does not.
        let out_of_memory = (rank + refused + 1).saturating_sub(ranks);
        let rank = Rank {
            rank,
            ranks,
            events: events.saturating_sub(out_of_memory * STEP_EVENTS),
            killed: rank + killed >= ranks,
            leaks: refused > 0,
            out_of_memory: out_of_memory > 0,
        };
        File::create_new(path)?.write_all(&rank.trace().bytes())?;
    }
    Ok(())
}

struct Rank {
    rank: u64,
    ranks: u64,
    events: u64,
    killed: bool,
    leaks: bool,
    out_of_memory: bool,
}

/// A device's figures, as the ledger of the recorder keeps them.
#[derive(Default)]
struct Ledger {
    counters: Counters,
    epoch: u32,
    awaits_block: bool,
    stacks: HashMap<(StackId, bool), AtPeak>,
}

impl Ledger {
    fn change(&mut self, alloc: &Alloc, came: bool, time_ns: u64) {
        let of_framework = alloc.space == Space::Block;
        let joins_peak = came && of_framework && std::mem::take(&mut self.awaits_block);
        let (bytes, number, epoch) = (alloc.size, 1, self.epoch);
        let change = Change { bytes, number, came, epoch, joins_peak };
        self.stacks.entry((alloc.stack, of_framework)).or_default().apply(change);
        if of_framework {
            return;
        }
        let all = &mut self.counters;
        if came {
            all.live += alloc.size;
            all.live_allocations += 1;
            all.allocations += 1;
        } else {
            all.live -= alloc.size;
            all.live_allocations -= 1;
            all.frees += 1;
        }
        if all.live > all.peak {
            (all.peak, all.peak_time_ns) = (all.live, time_ns);
            self.epoch += 1;
            self.awaits_block = true;
        }
    }

    fn summary(&self) -> Vec<Event> {
        let (peak, live) = (self.counters.peak, self.counters.live);
        let kind = Kind::Device as u8;
        let mut all = vec![
            Event::StateEvent(Listed::new(0, 0, &Event::Counters(self.counters))),
            Event::StateKind { device: DEVICE, kind, at_peak: peak, live },
        ];
        for moment in [SummaryMoment::Peak, SummaryMoment::End] {
            for of_framework in [false, true] {
                let here = self.stacks.iter().filter(|((_, level), _)| *level == of_framework);
                let mut holders: Vec<StateHolder> = here
                    .map(|((stack, _), held)| {
                        let [bytes, count] = held.at(moment, self.epoch);
                        let (device, stack, cause) = (DEVICE, *stack, None);
                        StateHolder { device, moment, of_framework, cause, stack, bytes, count }
                    })
                    .collect();
                keep_largest(&mut holders);
                all.extend(holders.into_iter().map(Event::StateHolder));
            }
        }
        all
    }
}

impl Rank {
    fn begin(&self) -> TraceBuilder {
        let mut trace = TraceBuilder::new().rank(self.rank as u32, self.ranks as u32);
        trace.header.uuid[..8].copy_from_slice(&self.rank.to_le_bytes());
        trace.header.start_unix_ns += self.rank * 1_000_000;
        trace.header.host = format!("node{}", self.rank / 8);
        let mut uuid = [0x47; 16];
        uuid[..8].copy_from_slice(&self.rank.to_le_bytes());
        let (name, total_bytes) = ("NVIDIA H200".into(), 141 << 30);
        trace.define(Definition::Device { id: DEVICE, uuid, name, total_bytes, mig: false });
        for id in 1..=STACKS {
            let layer = id % 40;
            let file = format!("/usr/lib/python3/site-packages/model/layer{layer}.py");
            trace.code(id, &format!("Layer{layer}.forward"), &file, 10 + id as i32);
            let python: Vec<u32> = (0..12).map(|depth| (id + depth) % STACKS + 1).collect();
            trace.stack(id, &[], &python, &[]);
        }
        trace
    }

    /// Segments that stay, and blocks in them that are allocated and freed in each step.
    fn trace(&self) -> TraceBuilder {
        let mut trace = self.begin();
        let mut ledger = Ledger::default();
        let (mut time_ns, mut written) = (1_000_000, 1);
        trace.context(time_ns, 0);
        let mut put = |trace: &mut TraceBuilder, alloc: &Alloc, came: bool| {
            time_ns += 20_032;
            written += 1;
            ledger.change(alloc, came, time_ns);
            match came {
                true => trace.event(time_ns, Event::Alloc(*alloc)),
                false => trace.free(time_ns, alloc.space, alloc.key),
            }
            written
        };
        let driver =
            Alloc { stack: StackId(LEAKING), ..trace.allocation(Kind::Device, 0, 0, 2 * MIB) };
        let blocks = trace.allocation(Kind::Block, 0, 0, 2 * MIB);
        let size = if self.rank == 17 { 96 * MIB } else { 64 * MIB };
        let segment = |n: u64| Alloc {
            key: (1 << 40) + n * 128 * MIB,
            size,
            stack: StackId(1 + (n as u32 * 7) % STACKS),
            ..driver
        };
        let block = |n: u64| Alloc {
            key: segment(n / 32).key + n % 32 * 2 * MIB,
            stack: StackId(1 + (n as u32 * 13) % STACKS),
            ..blocks
        };
        let leaked = |n: u64| Alloc { key: (1 << 45) + n * 2 * MIB, ..driver };
        for n in 0..STEP / 32 {
            put(&mut trace, &segment(n), true);
        }
        let mut done = 0;
        while done + STEP_EVENTS < self.events {
            for n in 0..STEP {
                put(&mut trace, &block(n), true);
            }
            put(&mut trace, &segment(1000), true);
            done = put(&mut trace, &segment(1000), false);
            for n in 0..STEP {
                done = put(&mut trace, &block(n), false);
            }
            if self.leaks {
                done = put(&mut trace, &leaked(done), true);
            }
        }
        time_ns += 1_000_000;
        if self.out_of_memory {
            let refused = Refused {
                site: driver.site,
                stack: driver.stack,
                size: MIB,
                result: 2,
                by: RefusedBy::Driver,
                counted: ledger.counters.live,
                limit: 0,
                driver_free: 0,
                cache: None,
            };
            trace.event(time_ns, Event::Refused(refused));
        } else if !self.killed {
            let begin = Event::StateBegin { id: 0, what: Purpose::Summary, cache_ooms: 0 };
            trace.event(time_ns, begin);
            ledger.summary().into_iter().for_each(|event| trace.event(time_ns, event));
            trace.event(time_ns, Event::StateEnd { id: 0, cut: false });
            trace.event(time_ns, Event::Ended);
        }
        trace
    }
}
