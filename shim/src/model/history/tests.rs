//! The history over a ledger whose time is given.

use super::copy::{self, Copy};
use super::sampler::{History, LEAST_ROWS, SECOND_NS, WHOLE};
use super::tracks;
use crate::model::ledger::{Entry, Ledger, Sink};
use vramtrace_format::{DeviceId, Event, HistoryHolder, Kind, SiteId, StackId};

struct Nowhere;
impl Sink for Nowhere {
    fn emit(&self, _: &Event) {}
}

const MIB: u64 = 1 << 20;
const LEAK: u32 = 1000;

struct Program {
    ledger: Box<Ledger>,
    history: History,
    next: u64,
    now_ns: u64,
    slices: u64,
}

impl Program {
    fn new() -> Program {
        let ledger = Box::new(Ledger::new());
        Program { ledger, history: History::new(64 << 20), next: 1, now_ns: 0, slices: 0 }
    }

    fn allocate(&mut self, stack: u32, mib: u64) -> u64 {
        let key = self.next << 40;
        self.next += 1;
        let entry = Entry::new(Kind::Device, key, mib * MIB, DeviceId(0));
        let entry = Entry { stack: StackId(stack), site: SiteId(1), ..entry };
        self.ledger.insert(&Nowhere, &entry);
        key
    }

    fn free(&mut self, key: u64) {
        self.ledger.remove(&Nowhere, vramtrace_format::Space::Device, key);
    }

    /// Time passes, with a sample at its end if one is due.
    fn pass(&mut self, seconds: u64) {
        self.now_ns += seconds * SECOND_NS;
        while self.history.is_due(self.now_ns) {
            self.slices += 1;
            self.history.slice(&self.ledger, self.now_ns, || self.now_ns);
        }
    }

    fn copy(&self, most_bytes: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let mut copy = Copy::begin(1, most_bytes, &mut |event| events.push(*event));
        loop {
            let before = events.len();
            let done = copy.slice(&self.history, &mut |event| events.push(*event));
            // The figures of a bin are not divided: 13 kinds, two levels and two more for each device.
            assert!(events.len() - before <= 32 + 20, "{}", events.len() - before);
            if done {
                return events;
            }
        }
    }
}

/// Samples of the whole time that tell the stack apart: its lowest bytes in MiB, by bin.
fn of_stack(events: &[Event], tier: u8, stack: u32) -> Vec<(usize, usize, u64)> {
    let (mut now, mut bin, mut found) = (u8::MAX, 0, Vec::new());
    for event in events {
        match *event {
            Event::HistoryBin(of) => {
                bin = if of.tier == now { bin + 1 } else { 0 };
                now = of.tier;
            }
            Event::HistoryHolder(HistoryHolder { run, stack: of, lowest, .. })
                if now == tier && of == StackId(stack) =>
            {
                found.push((bin, bin + usize::from(run), lowest / MIB));
            }
            _ => {}
        }
    }
    found
}

fn bins(events: &[Event], wanted: u8) -> Vec<(u64, u64)> {
    let times = events.iter().filter_map(|event| match event {
        Event::HistoryBin(of) if of.tier == wanted => {
            Some((of.from_ns / SECOND_NS, of.until_ns / SECOND_NS))
        }
        _ => None,
    });
    times.collect()
}

#[test]
fn a_slow_leak_is_told_apart_beside_larger_stacks_that_stay() {
    let mut program = Program::new();
    for stack in 1..=200 {
        program.allocate(stack, 100 + u64::from(stack));
    }
    let hours = 30;
    for minute in 0..hours * 60 {
        // Memory that comes and goes, by 100 stacks, more than the leak holds.
        let keys: Vec<u64> =
            (0..20).map(|n| program.allocate(300 + (minute as u32 * 7 + n) % 100, 200)).collect();
        program.pass(30);
        keys.into_iter().for_each(|key| program.free(key));
        if minute % 15 == 0 {
            program.allocate(LEAK, 4);
        }
        program.pass(30);
    }
    let events = program.copy(4 << 20);
    let whole = bins(&events, 0);
    assert!((WHOLE / 2 - 1..WHOLE).contains(&whole.len()), "{}", whole.len());
    let lengths = || whole.iter().map(|(from, until)| until - from);
    assert!(lengths().max() <= lengths().min().map(|least| 2 * least), "{whole:?}");
    assert!(whole.windows(2).all(|two| two[0].1 == two[1].0), "{whole:?}");
    let leak = of_stack(&events, 0, LEAK);
    let (_, last, held) = *leak.last().unwrap();
    assert_eq!(last, whole.len() - 1, "up to the end");
    assert!((hours * 16 - 16..=hours * 16).contains(&held), "{held}");
    assert!(leak.windows(2).all(|two| two[0].2 <= two[1].2), "{leak:?}");
    let covered: usize = leak.iter().map(|(from, to, _)| to - from + 1).sum();
    assert!(covered >= whole.len() * 8 / 10, "{covered} of {}", whole.len());
    // A stack that stays is written once, and the largest are there.
    assert_eq!(of_stack(&events, 0, 200).len(), 1);
    assert!(of_stack(&events, 0, 1).is_empty(), "not among the largest");
    let samples = hours * 120;
    assert!(program.slices / samples <= 100, "{}", program.slices / samples);
}

#[test]
fn what_is_not_told_apart_is_in_the_others() {
    let mut program = Program::new();
    for stack in 1..=300 {
        program.allocate(stack, 2);
    }
    (0..5).for_each(|_| program.pass(1));
    let events = program.copy(4 << 20);
    let level = events.iter().rev().find_map(|event| match event {
        Event::HistoryLevel(level) => Some(*level),
        _ => None,
    });
    let level = level.unwrap();
    assert_eq!((level.highest, level.lowest), (600 * MIB, 600 * MIB));
    let rows: Vec<u32> =
        (1..=300).filter(|stack| !of_stack(&events, 2, *stack).is_empty()).collect();
    assert_eq!(level.other_stacks, 300 - 64, "{}", rows.len());
    assert_eq!(level.other_highest, (300 - 64) * 2 * MIB);
    assert_eq!((level.allocations, level.frees), (300, 0));
}

#[test]
fn a_peak_between_samples_is_exact_and_has_its_holders() {
    let mut program = Program::new();
    program.allocate(1, 10);
    program.pass(1);
    let keys: Vec<u64> = (0..70).map(|n| program.allocate(2 + n, 40)).collect();
    keys.into_iter().for_each(|key| program.free(key));
    (0..100).for_each(|_| program.pass(3600));
    let events = program.copy(4 << 20);
    let peaks: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::HistoryDevice(of) => Some(of.peak / MIB),
            _ => None,
        })
        .collect();
    assert_eq!(peaks[..3], [10, 2810, 10]);
    let holders = events.iter().filter(|event| matches!(event, Event::HistoryPeakHolder(_)));
    assert_eq!(holders.count(), 64);
}

#[test]
fn a_copy_has_a_bound_and_the_next_one_fits() {
    let mut program = Program::new();
    let mut round = 0;
    let mut churn = |program: &mut Program| {
        for _ in 0..600 {
            round += 1;
            let keys: Vec<u64> = (1..=150)
                .map(|stack| program.allocate(stack, 2 + (round * 7 + u64::from(stack)) % 13))
                .collect();
            program.pass(20);
            keys.into_iter().for_each(|key| program.free(key));
        }
    };
    churn(&mut program);
    let most = 256 << 10;
    let end = |events: &[Event]| match *events.last().unwrap() {
        Event::HistoryEnd { cut, records, .. } => (cut, records),
        _ => panic!("{:?}", events.last()),
    };
    let events = program.copy(most);
    let (cut, records) = end(&events);
    assert!(cut && records == events.len() as u64 - 2);
    let bytes: u64 = events.iter().map(copy::bytes_of).sum();
    assert!(bytes <= 2 * most, "{bytes} of {records} records");
    while end(&program.copy(most)).0 {
        program.history.shrink();
        program.pass(1);
    }
    assert!(program.history.most_rows >= LEAST_ROWS);
}

#[test]
fn memory_is_bounded_however_many_stacks_there_are() {
    let mut program = Program::new();
    for stack in 0..(tracks::MOST as u32 + 1000) {
        program.allocate(stack, 2);
    }
    program.pass(1);
    program.pass(1);
    assert_eq!(program.history.followed(), tracks::MOST);
    let events = program.copy(4 << 20);
    let level = events.iter().find_map(|event| match event {
        Event::HistoryLevel(level) => Some(*level),
        _ => None,
    });
    assert_eq!(level.unwrap().highest, (tracks::MOST as u64 + 1000) * 2 * MIB, "all the same");
}
