//! The history over a ledger whose time is given.

use super::copy;
use super::phases::{IN_BIN, Phases};
use super::sampler::{History, LEAST_ROWS, SECOND_NS, WHOLE};
use super::tracks;
use crate::model::ledger::model_test::Nothing;
use crate::model::ledger::{Entry, Ledger};
use vramtrace_format::physical::MIB;
use vramtrace_format::{DeviceId, Event, HistoryHolder, HistoryPhase, Kind, Mark, SiteId, StackId};

const LEAK: u32 = 1000;

struct Program {
    ledger: Box<Ledger>,
    history: History,
    phases: Phases,
    next: u64,
    now_ns: u64,
}

impl Program {
    fn new() -> Program {
        let ledger = Box::new(Ledger::default());
        let (history, phases) = (History::new(64 << 20), Phases::new(Some(64 << 20)));
        Program { ledger, history, phases, next: 1, now_ns: 0 }
    }

    fn allocate(&mut self, stack: u32, mib: u64) -> u64 {
        let key = self.next << 40;
        self.next += 1;
        let entry = Entry::new(Kind::Device, key, mib * MIB, DeviceId(0));
        let entry = Entry { stack: StackId(stack), site: SiteId(1), ..entry };
        self.ledger.insert(&Nothing, &entry);
        key
    }

    fn free(&mut self, key: u64) {
        self.ledger.remove(&Nothing, vramtrace_format::Space::Device, key);
    }

    fn mark(&mut self, seconds: u64, name: u32, mark: Mark) {
        let now_ns = self.now_ns + seconds * SECOND_NS;
        self.phases.mark(&self.ledger, now_ns, name, mark);
    }

    /// Time passes, with a sample at its end if one is due.
    fn pass(&mut self, seconds: u64) {
        self.now_ns += seconds * SECOND_NS;
        if self.history.is_due(self.now_ns) {
            self.history.sample(&self.ledger, &self.phases, self.now_ns, || self.now_ns);
        }
    }

    fn copy(&self, most_bytes: u64) -> Vec<Event> {
        let mut events = Vec::new();
        self.history.copy(1, most_bytes, &self.ledger, &mut |event| events.push(*event));
        events
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
    let holders = events.iter().filter(|event| matches!(event, Event::StateHolder(_)));
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
        Event::StateEnd { cut, .. } => cut,
        _ => panic!("{:?}", events.last()),
    };
    let events = program.copy(most);
    assert!(end(&events));
    let bytes: u64 = events.iter().map(copy::bytes_of).sum();
    assert!(bytes <= 2 * most, "{bytes} of {} records", events.len());
    while end(&program.copy(most)) {
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

/// A phase in a bin: names, peak in MiB, when, and how long it was open, in seconds.
type InBin = (Vec<u32>, u64, u64, u64);

/// The phases in the bins of a tier.
fn phases(events: &[Event], tier: u8) -> Vec<Vec<InBin>> {
    let (mut now, mut found) = (u8::MAX, Vec::new());
    for event in events {
        match *event {
            Event::HistoryBin(of) => {
                now = of.tier;
                if now == tier {
                    found.push(Vec::new());
                }
            }
            Event::HistoryPhase(phase) if now == tier => {
                let HistoryPhase { peak, at_ns, open_ns, .. } = phase;
                let names = phase.names().collect();
                let row = (names, peak / MIB, at_ns / SECOND_NS, open_ns / SECOND_NS);
                found.last_mut().unwrap().push(row);
            }
            _ => {}
        }
    }
    found
}

const EPOCH: u32 = 1;
const FORWARD: u32 = 2;
const BACKWARD: u32 = 3;
const OTHER: u32 = 4;

/// An epoch of 100 s, in which forward holds 40 MiB for a moment and backward holds 30 MiB on.
fn epoch(program: &mut Program) {
    program.mark(0, EPOCH, Mark::Push);
    program.mark(10, FORWARD, Mark::Push);
    let peak = program.allocate(1, 40);
    program.free(peak);
    program.mark(30, 0, Mark::Pop);
    program.mark(30, BACKWARD, Mark::Push);
    let held = program.allocate(2, 30);
    program.mark(90, 0, Mark::Pop);
    program.mark(91, 0, Mark::Pop);
    program.pass(100);
    program.free(held);
}

#[test]
fn a_bin_tells_the_phase_of_a_peak_between_samples() {
    let mut program = Program::new();
    program.pass(1000);
    epoch(&mut program);
    let tier = phases(&program.copy(4 << 20), 0);
    // The pause before has no phase, since no range was marked yet.
    assert_eq!(tier[0], []);
    // What is held on counts after its range too; what held as much before comes first. Up to forward the device was not used.
    let wanted = [
        (vec![EPOCH, FORWARD], 40, 1010, 20),
        (vec![EPOCH, BACKWARD], 30, 1030, 60),
        (vec![EPOCH], 30, 1090, 1),
        (vec![], 30, 1091, 9),
    ];
    assert_eq!(tier[1], wanted);
    let device = program.copy(4 << 20).into_iter().rev().find_map(|event| match event {
        Event::HistoryDevice(of) => Some(of.peak / MIB),
        _ => None,
    });
    assert_eq!(device, Some(40), "marks do not take the peak away from the sample");
}

#[test]
fn phases_are_thinned_to_those_with_the_highest_peaks() {
    let mut program = Program::new();
    let hours = 400;
    for hour in 0..hours {
        for step in 0..36 {
            let name = 1000 + hour * 36 + step;
            program.mark(0, name, Mark::Push);
            let held = program.allocate(1, u64::from(10 + step) + 100 * u64::from(hour == 77));
            program.mark(100, 0, Mark::Pop);
            program.pass(100);
            program.free(held);
        }
    }
    let events = program.copy(4 << 20);
    let tier = phases(&events, 0);
    assert!(tier.len() > WHOLE / 2 && tier.iter().all(|bin| bin.len() <= IN_BIN), "{}", tier.len());
    let all = tier.iter().flatten();
    let (names, peak, at, open) = all.max_by_key(|(_, peak, at, _)| (peak, !at)).unwrap();
    // The last step of that hour has the highest peak of all, in whole pieces of 2 MiB.
    assert_eq!((names, *peak, *open), (&vec![1000 + 77 * 36 + 35], 146, 100));
    assert_eq!(*at, (77 * 36 + 35) * 100);
    let records = events.iter().filter(|event| matches!(event, Event::HistoryPhase(_))).count();
    assert!(records <= IN_BIN * (WHOLE + 120 + 60));
}

#[test]
fn ranges_of_several_threads_and_of_none_are_open_at_once() {
    let program = std::sync::Mutex::new(Program::new());
    let mark = |seconds, name, mark| program.lock().unwrap().mark(seconds, name, mark);
    mark(0, EPOCH, Mark::Push);
    mark(0, OTHER, Mark::Start);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            mark(0, FORWARD, Mark::Push);
            // Deeper than names are kept.
            (0..10).for_each(|depth| mark(0, 100 + depth, Mark::Push));
            let key = program.lock().unwrap().allocate(1, 10);
            mark(10, 0, Mark::Pop);
            program.lock().unwrap().free(key);
            (0..10).for_each(|_| mark(10, 0, Mark::Pop));
        });
    });
    mark(20, OTHER, Mark::End);
    mark(20, 0, Mark::Pop);
    // The ends of ranges that are not open end nothing.
    mark(20, OTHER, Mark::End);
    mark(20, 0, Mark::Pop);
    let mut program = program.into_inner().unwrap();
    program.pass(30);
    let tier = phases(&program.copy(4 << 20), 0);
    let peak: Vec<_> = tier[0].iter().filter(|(_, peak, at, _)| (*peak, *at) == (10, 0)).collect();
    let mut names: Vec<&[u32]> = peak.iter().map(|(names, ..)| &names[..]).collect();
    names.sort();
    assert_eq!(names, [&[EPOCH][..], &[FORWARD, 100, 101, 102], &[OTHER]]);
    let open: Vec<u64> = peak.iter().map(|(.., open)| *open).collect();
    assert_eq!(open.iter().sum::<u64>(), 20 + 10 + 20, "{peak:?}");
}

#[test]
fn ranges_that_never_end_cost_a_bounded_number_of_rows() {
    let mut program = Program::new();
    let held = program.allocate(1, 10);
    for name in 0..10_000 {
        program.mark(1, name, Mark::Start);
    }
    program.pass(2);
    let tier = phases(&program.copy(4 << 20), 0);
    assert_eq!(tier[0].len(), IN_BIN);
    program.free(held);
}
