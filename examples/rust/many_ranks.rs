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
use std::io;
use std::path::Path;

use vramtrace_format::physical::MIB;
use vramtrace_format::summary::{AtPeak, Change, keep_largest};
use vramtrace_format::{
    Alloc, ContextId, Counters, Definition, DeviceId, Event, Header, Kind, Listed, PoolId, Purpose,
    PythonFrame, Refused, RefusedBy, SiteId, Space, StackFlags, StackId, StateHolder,
    SummaryMoment, ThreadId,
};
use vramtrace_reader::trace::{TraceWriter, WriterMemory};

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
    let memory = WriterMemory::default();
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
        rank.write(&memory, File::create_new(path)?)?;
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
    fn header(&self) -> Header {
        let mut uuid = [0x52; 16];
        uuid[..8].copy_from_slice(&self.rank.to_le_bytes());
        Header {
            uuid,
            pid: 10_000 + self.rank as u32,
            parent_pid: 9_000,
            process_start_ticks: 99,
            start_unix_ns: 1_767_225_600_000_000_000 + self.rank * 1_000_000,
            start_mono_ns: 5,
            host: format!("node{}", self.rank / 8),
            rank: Some(self.rank as u32),
            world_size: Some(self.ranks as u32),
            executable: "/usr/bin/python3".into(),
            command: vec!["python3".into(), "train.py".into()],
            working_directory: "/home/me".into(),
            writer: "0.1.0".into(),
            ..Header::default()
        }
    }

    fn definitions(&self) -> Vec<Definition> {
        let mut uuid = [0x47; 16];
        uuid[..8].copy_from_slice(&self.rank.to_le_bytes());
        let (context, pool) = (ContextId(1), PoolId(0));
        let site = |id, kind| Definition::Site {
            id: SiteId(id),
            api: 1,
            kind: Some(kind),
            device: DEVICE,
            context,
            pool,
            stream: 0,
        };
        let mut all = vec![
            Definition::Api { id: 1, name: "cuMemAlloc_v2".into() },
            Definition::Device {
                id: DEVICE,
                uuid,
                name: "NVIDIA H200".into(),
                total_bytes: 141 << 30,
                mig: false,
            },
            Definition::Context { id: context, device: DEVICE, handle: 0xc0, primary: true },
            site(1, Kind::Device),
            site(2, Kind::Block),
        ];
        for id in 1..=STACKS {
            all.push(Definition::Code {
                id,
                minor: 9,
                name: format!("Layer{}.forward", id % 40),
                file: format!("/usr/lib/python3/site-packages/model/layer{}.py", id % 40),
                first_line: 10 + id as i32,
                line_table: Vec::new(),
            });
        }
        for id in 1..=STACKS {
            let frame = |code| PythonFrame { code, last_instruction: 0 };
            let python = (0..12).map(|depth| frame((id + depth) % STACKS + 1)).collect();
            let (native, joins) = (Vec::new(), Vec::new());
            all.push(Definition::Stack {
                id: StackId(id),
                flags: StackFlags(0),
                native,
                python,
                joins,
            });
        }
        all
    }

    /// Writes segments that stay, and blocks in them that are allocated and freed in each step.
    fn write(&self, memory: &WriterMemory, file: File) -> io::Result<()> {
        let mut trace = TraceWriter::begin(memory, file, &self.header())?;
        self.definitions().iter().try_for_each(|definition| trace.define(definition))?;
        let mut ledger = Ledger::default();
        let (mut time_ns, mut written) = (1_000_000, 1);
        let created =
            Event::ContextCreated { context: ContextId(1), device: DEVICE, stack: StackId(0) };
        trace.event(ThreadId(1), time_ns, &created)?;
        let size = if self.rank == 17 { 96 * MIB } else { 64 * MIB };
        let mut put = |trace: &mut TraceWriter, alloc: &Alloc, came: bool| {
            time_ns += 20_032;
            written += 1;
            ledger.change(alloc, came, time_ns);
            let event = match came {
                true => Event::Alloc(*alloc),
                false => Event::Free { key: alloc.key, space: alloc.space, site: SiteId(0) },
            };
            trace.event(ThreadId(1), time_ns, &event).map(|()| written)
        };
        let segment = |n: u64| Alloc {
            key: (1 << 40) + n * 128 * MIB,
            space: Space::Device,
            size,
            site: SiteId(1),
            stack: StackId(1 + (n as u32 * 7) % STACKS),
            requested: None,
        };
        let block = |n: u64| Alloc {
            key: segment(n / 32).key + n % 32 * 2 * MIB,
            space: Space::Block,
            size: 2 * MIB,
            site: SiteId(2),
            stack: StackId(1 + (n as u32 * 13) % STACKS),
            requested: None,
        };
        for n in 0..STEP / 32 {
            put(&mut trace, &segment(n), true)?;
        }
        let leaked = |n: u64| Alloc {
            key: (1 << 45) + n * 2 * MIB,
            space: Space::Device,
            size: 2 * MIB,
            site: SiteId(1),
            stack: StackId(LEAKING),
            requested: None,
        };
        let mut done = 0;
        while done + STEP_EVENTS < self.events {
            for n in 0..STEP {
                put(&mut trace, &block(n), true)?;
            }
            put(&mut trace, &segment(1000), true)?;
            done = put(&mut trace, &segment(1000), false)?;
            for n in 0..STEP {
                done = put(&mut trace, &block(n), false)?;
            }
            if self.leaks {
                done = put(&mut trace, &leaked(done), true)?;
            }
        }
        time_ns += 1_000_000;
        if self.out_of_memory {
            let refused = Refused {
                site: SiteId(1),
                stack: StackId(LEAKING),
                size: MIB,
                result: 2,
                by: RefusedBy::Driver,
                counted: ledger.counters.live,
                limit: 0,
                driver_free: 0,
                cache: None,
            };
            trace.event(ThreadId(1), time_ns, &Event::Refused(refused))?;
        } else if !self.killed {
            let summary = ledger.summary();
            trace.event(
                ThreadId(1),
                time_ns,
                &Event::StateBegin { id: 0, what: Purpose::Summary, cache_ooms: 0 },
            )?;
            summary.iter().try_for_each(|event| trace.event(ThreadId(1), time_ns, event))?;
            trace.event(ThreadId(1), time_ns, &Event::StateEnd { id: 0, cut: false })?;
            trace.event(ThreadId(1), time_ns, &Event::Ended)?;
        }
        trace.finish().map(drop)
    }
}
