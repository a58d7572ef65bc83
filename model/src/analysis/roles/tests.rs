//! The rules against programs that counted their own memory: recorded runs of PyTorch on a GPU, in
//! which marks `truth:NAME` stand at the moments for which a file tells the bytes of each role, by
//! the addresses of parameters, of their gradients, of optimizer state and so on.

use proptest::prelude::*;
use serde_json::Value;
use vramtrace_format::{DeviceId, Kind, Mark, Space, Stamped};

use super::*;
use crate::analysis::holdings::places;
use crate::analysis::{Level, Moment};
use crate::replay::{Observer, Until};
use crate::symbols::Symbols;
use crate::testing::{SECOND, TORCH, TraceBuilder};
use crate::trace::{Definitions, Trace, in_repository};

struct Truths<'d> {
    definitions: &'d Definitions,
    found: Vec<(String, u64)>,
}

impl Observer for Truths<'_> {
    fn on_mark(&mut self, at: &Stamped, name: u32, mark: Mark) {
        let name = self.definitions.text(name).unwrap_or_default();
        if mark == Mark::Moment
            && let Some(name) = name.strip_prefix("truth:")
        {
            self.found.push((name.to_string(), at.offset));
        }
    }
}

fn open(name: &str) -> Trace {
    Trace::recorded(&format!("tests/data/roles/{name}.vtrace.gz"))
}

/// At each moment: its name, bytes in blocks, and the bytes of them whose role is right.
fn score(name: &str) -> Vec<(String, u64, u64)> {
    let path = in_repository(&format!("tests/data/roles/{name}.json"));
    let truth: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let trace = open(name);
    let (definitions, _) = trace.definitions();
    let symbols = Symbols::of_all(&definitions, trace.header());
    let mut marks = Truths { definitions: &definitions, found: Vec::new() };
    trace.replay(&definitions, &mut marks);
    let stop = |(_, offset): &(String, u64)| (DeviceId(0), Until::Offset(*offset));
    let stops = marks.found.iter().map(stop).collect();
    let finder = RoleFinder::new(&trace, &definitions, &symbols);
    let mut at = RolesAt::followed(&finder, (&trace, &definitions), stops, Level::Tensor);
    trace.visit(&definitions, &mut [&mut at]);
    let held = at.found;
    let moments = truth.as_array().unwrap();
    assert_eq!(moments.len(), held.len());
    let score = |(moment, (held, (marked, _))): (&Value, (&HeldByRole, &(String, u64)))| {
        assert_eq!(moment["name"], marked.as_str());
        let all = held.of_device(DeviceId(0));
        let ours = |role: Role| all.get(&role).map_or(0, |held| held.bytes);
        let counted = |role: &str| moment[role].as_u64().unwrap();
        let of_blocks = counted("allocated");
        // Libraries' own memory beside the blocks is workspace too, and not among the figures; nor is the driver's.
        let of_driver = [Role::Context, Role::GraphMemory];
        let held = all.iter().filter(|(role, _)| !of_driver.contains(role));
        let held: u64 = held.map(|(_, held)| held.bytes).sum();
        let beside = held - ours(Role::FreeCache) - of_blocks;
        let rest = [Role::Activations, Role::Temporary, Role::Workspace, Role::Communication];
        let pairs = [
            (ours(Role::Weights), counted("weights")),
            (ours(Role::Gradients), counted("gradients")),
            (ours(Role::OptimizerState), counted("optimizer")),
            (ours(Role::Input), counted("input")),
            (ours(Role::KvCache), counted("kv_cache")),
            (rest.into_iter().map(ours).sum::<u64>() - beside, counted("rest")),
        ];
        let right: u64 = pairs.iter().map(|(ours, counted)| ours.min(counted)).sum();
        (marked.clone(), of_blocks, right)
    };
    moments.iter().zip(held.iter().zip(&marks.found)).map(score).collect()
}

#[track_caller]
fn is_right(name: &str) {
    let scores = score(name);
    let (_, bytes, right) = scores.iter().max_by_key(|(_, bytes, _)| *bytes).unwrap();
    assert!(*right as f64 >= 0.98 * *bytes as f64, "{name}: {right} of {bytes} at the peak");
    for (moment, bytes, right) in &scores {
        assert!(*right as f64 >= 0.97 * *bytes as f64, "{name} {moment}: {right} of {bytes}");
    }
}

/// Training, gradient accumulation, generation and a compiled model, whose functions come from the compiler: the scratch
/// memory of a library stands below a line of backward, like its gradients.
#[test]
fn roles_are_those_the_program_counted() {
    ["gpt2", "accum", "gen", "compile"].into_iter().for_each(is_right);
}

/// A program that keeps what one of its lines allocates, beside the workspace of a library; then, where
/// `torch`, with a frame of PyTorch.
fn without_cache(torch: bool) -> Vec<(u64, Role)> {
    let mut t = TraceBuilder::new();
    t.module("/usr/lib/libcuda.so.1", 0x1000_0000);
    t.module("/opt/libcublas.so.12", 0x3000_0000);
    t.code(1, "keep_history", "/home/me/serve.py", 41);
    t.code(2, "SGD.step", "/home/me/optim/sgd.py", 7);
    if torch {
        t.code(3, "Module._call_impl", TORCH, 1501);
    }
    t.stack(1, &[0x1000_0010], &[1], &[]);
    t.stack(2, &[0x1000_0010, 0x3000_0010], &[1], &[]);
    t.stack(3, &[0x1000_0010], &[2], &[]);
    t.stack(4, &[0x1000_0010], if torch { &[3, 1] } else { &[1] }, &[]);
    t.context(0, 0);
    for n in 0..6 {
        t.alloc_by(n * SECOND, Kind::Device, (n + 1) << 40, 1 << 20, 1);
    }
    for (n, stack) in [(7, 2), (8, 3), (9, 4)] {
        t.alloc_by(n * SECOND, Kind::Device, n << 40, n << 20, stack);
    }
    let trace = Trace::of(&t);
    let (definitions, _) = trace.definitions();
    let symbols = Symbols::of_all(&definitions, trace.header());
    let finder = RoleFinder::new(&trace, &definitions, &symbols);
    let mut all = Vec::new();
    finder.follow(&trace, &definitions, &mut |of| all.push((of.live.size >> 20, of.role)));
    all.sort_by_key(|(size, _)| *size);
    all.dedup();
    all
}

/// Steps, modules and gradients are PyTorch's: a line that keeps memory elsewhere is no input of a model.
#[test]
fn without_pytorch_only_memory_of_libraries_has_a_role() {
    let unknown = [1, 8, 9].map(|size| (size, Role::Unknown));
    let [leak, step, line] = unknown;
    assert_eq!(without_cache(false), [leak, (7, Role::Workspace), step, line]);
    let with = without_cache(true);
    assert_eq!(with[1..3], [(7, Role::Workspace), (8, Role::OptimizerState)], "{with:?}");
    assert_ne!(with[0], leak);
}

/// The roles at the peaks, in a pass that follows all allocations to their ends, and from what the first pass kept.
fn assert_same_at_peaks(trace: &Trace) -> usize {
    let (definitions, _) = trace.definitions();
    let symbols = Symbols::of_all(&definitions, trace.header());
    let finder = RoleFinder::new(trace, &definitions, &symbols);
    let end = trace.replay(&definitions, &mut ()).state;
    let level = Level::of(&end);
    let places = places(&end, Moment::Peak);
    let known = |(device, place): &(DeviceId, Until)| finder.at_peak(*device, *place).is_some();
    assert!(places.iter().all(known));
    let mut at = RolesAt::followed(&finder, (trace, &definitions), places, level);
    let mut peaks = RolesAt::new(&finder, (trace, &definitions), &end, Moment::Peak, level);
    trace.visit(&definitions, &mut [&mut at, &mut peaks]);
    let (at, peaks) = (at.of_devices(), peaks.of_devices());
    assert_eq!(peaks, at, "{}", trace.path().display());
    peaks.held.keys().map(|(_, role, _)| *role).collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn the_first_pass_knows_the_roles_at_the_peaks_of_recorded_runs() {
    let mut roles = 0;
    for entry in std::fs::read_dir(in_repository("tests/data/roles")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = name.strip_suffix(".vtrace.gz") {
            roles = roles.max(assert_same_at_peaks(&open(name)));
        }
    }
    assert!(roles > 4, "{roles}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_pass_knows_the_roles_at_the_peaks_of_any_run(
        steps in proptest::collection::vec((0..6u64, 0..8u64, 1..9u64, 0..4u32), 1..80),
    ) {
        let mut builder = TraceBuilder::new();
        let files = ["/home/me/train.py", "torch/nn/modules/module.py", "torch/_tensor.py", "torch/optim/sgd.py"];
        let names = ["main", "Module._call_impl", "backward", "SGD.step"];
        for (id, (file, name)) in (1..).zip(files.iter().zip(names)) {
            builder.code(id, name, &format!("/v/site-packages/{file}"), 3);
            builder.stack(id, &[], &[id], &[]);
        }
        builder.module("/opt/libc10_cuda.so", 0x2000_0000);
        let block = |place: u64| (1 << 40) + place * (2 << 20);
        for (n, (what, place, size, stack)) in (1..).zip(steps) {
            let (time_ns, key) = (n * 640, block(place));
            match what {
                0 => builder.alloc(time_ns, Kind::Device, key, size << 20),
                1 => builder.alloc_on(time_ns, Kind::Device, 1, (1 << 44) + key, size << 20),
                2 => builder.free(time_ns, Space::Device, key),
                3 => builder.free(time_ns, Space::Block, key),
                _ => builder.alloc_by(time_ns, Kind::Block, key, size << 18, stack + 1),
            }
        }
        assert_same_at_peaks(&Trace::of(&builder));
    }
}
