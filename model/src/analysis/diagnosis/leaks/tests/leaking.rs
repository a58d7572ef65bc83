//! Programs that leak.

use std::collections::VecDeque;

use vramtrace_format::physical::{KIB, MIB};

use super::{LEAK, MS, SECOND, Scenario, Verdict, each_step, growing, leaking, short_loop, steps};

pub(super) const LEAKING: &[Scenario] = &[
    growing("linear leak", |p| {
        each_step(p, |p, _, _| {
            p.alloc(LEAK, MIB);
        });
    }),
    growing("linear leak and nothing else", |p| {
        for _ in 0..300 {
            p.alloc(LEAK, MIB);
            p.work(MS);
        }
    }),
    growing("tight loop that only leaks, with a stall", |p| {
        for n in 0..1_000 {
            p.alloc(LEAK, MIB);
            if n == 500 {
                p.work(40 * MS)
            }
        }
    }),
    growing("slow leak, 512 B in fifty steps", |p| {
        each_step(p, |p, n, _| {
            if n % 50 == 0 {
                p.alloc(LEAK, 512);
            }
        });
    }),
    growing("slow leak below the steps of the same stack", |p| {
        each_step(p, |p, n, _| {
            let temporary = p.alloc(LEAK, 200 * MIB);
            p.work(MS);
            if n % 20 == 0 {
                p.alloc(LEAK, 64 * KIB);
            }
            p.free(temporary);
        });
    }),
    growing("slow leak below the epochs of the same stack", |p| {
        let mut held = Vec::new();
        each_step(p, |p, n, steps| {
            held.push(p.alloc(LEAK, 20 * MIB));
            if n % (steps / 14) == 0 {
                held.drain(..).for_each(|key| p.free(key));
                p.alloc(LEAK, 30 * MIB);
            }
        });
    }),
    growing("leak in one call of twenty", |p| {
        each_step(p, |p, _, _| {
            if p.random(20) == 0 {
                p.alloc(LEAK, 3 * MIB);
            }
        });
    }),
    growing("one leak of 200 call sites", |p| {
        for n in 0..steps(p) {
            let stack = 100 + (n % 200) as u32;
            let key = p.alloc(stack, MIB);
            p.step();
            p.free(key);
            if n % 7 == 0 {
                p.alloc(LEAK, MIB);
            }
        }
    }),
    growing("leak that begins in the middle", |p| {
        each_step(p, |p, n, steps| {
            if n > steps / 2 {
                p.alloc(LEAK, MIB);
            }
        });
    }),
    growing("leak with a long pause in the middle", |p| {
        each_step(p, |p, n, steps| {
            p.alloc(LEAK, MIB);
            if n == steps / 2 {
                p.now_ns += 4 * SECOND;
            }
        });
    }),
    growing("leak in bursts", |p| {
        each_step(p, |p, n, steps| {
            if n % (steps / 12) == 0 {
                (0..8).for_each(|_| {
                    p.alloc(LEAK, MIB);
                });
            }
        });
    }),
    growing("a queue that also leaks", |p| {
        let mut queue = VecDeque::new();
        each_step(p, |p, _, _| {
            for _ in 0..p.random(6) {
                queue.push_back(p.alloc(LEAK, 4 * MIB));
            }
            while queue.len() > 40 || p.random(3) > 0 {
                let Some(key) = queue.pop_front() else { break };
                p.free(key);
            }
            p.alloc(LEAK, MIB);
        });
    }),
    growing("one buffer that grows", |p| {
        let mut buffer = p.alloc(LEAK, MIB);
        each_step(p, |p, n, _| {
            let larger = p.alloc(LEAK, (n + 2) * MIB / 4);
            p.free(buffer);
            buffer = larger;
        });
    }),
    leaking("a list that is dropped at the end", Verdict::FreedAtEnd, |p| {
        let mut kept = Vec::new();
        each_step(p, |p, _, _| kept.push(p.alloc(LEAK, MIB)));
        kept.into_iter().for_each(|key| p.free(key));
    }),
    growing("a list that is dropped after a refusal", |p| {
        let mut kept = Vec::new();
        each_step(p, |p, _, _| kept.push(p.alloc(LEAK, MIB)));
        p.refused();
        kept.into_iter().for_each(|key| p.free(key));
    }),
    growing("a server that is refused, and goes on to answer", |p| {
        each_step(p, |p, n, steps| match n < steps / 2 {
            true => drop(p.alloc(LEAK, MIB)),
            false => p.refused(),
        });
    }),
    growing("an evaluation that keeps its results, after a long training", |p| {
        (0..800).for_each(|_| p.step());
        for _ in 0..40 {
            let before = p.alloc(LEAK, 300 * MIB);
            p.step();
            p.alloc(LEAK, 300 * MIB);
            p.free(before);
        }
        p.refused();
    }),
    growing("a larger request is refused first, and what leaks goes on until none is left", |p| {
        each_step(p, |p, n, steps| {
            if n < steps / 2 {
                p.alloc(LEAK, MIB);
            }
            if n > steps / 3 {
                p.refused();
            }
        });
    }),
    leaking("all is freed at the end but one", Verdict::NeverFreed, |p| {
        for stack in 10..30 {
            p.alloc(stack, 8 * MIB);
        }
        let left = p.alloc(LEAK, 8 * MIB);
        (0..500).for_each(|_| p.step());
        p.live.remove(&left);
        p.free_all();
    }),
    growing("losses kept in a loop that is short beside its start and its end", |p| {
        let steps = 200 + p.random(400);
        short_loop(p, steps, |p, _| {
            p.alloc(LEAK, 512);
        });
        p.work(500 * MS);
    }),
    growing("losses kept in a loop of sixty steps", |p| {
        short_loop(p, 60, |p, _| {
            p.alloc(LEAK, 512);
        });
        p.work(500 * MS);
    }),
    growing("losses kept with what they were made of", |p| {
        let steps = 200 + p.random(400);
        short_loop(p, steps, |p, _| {
            for size in [4 * MIB, 512, 4 * MIB] {
                p.alloc(LEAK, size);
            }
        });
    }),
    leaking("losses kept until the interpreter ends", Verdict::FreedAtEnd, |p| {
        let mut losses = Vec::new();
        let steps = 200 + p.random(400);
        short_loop(p, steps, |p, _| losses.push(p.alloc(LEAK, 512)));
        p.work(200 * MS);
        losses.into_iter().for_each(|key| p.free(key));
        p.work(300 * MS);
    }),
    growing("losses kept over epochs, with an evaluation after each", |p| {
        for _ in 0..8 {
            short_loop(p, 100, |p, _| {
                p.alloc(LEAK, 512);
            });
            short_loop(p, 20, |_, _| {});
        }
    }),
];
