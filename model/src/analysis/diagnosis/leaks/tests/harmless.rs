//! Programs that do not leak, though some look it.

use std::collections::VecDeque;

use vramtrace_format::physical::{KIB, MIB};

use super::{
    LEAK, MS, PRIVATE, Program, SECOND, Scenario, each_step, harmless, parameters, short_loop,
    steps, train,
};

/// The layers of one step, which are refused in the end.
fn layers(p: &mut Program) {
    for _ in 0..40 {
        let temporary = p.alloc(908, MIB);
        p.alloc(LEAK, 300 * MIB);
        p.work(4 * MS);
        p.free(temporary);
    }
    p.refused();
}

pub(super) const HARMLESS: &[Scenario] = &[
    harmless("training", |p| (0..steps(p)).for_each(|_| p.step())),
    harmless("a cache that grows and is full", |p| {
        let steps = steps(p);
        let full = steps / 4 + p.random(steps / 2);
        for n in 0..steps {
            p.step();
            if n < full {
                p.alloc(LEAK, MIB);
            }
        }
    }),
    harmless("a long training, and then a step whose layers are too large", |p| {
        (0..200).for_each(|_| p.step());
        layers(p);
    }),
    harmless("a load by way of staging memory, and then layers that are too large", |p| {
        for _ in 0..300 {
            let staging = p.alloc(907, MIB);
            p.alloc(800, 40 * MIB);
            p.work(4 * MS);
            p.free(staging);
        }
        layers(p);
    }),
    harmless("a server that captures its graphs into a private pool when it starts", |p| {
        (0..20).for_each(|_| p.step());
        p.site = PRIVATE;
        for _ in 0..67 {
            p.step();
            p.alloc(LEAK, 8 * MIB);
        }
    }),
    harmless("two lines load pieces of one size in turns, after all frees", |p| {
        for _ in 0..50 {
            let scratch = p.alloc(LEAK + 2, MIB);
            p.free(scratch);
        }
        for n in 0..200 {
            p.alloc(LEAK + n % 2, 200 * MIB);
            p.work(MS);
        }
    }),
    harmless("an LRU cache of many sizes", |p| {
        let mut cache = VecDeque::new();
        let size = 50 + p.random(100) as usize;
        each_step(p, |p, _, _| {
            let bytes = MIB + p.random(16 * MIB);
            cache.push_back(p.alloc(LEAK, bytes));
            if cache.len() > size {
                p.free(cache.pop_front().unwrap());
            }
        });
    }),
    harmless("the KV cache of one generation, 64 pieces that are concatenated", |p| {
        parameters(p);
        let mut layers: Vec<u64> = (0..64).map(|_| p.alloc(LEAK, MIB)).collect();
        for token in 1..200 {
            for layer in &mut layers {
                let longer = p.alloc(LEAK, MIB + token * 64 * KIB);
                p.free(std::mem::replace(layer, longer));
            }
            p.work(MS);
        }
    }),
    harmless("loads by way of staging memory, and then works without requests", |p| {
        for _ in 0..300 {
            let staging = p.alloc(LEAK + 1, 80 * MIB);
            p.alloc(LEAK, 40 * MIB);
            p.work(5 * MS);
            p.free(staging);
        }
        p.now_ns += 2 * SECOND;
    }),
    harmless("a cache of shapes", |p| {
        let mut seen = std::collections::BTreeSet::new();
        let shapes = 20 + p.random(30);
        each_step(p, |p, _, _| {
            let shape = p.random(shapes);
            if seen.insert(shape) {
                p.alloc(LEAK, MIB + shape * MIB);
            }
        });
    }),
    harmless("warm-up only", |p| {
        for _ in 0..200 {
            p.alloc(LEAK, MIB);
            p.work(MS / 4);
        }
        (0..600).for_each(|_| p.step());
    }),
    harmless("load, then hours of serving without an event", |p| {
        parameters(p);
        p.now_ns += 3_600 * SECOND;
    }),
    harmless("saw-tooth of epochs", |p| {
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
    }),
    harmless("requests that grow and end", |p| {
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
    }),
    harmless("a queue of random length", |p| {
        let mut queue = VecDeque::new();
        each_step(p, |p, _, _| match p.random(2) == 0 || queue.is_empty() {
            true if queue.len() < 60 => queue.push_back(p.alloc(LEAK, 4 * MIB)),
            _ => p.free(queue.pop_front().unwrap()),
        });
    }),
    harmless("random sizes, freed in random order", |p| {
        let mut held: Vec<u64> = Vec::new();
        for _ in 0..steps(p) {
            let size = p.random(64 * MIB);
            held.push(p.alloc(LEAK, size));
            while held.len() > 30 {
                let at = p.random(held.len() as u64) as usize;
                p.free(held.swap_remove(at));
            }
            p.work(MS);
        }
    }),
    harmless("single allocations that are never freed", |p| {
        for stack in 0..5 {
            p.alloc(LEAK + stack, 8 * MIB);
        }
        (0..600).for_each(|_| p.step());
        p.alloc(LEAK + 9, 8 * MIB);
        (0..200).for_each(|_| p.step());
    }),
    harmless("held from the beginning, freed at exit", |p| {
        for _ in 0..60 {
            p.alloc(LEAK, MIB);
        }
        (0..600).for_each(|_| p.step());
        p.free_all();
    }),
    harmless("filled one by one, freed one by one", |p| {
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
    }),
    harmless("a second model in the middle of the run", |p| {
        each_step(p, |p, n, steps| {
            if n == steps / 2 {
                (0..148).for_each(|_| {
                    p.alloc(LEAK, MIB);
                    p.work(MS / 8);
                });
            }
        });
    }),
    harmless("losses that are read and dropped", |p| {
        let mut last = None;
        let steps = 200 + p.random(400);
        short_loop(p, steps, |p, _| {
            let loss = p.alloc(LEAK, 512);
            last.replace(loss).into_iter().for_each(|key| p.free(key));
        });
        p.work(500 * MS);
    }),
    harmless("the last hundred losses", |p| {
        let mut last = VecDeque::new();
        let steps = 300 + p.random(300);
        short_loop(p, steps, |p, _| {
            last.push_back(p.alloc(LEAK, 512));
            if last.len() > 100 {
                p.free(last.pop_front().unwrap());
            }
        });
        p.work(500 * MS);
    }),
    harmless("a model is loaded, and no more", parameters),
    harmless("a model is loaded piece by piece and converted", |p| {
        for _ in 0..148 {
            let size = 4 * KIB + p.random(8 * MIB);
            let read = p.alloc(801, 2 * size);
            p.alloc(800, size);
            p.work(MS / 2);
            p.free(read);
        }
    }),
    harmless("one training step", |p| train(p, 1)),
    harmless("two training steps", |p| train(p, 2)),
    harmless("four training steps", |p| train(p, 4)),
    harmless("twenty training steps", |p| train(p, 20)),
];
