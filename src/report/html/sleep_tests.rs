//! Memory that sleeps: at every moment the columns add up to what is on the card, by its owners.

use std::collections::BTreeMap;

use vramtrace_format::{DeviceId, Event, Kind, SiteId, Space, StackId};

use super::recorder::Recorder;
use crate::analysis::roles::RoleFinder;
use crate::replay::Until;
use crate::symbols::Symbols;
use crate::testing::{MS, TraceBuilder};
use crate::trace::Trace;

const MIB: u64 = 1 << 20;
const A: u64 = 1 << 40;
const B: u64 = 2 << 40;

/// A record of blocks, memory or mappings, as the page reads it.
#[derive(Debug)]
struct Record {
    from: u64,
    to: u64,
    /// The columns behind end and life.
    rest: Vec<u64>,
}

impl Record {
    fn is_live(&self, ordinal: u64) -> bool {
        self.from <= ordinal && ordinal < self.to
    }
}

fn number(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn size(value: u64) -> u64 {
    if value & 1 == 0 { value / 2 * 512 } else { value / 2 }
}

/// Records by kind of frame, and the times of the ordinals from 1 on, in ticks.
fn records(mut stream: &[u8]) -> (BTreeMap<u8, Vec<Record>>, Vec<u64>) {
    let columns = [1, 8, 10, 6, 3];
    let mut all: BTreeMap<u8, Vec<Record>> = BTreeMap::new();
    let mut last_end: BTreeMap<u8, i64> = BTreeMap::new();
    let mut times: Vec<u64> = Vec::new();
    while let Some(kind) = stream.first().copied() {
        stream = &stream[1..];
        let count = number(&mut stream);
        let mut values: Vec<Vec<u64>> = Vec::new();
        for _ in 0..columns[usize::from(kind) - 1] {
            let bytes = number(&mut stream) as usize;
            let (mut column, rest) = stream.split_at(bytes);
            stream = rest;
            values.push((0..count).map(|_| number(&mut column)).collect());
        }
        if kind == 1 {
            for since in &values[0] {
                times.push(times.last().unwrap_or(&0) + since);
            }
        }
        if !(2..=4).contains(&kind) {
            continue;
        }
        for at in 0..count as usize {
            let rest = values[2..].iter().map(|column| column[at]).collect();
            let (since, life) = (values[0][at], values[1][at]);
            let (from, to) = match since.checked_sub(1) {
                None => (life, u64::MAX),
                Some(since) => {
                    let end = last_end.entry(kind).or_default();
                    *end += signed(since);
                    (*end as u64 - life, *end as u64)
                }
            };
            all.entry(kind).or_default().push(Record { from, to, rest });
        }
    }
    (all, times)
}

struct Page {
    records: BTreeMap<u8, Vec<Record>>,
    times: Vec<u64>,
    owners: Vec<(StackId, Kind, DeviceId)>,
}

impl Page {
    /// The last ordinal of this time.
    fn ordinal(&self, time_ns: u64) -> u64 {
        self.times.partition_point(|time| *time <= time_ns >> 6) as u64
    }

    fn live(&self, kind: u8, ordinal: u64) -> impl Iterator<Item = &Record> {
        let of_kind = self.records.get(&kind).into_iter().flatten();
        of_kind.filter(move |record| record.is_live(ordinal))
    }

    /// Bytes by stack; of the rest of segments by stack 0.
    fn held(&self, ordinal: u64) -> BTreeMap<u32, u64> {
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut cached, mut in_blocks) = (0, 0);
        let stack = |record: &Record| self.owners[record.rest[1] as usize].0.0;
        for memory in self.live(3, ordinal) {
            let (share, segment) = (size(memory.rest[6]), memory.rest[7]);
            match segment > 0 && memory.from + segment - 1 <= ordinal {
                true => cached += share,
                false => *held.entry(stack(memory)).or_default() += share,
            }
        }
        for block in self.live(2, ordinal) {
            in_blocks += size(block.rest[0]);
            *held.entry(stack(block)).or_default() += size(block.rest[0]);
        }
        assert!(in_blocks <= cached, "{in_blocks} of {cached} at {ordinal}");
        if cached > in_blocks {
            held.insert(0, cached - in_blocks);
        }
        held
    }

    fn mapped(&self, ordinal: u64) -> u64 {
        self.live(4, ordinal).map(|mapping| size(mapping.rest[0])).sum()
    }
}

/// A region with two blocks, and one of the driver's memory, which are unmapped in parts and come
/// back; one is freed.
fn sleeping() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    let mut now = 0;
    let mut at = || {
        now += MS;
        now
    };
    for (address, bytes, object, stack) in [(A, 60 * MIB, 1, 1), (B, 10 * MIB, 2, 2)] {
        let (site, stack_of, restored) = (SiteId(0), StackId(9), false);
        let reserve =
            Event::AddressReserve { address, size: bytes, site, stack: stack_of, restored };
        t.event(at(), reserve);
        t.alloc_by(at(), Kind::Vmm, object, bytes, stack);
        t.event(at(), mapped(address, bytes, object));
    }
    t.alloc_by(at(), Kind::Block, A, 20 * MIB, 3);
    t.alloc_by(at(), Kind::Block, A + 20 * MIB, 20 * MIB, 4);
    for cycle in 0..2 {
        let (old, new) = ([1, 2].map(|object| object + 10 * cycle), [11, 12]);
        let new = new.map(|object| object + 10 * cycle);
        // First half of the second block.
        t.event(at(), unmapped(A, 30 * MIB));
        t.event(at(), unmapped(A + 30 * MIB, 30 * MIB));
        t.free(at(), Space::Vmm, old[0]);
        t.event(at(), unmapped(B, 10 * MIB));
        t.free(at(), Space::Vmm, old[1]);
        if cycle == 0 {
            t.free(at(), Space::Block, A);
            t.alloc_by(at(), Kind::Block, A, 8 * MIB, 5);
        }
        for (address, bytes, object) in [(A, 60 * MIB, new[0]), (B, 10 * MIB, new[1])] {
            t.alloc_by(at(), Kind::Vmm, object, bytes, 7);
            t.event(at(), mapped(address, bytes, object));
        }
    }
    t.event(at(), unmapped(B, 10 * MIB));
    t.free(at(), Space::Vmm, 22);
    t.event(at(), Event::AddressFree { address: B, size: 10 * MIB });
    t
}

fn mapped(address: u64, size: u64, object: u64) -> Event {
    Event::Map { address, size, offset: 0, object, stack: StackId(8) }
}

fn unmapped(address: u64, size: u64) -> Event {
    Event::Unmap { address, size, stack: StackId(6) }
}

#[test]
fn the_columns_show_what_is_on_the_card() {
    let builder = sleeping();
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    let trace = Trace::open(file.path()).unwrap();
    let definitions = trace.definitions().0;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let roles = RoleFinder::new(&trace, &definitions, &symbols);
    let mut recorder = Recorder::new(&definitions, &roles, 0, Vec::new());
    trace.replay_until(&definitions, Until::End, &mut recorder, &mut |_, _| {});
    let (found, stream) = recorder.finish().unwrap();
    let (records, times) = records(&stream);
    let page = Page { records, times, owners: found.owners };
    let mut slept = 0;
    for event in 1..=40 {
        let until = Until::Time(event * MS);
        let state = trace.replay_until(&definitions, until, &mut (), &mut |_, _| {}).state;
        let Some(device) = state.devices.get(&DeviceId(0)) else { continue };
        let now = page.ordinal(event * MS);
        let held = page.held(now);
        assert_eq!(held.values().sum::<u64>(), device.live_bytes, "event {event}: {held:?}");
        let space: u64 = state.space.mappings().map(|mapping| mapping.size).sum();
        assert_eq!(page.mapped(now), space, "event {event}");
        // What is mapped again belongs to who had it before.
        let awake = state.space.asleep_on(DeviceId(0)) == 0 && space == 70 * MIB;
        if awake {
            assert!(!held.contains_key(&7), "event {event}: {held:?}");
            assert_eq!(held.get(&2), Some(&(10 * MIB)), "event {event}: {held:?}");
        }
        slept += u64::from(device.cache.paused > 0);
    }
    assert!(slept > 4, "{slept}");
}
