//! Programs whose laws are known.

use proptest::prelude::*;
use vramtrace_format::Kind;

use super::made::{Program, Size};
use super::*;
use crate::allocator::{Conf, Request};
use crate::testing::TraceBuilder;
use crate::trace::Trace;

const MIB: u64 = 1 << 20;

/// Under it blocks are as large as requests.
fn expandable() -> Conf {
    Conf::parse("expandable_segments:True").unwrap()
}

impl Default for Program {
    fn default() -> Program {
        let layer: fn(u64) -> u64 = |batch| 3 * MIB * batch;
        program(&[layer; 4])
    }
}

/// A training whose activations have these sizes, as functions of the batch.
fn program(layers: &[fn(u64) -> u64]) -> Program {
    let layers = layers.iter().map(|size| Size::OfBatch(*size)).collect();
    Program { layers, weight: 8 * MIB, even_only: 0 }
}

/// The trace of a run with a batch for each step.
pub(super) fn run(program: &Program, batches: &[u64], marked: bool) -> TraceBuilder {
    let steps: Vec<Values> = batches.iter().map(|batch| Values::one(*batch)).collect();
    program.run(&steps, marked, &expandable()).trace
}

pub(super) fn recording_of(
    builder: &TraceBuilder,
    batches: &Batches,
) -> Result<Recording, NotComparable> {
    let trace = Trace::of(builder);
    Recording::read("a.vtrace", &trace, None, &Varied::default(), std::slice::from_ref(batches))
}

pub(super) fn recorded(program: &Program, batch: u64) -> Recording {
    recording_of(&run(program, &[batch; 3], true), &Batches::Marked).unwrap()
}

pub(super) fn requests(log: &crate::allocator::Log) -> Vec<Request> {
    log.requests().collect()
}

/// The peak of the allocated bytes at a batch, by the expected sizes.
fn allocated(scaling: &Scaling, batch: u64) -> u64 {
    replayed(scaling, batch, Bound::Expected)
}

fn replayed(scaling: &Scaling, batch: u64, bound: Bound) -> u64 {
    scaling.replay(Values::one(batch), bound, &expandable()).peak_allocated
}

fn truth(program: &Program, batch: u64) -> u64 {
    let runs = [recorded(program, batch)];
    allocated(&Scaling::of(&runs).unwrap(), batch)
}

#[test]
fn a_program_with_known_laws_is_scaled_to_the_byte() {
    let program = program(&[
        |batch| 3 * MIB * batch,
        |_| 40 * MIB,
        |batch| 512 * batch,
        |batch| MIB * batch + 512,
    ]);
    let runs = [recorded(&program, 4), recorded(&program, 6)];
    let scaling = Scaling::of(&runs).unwrap();
    assert_eq!((scaling.recorded.clone(), scaling.paired), ([4, 6].map(Values::one).to_vec(), 1.0));
    for batch in [1, 4, 5, 6, 7, 24, 1000] {
        let (found, right) = (allocated(&scaling, batch), truth(&program, batch));
        assert!(found.abs_diff(right) <= 4 * 512 * batch.max(6) / 6, "{batch}: {found} {right}");
    }
    let shares = scaling.shares();
    assert_eq!(shares.keys().collect::<Vec<_>>(), [&LawKind::Constant, &LawKind::AFFINE]);
}

#[test]
fn a_run_whose_last_batch_is_short_serves_alone() {
    let program = Program::default();
    for batches in [vec![6, 6, 6, 4], vec![4, 6, 6], vec![6, 4]] {
        let runs = [recording_of(&run(&program, &batches, true), &Batches::Marked).unwrap()];
        let scaling = Scaling::of(&runs).unwrap();
        assert_eq!(scaling.recorded, [4, 6].map(Values::one), "{batches:?}");
        assert_eq!(allocated(&scaling, 20), truth(&program, 20), "{batches:?}");
        let by_user = recording_of(&run(&program, &batches, false), &Batches::Steps(batches));
        let runs = [by_user.unwrap()];
        let scaling = Scaling::of(&runs).unwrap();
        assert_eq!(allocated(&scaling, 20), truth(&program, 20));
    }
}

#[test]
fn blocks_that_one_batch_alone_has_do_not_shift_the_others() {
    let program = Program { even_only: 64 * MIB, ..Program::default() };
    let runs = [recorded(&program, 5), recorded(&program, 6)];
    let scaling = Scaling::of(&runs).unwrap();
    let unknown = scaling.shares()[&LawKind::Unknown];
    assert_eq!((unknown.blocks, unknown.bytes), (3, 3 * 64 * MIB));
    let [low, high] = [Bound::Low, Bound::High].map(|bound| replayed(&scaling, 24, bound));
    assert!((low..=high).contains(&truth(&program, 24)) && low < high);
}

#[test]
fn buffers_that_saturate_and_squares_have_an_interval() {
    let program = program(&[|batch| (8 * batch).min(40) * MIB, |batch| batch * batch * MIB]);
    let runs = [recorded(&program, 3), recorded(&program, 5), recorded(&program, 7)];
    let scaling = Scaling::of(&runs).unwrap();
    let kinds: Vec<LawKind> = scaling.shares().into_keys().collect();
    assert_eq!(kinds, [LawKind::Constant, LawKind::Unknown]);
    let [low, high] = [Bound::Low, Bound::High].map(|bound| replayed(&scaling, 20, bound));
    assert!((low..=high).contains(&truth(&program, 20)));
}

#[test]
fn compiled_code_may_have_other_blocks_at_any_batch() {
    let card = Some(Card::of_size(4 << 30));
    let confs = vec![("default".into(), Conf::default())];
    let question = Question { at: None, card, in_use: Some(0), values: Vec::new(), confs };
    let of = |size: fn(u64) -> u64, file: &str| {
        let runs = [4, 6].map(|batch| {
            let steps = [batch; 3].map(Values::one);
            let mut trace = program(&[size]).run(&steps, true, &Conf::default()).trace;
            trace.code(3, "Net.forward", file, 4);
            recording_of(&trace, &Batches::Marked).unwrap()
        });
        let setting = &answer(&runs, &question).unwrap().settings[0];
        (replayed(&Scaling::of(&runs).unwrap(), 24, Bound::High), setting.fits, setting.fails)
    };
    let compiled = "/tmp/torchinductor_me/ab/cab7.py";
    let known: fn(u64) -> u64 = |batch| 15 * MIB * batch;
    assert_eq!(of(known, "/me/net.py"), (384 * MIB, 132, Some(139)));
    assert_eq!(of(known, compiled), (384 * MIB, 125, Some(279)), "in whatever places");
    // Two requests, which no law of one explains.
    let other: fn(u64) -> u64 = |batch| if batch < 6 { 9 * MIB } else { 15 * MIB * batch };
    assert_eq!(of(other, compiled), (384 * MIB, 125, None), "constant or in proportion");
    assert!(of(other, "/me/net.py").0 > of(other, compiled).0);
    // The last row of a padded tensor is not padded.
    let point = |at, bytes| Point { at: Values::one(at), bytes, least: bytes };
    let padded = vec![point(4, 205_914_084), point(6, 308_871_140)];
    let law = law::laws(&[padded], false).remove(0).unwrap();
    assert_eq!(law.at(Values::one(20), Bound::High), 1_029_570_532);
}

#[test]
fn one_batch_gives_an_interval_that_holds_the_truth() {
    let program = Program::default();
    let runs = [recorded(&program, 6)];
    let scaling = Scaling::of(&runs).unwrap();
    let [low, high] = [Bound::Low, Bound::High].map(|bound| replayed(&scaling, 12, bound));
    let right = truth(&program, 12);
    assert!(low < right && right <= high);
}

#[test]
fn what_cannot_be_compared_says_why() {
    let program = Program::default();
    let layer: fn(u64) -> u64 = |batch| 5 * MIB * batch;
    let other = self::program(&[layer; 9]);
    let mut elsewhere = run(&other, &[6, 6], true);
    elsewhere.code(3, "Other.forward", "/home/me/other.py", 40);
    elsewhere.code(5, "_engine_run_backward", "/v/site-packages/torch/autograd/graph.py", 99);
    elsewhere.code(1, "main", "/home/me/other.py", 1);
    let runs = [recorded(&program, 4), recording_of(&elsewhere, &Batches::Marked).unwrap()];
    let refused = Scaling::of(&runs).unwrap_err().to_string();
    assert!(refused.starts_with("cannot be compared: only "), "{refused}");
    let unmarked = run(&program, &[4, 4], false);
    let refused = recording_of(&unmarked, &Batches::Marked).unwrap_err().to_string();
    assert!(refused.contains("--recorded batch=N"), "{refused}");
    let refused = recording_of(&unmarked, &Batches::Steps(vec![1, 2, 3])).unwrap_err().to_string();
    assert!(refused.contains("3 values for a.vtrace, which has 2 whole steps"), "{refused}");
    let mut nothing = TraceBuilder::new();
    nothing.alloc(5, Kind::Device, 1 << 40, MIB);
    assert!(recording_of(&nothing, &Batches::Each(4)).is_err());
}

proptest! {
    /// At its own batch the scaled run is the recorded one, whatever else was recorded.
    #[test]
    fn scaled_to_its_own_batch_a_run_is_the_recorded_one(
        sizes in prop::collection::vec(0usize..6, 1..8),
        batches in prop::collection::vec(1u64..40, 1..4),
        even_only in 0u64..3,
    ) {
        let laws: [fn(u64) -> u64; 6] = [
            |batch| 3 * MIB * batch,
            |_| 40 * MIB,
            |batch| 512 * batch,
            |batch| (8 * batch).min(40) * MIB,
            |batch| batch * batch * 512,
            |batch| (batch * 7_919 % 13 + 1) * MIB,
        ];
        let program = Program {
            layers: sizes.iter().map(|size| Size::OfBatch(laws[*size])).collect(),
            weight: 2 * MIB,
            even_only: even_only * MIB,
        };
        let runs: Vec<Recording> = batches.iter().map(|batch| recorded(&program, *batch)).collect();
        if let Ok(scaling) = Scaling::of(&runs) {
            let most = *batches.iter().max().unwrap();
            for bound in [Bound::Low, Bound::Expected, Bound::High] {
                let scaled = requests(&scaling.log(Values::one(most), bound, true));
                prop_assert_eq!(scaled, requests(&scaling.base.recorded.log));
            }
        }
    }
}

#[test]
fn what_others_held_of_the_recorded_card_is_not_there_for_a_run() {
    let sample = |free, process_bytes| vramtrace_format::Sample {
        device: vramtrace_format::DeviceId(0),
        driver_free: free,
        driver_total: Some(24 << 30),
        process_bytes,
        context_bytes: 0,
    };
    let asked = |sampled, card: Option<Card>, in_use| {
        let runs = [4, 6].map(|batch| {
            let mut trace = run(&Program::default(), &[batch; 3], true);
            trace.event(1 << 40, vramtrace_format::Event::Sample(sampled));
            recording_of(&trace, &Batches::Marked).unwrap()
        });
        let question = Question { at: None, card, in_use, values: Vec::new(), confs: Vec::new() };
        let answer = answer(&runs, &question).unwrap();
        answer.card.map_or((0, false), |card| (card.in_use, card.in_use_recorded))
    };
    let known = sample(Some(10 << 30), Some(11 << 30));
    assert_eq!(asked(known, None, None), (3 << 30, true));
    assert_eq!(asked(known, None, Some(1)), (1, false), "what is given counts");
    assert_eq!(asked(known, Some(Card::of_size(8 << 30)), None), (0, false), "another card");
    for unknown in
        [sample(None, Some(1)), sample(Some(1), None), sample(Some(10 << 30), Some(15 << 30))]
    {
        assert_eq!(asked(unknown, None, None), (0, false), "{unknown:?}");
    }
}
