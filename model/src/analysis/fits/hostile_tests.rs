//! Traces and values that no run has: an answer or a reason, and no panic.

use proptest::prelude::*;

use super::made::Program;
use super::tests::{recorded, recording_of, requests, run};
use super::*;
use crate::allocator::Conf;
use crate::testing::TraceBuilder;
use crate::trace::Trace;

/// Reads a trace of these bytes with a batch, if it can be opened.
fn read(bytes: &[u8], batch: u64) -> Option<Result<Recording, NotComparable>> {
    let trace = Trace::of_bytes(bytes.to_vec()).ok()?;
    let varied = Varied::one(VariedName::new("size").unwrap());
    Some(Recording::read("a.vtrace", &trace, None, &varied, &[Batches::Each(batch)]))
}

/// Answers for a card of 24 GiB and a batch, or says why not.
fn ask(recordings: &[Recording], batch: u64) -> Result<(), NotComparable> {
    let question = Question {
        at: None,
        card: Some(Card::of_size(24 << 30)),
        in_use: None,
        values: vec![batch],
        confs: vec![("default".into(), Conf::default())],
    };
    let answer = answer(recordings, &question)?;
    for predicted in &answer.predicted {
        for interval in [predicted.allocated, predicted.reserved, predicted.total] {
            assert!(interval.low <= interval.expected && interval.expected <= interval.high);
        }
    }
    for setting in &answer.settings {
        assert!(setting.fits <= setting.expected);
        assert!(setting.fails.is_none_or(|fails| fails > setting.expected));
    }
    Ok(())
}

fn written(batches: &[u64]) -> TraceBuilder {
    run(&Program::default(), batches, true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cut_and_changed_traces_end_in_an_answer_or_a_reason(
        cut in 0.0f64..1.0,
        changes in prop::collection::vec((0.0f64..1.0, any::<u8>()), 0..6),
        recorded_as in prop_oneof![1u64..50, Just(u64::MAX), Just(0), Just(LARGEST_BATCH)],
        asked in prop_oneof![1u64..100, Just(LARGEST_BATCH)],
    ) {
        let mut bytes = written(&[6; 3]).bytes();
        for (at, value) in changes {
            let at = (at * (bytes.len() - 1) as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((cut * 2.0 * bytes.len() as f64) as usize);
        if let Some(Ok(damaged)) = read(&bytes, recorded_as) {
            let runs = [recorded(&Program::default(), 4), damaged];
            if let Err(why) = ask(&runs, asked) {
                prop_assert!(why.to_string().starts_with("cannot be compared: "));
            }
        }
    }
}

#[test]
fn a_trace_twice_tells_what_it_tells_once() {
    let once = [recorded(&Program::default(), 6)];
    let twice = [recorded(&Program::default(), 6), recorded(&Program::default(), 6)];
    let log =
        |runs| requests(&Scaling::of(runs).unwrap().log(Values::one(12), Bound::Expected, true));
    assert_eq!(log(&once), log(&twice));
    assert!(ask(&twice, 12).is_ok());
}

#[test]
fn one_trace_under_two_values_has_no_answer() {
    let values = [4, 6].map(|batch| read(&written(&[6; 3]).bytes(), batch).unwrap().unwrap());
    let why = ask(&values, 12).unwrap_err().to_string();
    assert!(why.contains("cannot be compared: no block of a.vtrace has another size"), "{why}");
    for batch in [0, LARGEST_BATCH + 1, u64::MAX] {
        let refused = recording_of(&written(&[6; 3]), &Batches::Steps(vec![batch; 3])).unwrap_err();
        assert!(refused.to_string().contains(&format!("{batch} is no batch")), "{refused}");
    }
}
