//! Programs that leak.

use std::collections::VecDeque;

use vramtrace_format::physical::{KIB, MIB};

use super::{GROWING, LEAK, MS, SECOND, Scenario, Verdict, short_loop, steps};

pub(super) const LEAKING: &[Scenario] = &[
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
    (
        "losses kept in a loop that is short beside its start and its end",
        |p| {
            let steps = 200 + p.random(400);
            short_loop(p, steps, |p, _| {
                p.alloc(LEAK, 512);
            });
            p.work(500 * MS);
        },
        GROWING,
    ),
    (
        "losses kept in a loop of sixty steps",
        |p| {
            short_loop(p, 60, |p, _| {
                p.alloc(LEAK, 512);
            });
            p.work(500 * MS);
        },
        GROWING,
    ),
    (
        "losses kept with what they were made of",
        |p| {
            let steps = 200 + p.random(400);
            short_loop(p, steps, |p, _| {
                for size in [4 * MIB, 512, 4 * MIB] {
                    p.alloc(LEAK, size);
                }
            });
        },
        GROWING,
    ),
    (
        "losses kept until the interpreter ends",
        |p| {
            let mut losses = Vec::new();
            let steps = 200 + p.random(400);
            short_loop(p, steps, |p, _| losses.push(p.alloc(LEAK, 512)));
            p.work(200 * MS);
            losses.into_iter().for_each(|key| p.free(key));
            p.work(300 * MS);
        },
        Some((LEAK, Verdict::FreedAtEnd)),
    ),
    (
        "losses kept over epochs, with an evaluation after each",
        |p| {
            for _ in 0..8 {
                short_loop(p, 100, |p, _| {
                    p.alloc(LEAK, 512);
                });
                short_loop(p, 20, |_, _| {});
            }
        },
        GROWING,
    ),
];
