//! Programs with known answers, each with many seeds: what is found, and what is found though it
//! is not there.

use std::collections::{BTreeMap, VecDeque};

use vramtrace_format::physical::{KIB, MIB};
use vramtrace_format::{Alloc, Event, Kind, SiteId, Space, StackId, Stamped, ThreadId};

use super::judge::{Subject, judge};
use super::watch::Watch;
use super::{Leaks, Suppressions, Verdict};
use crate::replay::Replay;
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
    watch: Watch,
    definitions: Definitions,
    site: SiteId,
    offset: u64,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut builder = TraceBuilder::new();
        let site = builder.site(Kind::Device, 0);
        let mut definitions = Definitions::default();
        builder.definitions().iter().cloned().for_each(|one| definitions.add(one));
        Program {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now_ns: SECOND,
            next: 1 << 20,
            live: BTreeMap::new(),
            replay: Replay::new(),
            watch: Watch::default(),
            definitions,
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
        self.replay.apply(&self.definitions, &at, &mut self.watch);
    }

    fn alloc(&mut self, stack: u32, size: u64) -> u64 {
        self.next += 1;
        let key = self.next << 21;
        self.live.insert(key, stack);
        self.now_ns += 2_000;
        let (site, stack) = (self.site, StackId(stack));
        self.event(Event::Alloc(Alloc { key, space: Space::Device, size, site, stack }));
        key
    }

    fn free(&mut self, key: u64) {
        self.live.remove(&key).expect("live");
        self.now_ns += 1_000;
        self.event(Event::Free { key, space: Space::Device, site: SiteId(0) });
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

    fn found(mut self, living: bool) -> Leaks {
        if !living {
            self.event(Event::Ended);
        }
        self.replay.finish();
        let subject = Subject {
            trace: "t.vtrace".into(),
            header: TraceBuilder::new().header,
            living,
            definitions: self.definitions,
        };
        judge(subject, self.replay.state(), &self.watch, &Suppressions::default(), 1)
    }
}

type Answer = Option<(u32, Verdict)>;
type Scenario = (&'static str, fn(&mut Program), Answer);

const LEAK: u32 = 1;
const GROWING: Answer = Some((LEAK, Verdict::Growing));

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

/// Each a small program of its own kind, and what is to be said of it.
const SCENARIOS: [Scenario; 30] = [
    (
        "linear leak",
        |p| {
            (0..steps(p)).for_each(|_| {
                p.step();
                p.alloc(LEAK, MIB);
            })
        },
        GROWING,
    ),
    (
        "linear leak and nothing else",
        |p| {
            for _ in 0..300 {
                p.alloc(LEAK, MIB);
                p.work(MS);
            }
        },
        GROWING,
    ),
    (
        "tight loop that only leaks, with a stall",
        |p| {
            for n in 0..1_000 {
                p.alloc(LEAK, MIB);
                if n == 500 {
                    p.work(40 * MS)
                }
            }
        },
        GROWING,
    ),
    (
        "slow leak, 512 B in fifty steps",
        |p| {
            for n in 0..steps(p) {
                p.step();
                if n % 50 == 0 {
                    p.alloc(LEAK, 512);
                }
            }
        },
        GROWING,
    ),
    (
        "slow leak below the steps of the same stack",
        |p| {
            for n in 0..steps(p) {
                p.step();
                let temporary = p.alloc(LEAK, 200 * MIB);
                p.work(MS);
                if n % 20 == 0 {
                    p.alloc(LEAK, 64 * KIB);
                }
                p.free(temporary);
            }
        },
        GROWING,
    ),
    (
        "slow leak below the epochs of the same stack",
        |p| {
            let steps = steps(p);
            let mut held = Vec::new();
            for n in 0..steps {
                p.step();
                held.push(p.alloc(LEAK, 20 * MIB));
                if n % (steps / 14) == 0 {
                    held.drain(..).for_each(|key| p.free(key));
                    p.alloc(LEAK, 30 * MIB);
                }
            }
        },
        GROWING,
    ),
    (
        "leak in one call of twenty",
        |p| {
            for _ in 0..steps(p) {
                p.step();
                if p.random(20) == 0 {
                    p.alloc(LEAK, 3 * MIB);
                }
            }
        },
        GROWING,
    ),
    (
        "one leak of 200 call sites",
        |p| {
            for n in 0..steps(p) {
                let stack = 100 + (n % 200) as u32;
                let key = p.alloc(stack, MIB);
                p.step();
                p.free(key);
                if n % 7 == 0 {
                    p.alloc(LEAK, MIB);
                }
            }
        },
        GROWING,
    ),
    (
        "leak that begins in the middle",
        |p| {
            let steps = steps(p);
            for n in 0..steps {
                p.step();
                if n > steps / 2 {
                    p.alloc(LEAK, MIB);
                }
            }
        },
        GROWING,
    ),
    (
        "leak with a long pause in the middle",
        |p| {
            let steps = steps(p);
            for n in 0..steps {
                p.step();
                p.alloc(LEAK, MIB);
                if n == steps / 2 {
                    p.now_ns += 4 * SECOND;
                }
            }
        },
        GROWING,
    ),
    (
        "leak in bursts",
        |p| {
            let steps = steps(p);
            for n in 0..steps {
                p.step();
                if n % (steps / 12) == 0 {
                    (0..8).for_each(|_| {
                        p.alloc(LEAK, MIB);
                    });
                }
            }
        },
        GROWING,
    ),
    (
        "a queue that also leaks",
        |p| {
            let mut queue = VecDeque::new();
            for _ in 0..steps(p) {
                p.step();
                for _ in 0..p.random(6) {
                    queue.push_back(p.alloc(LEAK, 4 * MIB));
                }
                while queue.len() > 40 || p.random(3) > 0 {
                    let Some(key) = queue.pop_front() else { break };
                    p.free(key);
                }
                p.alloc(LEAK, MIB);
            }
        },
        GROWING,
    ),
    (
        "one buffer that grows",
        |p| {
            let mut buffer = p.alloc(LEAK, MIB);
            for n in 0..steps(p) {
                p.step();
                let larger = p.alloc(LEAK, (n + 2) * MIB / 4);
                p.free(buffer);
                buffer = larger;
            }
        },
        GROWING,
    ),
    (
        "a list that is dropped at the end",
        |p| {
            let steps = steps(p);
            let kept: Vec<u64> = (0..steps)
                .map(|_| {
                    p.step();
                    p.alloc(LEAK, MIB)
                })
                .collect();
            kept.into_iter().for_each(|key| p.free(key));
        },
        Some((LEAK, Verdict::FreedAtEnd)),
    ),
    (
        "all is freed at the end but one",
        |p| {
            for stack in 10..30 {
                p.alloc(stack, 8 * MIB);
            }
            let left = p.alloc(LEAK, 8 * MIB);
            (0..500).for_each(|_| p.step());
            p.live.remove(&left);
            p.free_all();
        },
        Some((LEAK, Verdict::NeverFreed)),
    ),
    ("training", |p| (0..steps(p)).for_each(|_| p.step()), None),
    (
        "a cache that grows and is full",
        |p| {
            let steps = steps(p);
            let full = steps / 4 + p.random(steps / 2);
            for n in 0..steps {
                p.step();
                if n < full {
                    p.alloc(LEAK, MIB);
                }
            }
        },
        None,
    ),
    (
        "an LRU cache",
        |p| {
            let mut cache = VecDeque::new();
            let size = 50 + p.random(200) as usize;
            for _ in 0..steps(p) {
                p.step();
                cache.push_back(p.alloc(LEAK, MIB + 2 * MIB * (size as u64 % 3)));
                if cache.len() > size {
                    let key = cache.pop_front().unwrap();
                    p.free(key);
                }
            }
        },
        None,
    ),
    (
        "an LRU cache of many sizes",
        |p| {
            let mut cache = VecDeque::new();
            let size = 50 + p.random(100) as usize;
            for _ in 0..steps(p) {
                p.step();
                let bytes = MIB + p.random(16 * MIB);
                cache.push_back(p.alloc(LEAK, bytes));
                if cache.len() > size {
                    let key = cache.pop_front().unwrap();
                    p.free(key);
                }
            }
        },
        None,
    ),
    (
        "a cache of shapes",
        |p| {
            let mut seen = std::collections::BTreeSet::new();
            let shapes = 20 + p.random(30);
            for _ in 0..steps(p) {
                p.step();
                let shape = p.random(shapes);
                if seen.insert(shape) {
                    p.alloc(LEAK, MIB + shape * MIB);
                }
            }
        },
        None,
    ),
    (
        "warm-up only",
        |p| {
            for _ in 0..200 {
                p.alloc(LEAK, MIB);
                p.work(MS / 4);
            }
            (0..600).for_each(|_| p.step());
        },
        None,
    ),
    (
        "load, then hours of serving without an event",
        |p| {
            parameters(p);
            p.now_ns += 3_600 * SECOND;
        },
        None,
    ),
    (
        "saw-tooth of epochs",
        |p| {
            let mut held = Vec::new();
            let steps = steps(p);
            let epoch = steps / (6 + p.random(20));
            for n in 1..=steps {
                p.step();
                held.push(p.alloc(LEAK, MIB));
                if n % epoch == 0 {
                    held.drain(..).for_each(|key| p.free(key));
                }
            }
        },
        None,
    ),
    (
        "requests that grow and end",
        |p| {
            parameters(p);
            for _ in 0..30 + p.random(60) {
                let mut buffer = p.alloc(LEAK, MIB);
                for n in 0..10 + p.random(60) {
                    let larger = p.alloc(LEAK, (n + 2) * MIB / 4);
                    p.free(buffer);
                    buffer = larger;
                    p.work(MS);
                }
                p.free(buffer);
            }
        },
        None,
    ),
    (
        "a queue of random length",
        |p| {
            let mut queue = VecDeque::new();
            for _ in 0..steps(p) {
                p.step();
                match p.random(2) == 0 || queue.is_empty() {
                    true if queue.len() < 60 => queue.push_back(p.alloc(LEAK, 4 * MIB)),
                    _ => {
                        let key = queue.pop_front().unwrap();
                        p.free(key);
                    }
                }
            }
        },
        None,
    ),
    (
        "random sizes, freed in random order",
        |p| {
            let mut held: Vec<u64> = Vec::new();
            for _ in 0..steps(p) {
                let size = p.random(64 * MIB);
                held.push(p.alloc(LEAK, size));
                while held.len() > 30 {
                    let at = p.random(held.len() as u64) as usize;
                    let key = held.swap_remove(at);
                    p.free(key);
                }
                p.work(MS);
            }
        },
        None,
    ),
    (
        "single allocations that are never freed",
        |p| {
            for stack in 0..5 {
                p.alloc(LEAK + stack, 8 * MIB);
            }
            (0..600).for_each(|_| p.step());
            p.alloc(LEAK + 9, 8 * MIB);
            (0..200).for_each(|_| p.step());
        },
        None,
    ),
    (
        "held from the beginning, freed at exit",
        |p| {
            for _ in 0..60 {
                p.alloc(LEAK, MIB);
            }
            (0..600).for_each(|_| p.step());
            p.free_all();
        },
        None,
    ),
    (
        "filled one by one, freed one by one",
        |p| {
            let held: Vec<u64> = (0..500)
                .map(|_| {
                    p.work(MS);
                    p.alloc(LEAK, MIB)
                })
                .collect();
            held.into_iter().for_each(|key| {
                p.work(MS);
                p.free(key);
            });
        },
        None,
    ),
    (
        "a second model in the middle of the run",
        |p| {
            let steps = steps(p);
            for n in 0..steps {
                p.step();
                if n == steps / 2 {
                    (0..148).for_each(|_| {
                        p.alloc(LEAK, MIB);
                        p.work(MS / 8);
                    });
                }
            }
        },
        None,
    ),
];

/// More by `VRAMTRACE_SEEDS`.
fn seeds() -> u64 {
    std::env::var("VRAMTRACE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2)
}

/// Leaks that are told with more certainty than a coin.
fn said(found: &Leaks) -> Vec<(u32, Verdict)> {
    let sure = found.leaks.iter().filter(|leak| leak.confidence >= 0.5);
    sure.map(|leak| (leak.stack.0, leak.verdict)).collect()
}

#[test]
fn known_programs_get_known_answers() {
    let (mut right, mut missed, mut false_alarms, mut real) = (0, 0, 0, 0);
    let mut table = String::new();
    let seeds = seeds();
    for (name, program, answer) in SCENARIOS {
        let (mut hits, mut wrong) = (0, 0);
        for seed in 1..=seeds {
            let mut p = Program::new(seed);
            program(&mut p);
            let found = p.found(false);
            let said = said(&found);
            let hit = answer.is_none_or(|answer| said.contains(&answer));
            hits += u64::from(hit);
            wrong += said.iter().filter(|one| Some(**one) != answer).count() as u64;
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
