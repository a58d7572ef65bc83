//! Programs with known answers, each with many seeds: what is found, and what is found though it
//! is not there.

mod harmless;
mod leaking;

use std::collections::BTreeMap;

use vramtrace_format::physical::{KIB, MIB};
use vramtrace_format::{
    Alloc, ContextId, Definition, DeviceId, Event, Kind, PoolId, Refused, RefusedBy, SiteId, Space,
    StackId, Stamped, ThreadId,
};

use super::judge::{Subject, judge};
use super::observer::GrowthObserver;
use super::{Leaks, Suppressions, Verdict};
use crate::replay::{OUT_OF_MEMORY, Replay};
use crate::testing::TraceBuilder;
use crate::trace::Definitions;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A program on one device: what it allocates, and when.
struct Program {
    random: u64,
    now_ns: u64,
    next: u64,
    live: BTreeMap<u64, u32>,
    replay: Replay,
    observer: GrowthObserver,
    definitions: Definitions,
    site: SiteId,
    offset: u64,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut builder = TraceBuilder::new();
        let site = builder.site(Kind::Device, 0);
        builder.define(Definition::Site {
            id: PRIVATE,
            api: 0,
            kind: Some(Kind::Device),
            device: DeviceId(0),
            context: ContextId(1),
            pool: PoolId(1),
            stream: 0,
        });
        Program {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now_ns: SECOND,
            next: 1 << 20,
            live: BTreeMap::new(),
            replay: Replay::new(),
            observer: GrowthObserver::default(),
            definitions: Definitions::of_builder(&builder),
            site,
            offset: 0,
        }
    }

    /// From 0 to less than `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below.max(1)
    }

    fn event(&mut self, event: Event) {
        self.offset += 48;
        let (time_ns, offset) = (self.now_ns, self.offset);
        let at = Stamped { offset, time_ns, thread: ThreadId(1), event };
        self.replay.apply(&self.definitions, &at, &mut self.observer);
    }

    fn alloc(&mut self, stack: u32, size: u64) -> u64 {
        self.next += 1;
        let key = self.next << 21;
        self.live.insert(key, stack);
        self.now_ns += 2_000;
        let (space, site, stack) = (Space::Device, self.site, StackId(stack));
        self.event(Event::Alloc(Alloc { key, space, size, site, stack, requested: None }));
        key
    }

    fn free(&mut self, key: u64) {
        self.live.remove(&key).expect("live");
        self.now_ns += 1_000;
        self.event(Event::Free { key, space: Space::Device, site: SiteId(0) });
    }

    /// The driver has no memory for the line that leaks.
    fn refused(&mut self) {
        let (site, stack, size) = (self.site, StackId(LEAK), MIB);
        let (result, by, cache) = (OUT_OF_MEMORY, RefusedBy::Driver, None);
        let (counted, limit, driver_free) = (0, 0, 0);
        let at = Refused { site, stack, size, result, by, counted, limit, driver_free, cache };
        self.event(Event::Refused(at));
    }

    /// Work without allocations, with jitter.
    fn work(&mut self, ns: u64) {
        self.now_ns += ns * 3 / 4 + self.random(ns / 2);
    }

    /// A step of a training loop: what it allocates it frees.
    fn step(&mut self) {
        let mut held = Vec::new();
        for stack in 900..906 {
            for _ in 0..1 + self.random(3) {
                let size = MIB + self.random(64 * MIB);
                held.push(self.alloc(stack, size));
            }
        }
        self.work(5 * MS);
        held.drain(..).rev().for_each(|key| self.free(key));
    }

    fn free_all(&mut self) {
        let keys: Vec<u64> = self.live.keys().copied().collect();
        keys.into_iter().for_each(|key| self.free(key));
    }

    fn found(mut self, running: bool) -> Leaks {
        if !running {
            self.event(Event::Ended);
        }
        self.replay.finish();
        let header = &TraceBuilder::new().header;
        let subject = Subject { header, running, definitions: &self.definitions };
        judge(subject, self.replay.state(), &self.observer, &Suppressions::default(), 1)
    }
}

type Answer = Option<(u32, Verdict)>;
type Scenario = (&'static str, fn(&mut Program), Answer);

const LEAK: u32 = 1;
/// Of calls that allocate in a private pool.
const PRIVATE: SiteId = SiteId(99);

const fn leaking(name: &'static str, verdict: Verdict, program: fn(&mut Program)) -> Scenario {
    (name, program, Some((LEAK, verdict)))
}

const fn growing(name: &'static str, program: fn(&mut Program)) -> Scenario {
    leaking(name, Verdict::Growing, program)
}

const fn harmless(name: &'static str, program: fn(&mut Program)) -> Scenario {
    (name, program, None)
}

fn parameters(p: &mut Program) {
    for _ in 0..148 {
        let size = 4 * KIB + p.random(8 * MIB);
        p.alloc(800, size);
        p.work(MS);
    }
}

fn steps(p: &mut Program) -> u64 {
    parameters(p);
    400 + p.random(1_200)
}

/// A training of many steps, which does this behind each one: with its number, of so many.
fn each_step(p: &mut Program, mut then: impl FnMut(&mut Program, u64, u64)) {
    let steps = steps(p);
    for n in 0..steps {
        p.step();
        then(p, n, steps);
    }
}

/// A loop of steps of half a millisecond, after seconds of loading libraries.
fn short_loop(p: &mut Program, steps: u64, mut kept: impl FnMut(&mut Program, u64)) {
    if p.live.is_empty() {
        (0..8).for_each(|n| {
            p.alloc(800, MIB >> n);
        });
        p.now_ns += 2 * SECOND;
        // Workspace of a library, at its first use.
        p.alloc(802, 8 * MIB);
    }
    for step in 0..steps {
        let mut held: Vec<u64> = (900..906).map(|stack| p.alloc(stack, 128 * KIB)).collect();
        kept(p, step);
        p.work(MS / 3);
        held.drain(..).rev().for_each(|key| p.free(key));
    }
}

/// Steps of a model of 148 parameters: gradients are made in backward and dropped after the step,
/// the optimizer's state stays.
fn train(p: &mut Program, steps: u64) {
    let sizes: Vec<u64> = (0..148).map(|_| 4 * KIB + p.random(8 * MIB)).collect();
    for size in &sizes {
        p.alloc(800, *size);
        p.work(MS);
    }
    p.now_ns += SECOND;
    let mut gradients = Vec::new();
    for step in 0..steps {
        let mut activations = Vec::new();
        for _ in &sizes {
            let scratch = p.alloc(901, 2 * MIB);
            activations.push(p.alloc(902, 3 * MIB));
            p.work(MS / 10);
            p.free(scratch);
        }
        for size in sizes.iter().rev() {
            let scratch = p.alloc(903, 2 * MIB);
            gradients.push(p.alloc(904, *size));
            activations.pop().into_iter().for_each(|key| p.free(key));
            p.work(MS / 10);
            p.free(scratch);
        }
        for size in &sizes {
            let scratch = p.alloc(905, 2 * MIB);
            if step == 0 {
                p.alloc(906, *size);
                p.alloc(907, *size);
            }
            p.free(scratch);
        }
        if step + 1 < steps {
            gradients.drain(..).for_each(|key| p.free(key));
        }
    }
}

/// More by `VRAMTRACE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("VRAMTRACE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

/// Leaks with a confidence above one half.
fn sure_verdicts(found: &Leaks) -> Vec<(u32, Verdict)> {
    let sure = found.leaks.iter().filter(|leak| leak.is_sure());
    sure.map(|leak| (leak.stack.id.0, leak.verdict)).collect()
}

#[test]
fn known_programs_get_known_answers() {
    let (mut right, mut missed, mut false_alarms, mut real) = (0, 0, 0, 0);
    let mut table = String::new();
    let seeds = seeds();
    for (name, program, answer) in leaking::LEAKING.iter().chain(harmless::HARMLESS).copied() {
        let (mut hits, mut wrong) = (0, 0);
        for seed in 1..=seeds {
            let mut p = Program::new(seed);
            program(&mut p);
            let found = p.found(false);
            let verdicts = sure_verdicts(&found);
            let hit = answer.is_none_or(|answer| verdicts.contains(&answer));
            hits += u64::from(hit);
            wrong += verdicts.iter().filter(|one| Some(**one) != answer).count() as u64;
        }
        if answer.is_some() {
            (real, right) = (real + seeds, right + hits);
            missed += seeds - hits;
        }
        false_alarms += wrong;
        table += &format!("{name:45} {hits:3} of {seeds:3}, {wrong} false\n");
    }
    let precision = f64::from(right as u32) / f64::from((right + false_alarms).max(1) as u32);
    let recall = f64::from(right as u32) / f64::from(real as u32);
    println!("{table}precision {precision:.3}, recall {recall:.3}");
    assert!(precision >= 0.98, "{false_alarms} false alarms\n{table}");
    assert!(recall >= 0.98, "{missed} missed\n{table}");
}
