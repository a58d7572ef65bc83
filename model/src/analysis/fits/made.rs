//! Traces of programs whose blocks follow known laws. PyTorch's cache, replayed, says how large their blocks are.

use vramtrace_format::{Definition, Event, Kind, Mark, Space};

use super::*;
use crate::allocator::{BlockId, Cache, Conf, ReplayOutcome};
use crate::testing::TraceBuilder;
use crate::trace::Trace;

/// The size of an activation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Size {
    /// A factor, and powers of the batch and of the length.
    Powers(u64, (u32, u32)),
    OfBatch(fn(u64) -> u64),
}

impl Size {
    fn at(self, at: Values) -> u64 {
        match self {
            Size::Powers(each, powers) => each * at.first.pow(powers.0) * at.second.pow(powers.1),
            Size::OfBatch(size) => size(at.first),
        }
    }
}

/// A training of a few layers.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub layers: Vec<Size>,
    pub weight: u64,
    /// Blocks that only an even batch has, at the begin of backward.
    pub even_only: u64,
}

/// The stacks of a training.
pub(super) mod by {
    use crate::testing::TraceBuilder;

    pub(in super::super) const LOAD: u32 = 1;
    pub(in super::super) const FORWARD: u32 = 2;
    pub(in super::super) const BACKWARD: u32 = 3;
    /// Part of the backward pass, by a shorter stack.
    pub(in super::super) const EVEN: u32 = 4;
    pub(in super::super) const OPTIMIZER: u32 = 5;

    pub(in super::super) fn define(trace: &mut TraceBuilder) {
        let torch = |file: &str| format!("/v/site-packages/torch/{file}");
        trace.code(1, "main", "/home/me/train.py", 9);
        trace.code(2, "Module._call_impl", &torch("nn/modules/module.py"), 5);
        trace.code(3, "Net.forward", "/home/me/net.py", 4);
        trace.code(4, "backward", &torch("_tensor.py"), 3);
        trace.code(5, "_engine_run_backward", &torch("autograd/graph.py"), 2);
        trace.code(6, "SGD.step", &torch("optim/sgd.py"), 7);
        trace.stack(LOAD, &[], &[1], &[]);
        trace.stack(FORWARD, &[], &[3, 2, 1], &[]);
        trace.stack(BACKWARD, &[], &[5, 4, 1], &[]);
        trace.stack(EVEN, &[], &[4, 1], &[]);
        trace.stack(OPTIMIZER, &[], &[6, 1], &[]);
    }
}

pub(super) struct Run {
    pub trace: TraceBuilder,
    cache: Cache,
    /// Where the next block lies, in one segment. `None`: where the cache places it, in segments of its own.
    next: Option<u64>,
    at: u64,
}

const SEGMENT: u64 = 1 << 40;

impl Run {
    fn alloc(&mut self, bytes: u64, stack: u32) -> (BlockId, u64) {
        let before = self.cache.totals().reserved;
        let block = self.cache.alloc(bytes.max(1), 0, 0).expect("no limit");
        let (placed, size) = self.cache.span(block);
        let address = self.next.unwrap_or(placed % (1 << 49) + SEGMENT);
        self.next = self.next.map(|next| next + size);
        let grown = self.cache.totals().reserved - before;
        self.at += 1_000;
        if grown > 0 && self.next.is_none() {
            self.trace.alloc(self.at, Kind::Device, address, grown);
        }
        self.trace.alloc_by(self.at, Kind::Block, address, size, stack);
        (block, address)
    }

    fn free(&mut self, (block, address): (BlockId, u64)) {
        self.cache.free(block);
        self.at += 1_000;
        self.trace.free(self.at, Space::Block, address);
    }

    fn step(&mut self, program: &Program, at: Values, first: bool) {
        let sizes: Vec<u64> = program.layers.iter().map(|size| size.at(at)).collect();
        let kept: Vec<_> = sizes.iter().map(|size| self.alloc(*size, by::FORWARD)).collect();
        let mut gradients = Vec::new();
        if program.even_only > 0 && at.first.is_multiple_of(2) {
            let block = self.alloc(program.even_only, by::EVEN);
            self.free(block);
        }
        for block in kept.into_iter().rev() {
            gradients.push(self.alloc(program.weight, by::BACKWARD));
            self.free(block);
        }
        for _ in program.layers.iter().filter(|_| first) {
            self.alloc(program.weight, by::OPTIMIZER);
        }
        let block = self.alloc(program.weight, by::OPTIMIZER);
        self.free(block);
        gradients.into_iter().for_each(|block| self.free(block));
    }
}

impl Program {
    /// The trace of a run with these values in each step. Where it is marked, marks name both.
    pub(super) fn run(&self, steps: &[Values], marked: bool, conf: &Conf) -> Run {
        let mut trace = TraceBuilder::new();
        by::define(&mut trace);
        let mut next = None;
        if conf.expandable_segments {
            trace.setting("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
            trace.alloc(100, Kind::Device, SEGMENT, 1 << 44);
            next = Some(SEGMENT);
        }
        let mut run = Run { trace, cache: Cache::new(conf.clone(), None), next, at: 1_000 };
        for _ in &self.layers {
            run.alloc(self.weight, by::LOAD);
        }
        for (number, at) in steps.iter().enumerate() {
            if marked {
                let name = number as u32 + 1;
                let text = format!("batch={} length={}", at.first, at.second);
                run.trace.define(Definition::Text { id: name, text });
                run.at += 1_000;
                run.trace.event(run.at, Event::Mark { name, mark: Mark::Push });
            }
            run.step(self, *at, number == 0);
        }
        run
    }

    /// What a run takes.
    pub(super) fn peaks(&self, at: Values, conf: &Conf) -> ReplayOutcome {
        self.run(&[at; 3], true, conf).cache.totals().clone()
    }

    /// What is read of a run.
    pub(super) fn recorded(&self, at: Values, varied: &Varied, conf: &Conf) -> Recording {
        let trace = Trace::of(&self.run(&[at; 3], true, conf).trace);
        let marked = vec![Batches::Marked; varied.names().count()];
        Recording::read("a.vtrace", &trace, None, varied, &marked).unwrap()
    }
}

pub(super) fn both() -> Varied {
    Varied::two(VariedName::default(), VariedName::new("length").unwrap())
}
