//! What must hold for every program whose blocks follow the laws that are known.

use proptest::prelude::*;

use super::made::{Program, Size, both};
use super::tests::requests;
use super::*;
use crate::allocator::Conf;

const MIB: u64 = 1 << 20;
const CASES: u32 = 32;

/// Sizes of up to 64 MiB at batch 4 and length 256. `square`: whether some have the square of the length.
fn size(two: bool) -> impl Strategy<Value = Size> {
    let powers = match two {
        true => vec![(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)],
        false => vec![(0, 0), (1, 0)],
    };
    let powers = prop::sample::select(powers);
    (powers, 1u64..(64 << 20), any::<bool>()).prop_map(|(powers, bytes, round)| {
        let unit = 4u64.pow(powers.0) * 256u64.pow(powers.1);
        let each = (bytes / unit).max(1);
        let each = if round { each.next_power_of_two() } else { each };
        Size::Powers(each, powers)
    })
}

fn program(two: bool) -> impl Strategy<Value = Program> {
    let layers = prop::collection::vec(size(two), 1..8);
    (layers, 1u64..(16 << 20)).prop_map(|(layers, weight)| Program { layers, weight, even_only: 0 })
}

/// Runs that differ in the batch, in the length or in both: the values tell every law, some or none.
fn runs() -> impl Strategy<Value = Vec<Values>> {
    let values = (1u64..12, prop::sample::select(vec![64u64, 128, 192, 256, 384, 512]));
    let values = values.prop_map(|(first, second)| Values { first, second });
    prop::collection::vec(values, 1..5)
}

const DEFAULT: &str = "default";
/// Under it blocks are as large as requests.
const EXPANDABLE: &str = "expandable_segments:True";

fn read(program: &Program, at: &[Values], varied: &Varied, conf: &str) -> Vec<Recording> {
    let conf = Conf::parse(conf).unwrap();
    at.iter().map(|at| program.recorded(*at, varied, &conf)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Whatever else was recorded, and whatever the runs can tell apart.
    #[test]
    fn at_its_own_batch_and_length_a_run_is_the_recorded_one(
        program in program(true),
        at in runs(),
        conf in prop::sample::select(vec![DEFAULT, EXPANDABLE]),
    ) {
        let recordings = read(&program, &at, &both(), conf);
        if let Ok(scaling) = Scaling::of(&recordings) {
            for bound in [Bound::Low, Bound::Expected, Bound::High] {
                let scaled = requests(&scaling.log(scaling.base_values(), bound, true));
                prop_assert_eq!(scaled, requests(&scaling.base.recorded.log));
            }
        }
    }

    #[test]
    fn intervals_hold_the_truth_of_a_batch_and_a_length(
        program in program(true),
        at in runs(),
        asked in (1u64..40, 32u64..2048),
    ) {
        let recordings = read(&program, &at, &both(), EXPANDABLE);
        let to = Values { first: asked.0, second: asked.1 };
        holds(&program, &recordings, Some((Axis::Second, to.second)), to)?;
    }

    /// Of two batches at one length, and one of them at another length.
    #[test]
    fn three_runs_tell_all_laws(
        program in program(true),
        batches in (1u64..12, 1u64..12),
        asked in (1u64..40, 32u64..2048),
    ) {
        let (one, other) = (batches.0, batches.0 + batches.1);
        let at = [(one, 256), (other, 256), (one, 512)];
        let at = at.map(|(first, second)| Values { first, second });
        let recordings = read(&program, &at, &both(), EXPANDABLE);
        let to = Values { first: asked.0, second: asked.1 };
        if let Ok(scaling) = Scaling::of(&recordings) {
            let conf = Conf::parse(EXPANDABLE).unwrap();
            let [low, high] = [Bound::Low, Bound::High]
                .map(|bound| scaling.replay(to, bound, &conf).peak_allocated as f64);
            prop_assert!(high <= 1.01 * low, "{low} {high} at {to:?}");
        }
    }

    #[test]
    fn intervals_hold_the_truth_of_a_batch(
        program in program(false),
        at in prop::collection::vec(1u64..24, 1..4),
        asked in 1u64..64,
    ) {
        let at: Vec<Values> = at.into_iter().map(Values::one).collect();
        let recordings = read(&program, &at, &Varied::default(), EXPANDABLE);
        holds(&program, &recordings, None, Values::one(asked))?;
    }

    /// On a larger card, and with a smaller batch or length, more fits.
    #[test]
    fn more_memory_and_a_smaller_batch_never_fit_less(
        program in program(true),
        at in runs(),
        axis in prop::sample::select(vec![Axis::First, Axis::Second]),
        given in 1u64..600,
        capacities in (64u64..8192, 64u64..8192),
    ) {
        let recordings = read(&program, &at, &both(), DEFAULT);
        let ask = |mib: u64| {
            let card = Some(Card::of_size(mib * MIB));
            let values = vec![1, 2, 3, 5, 8, 13, 21, 100];
            let at = Some((axis, given));
            let confs = [DEFAULT, EXPANDABLE];
            let confs = confs.map(|name| (name.to_string(), Conf::parse(name).unwrap())).to_vec();
            answer(&recordings, &Question { at, card, in_use: None, values, confs }).ok()
        };
        let (less, more) = (capacities.0.min(capacities.1), capacities.0.max(capacities.1));
        let (Some(less), Some(more)) = (ask(less), ask(more)) else { return Ok(()) };
        for (less, more) in less.settings.iter().zip(&more.settings) {
            prop_assert!(more.fails.is_none_or(|fails| fails > less.fits), "{less:?} {more:?}");
        }
        for answer in [less, more] {
            for conf in [DEFAULT, EXPANDABLE] {
                let of = |one: &&Predicted| one.setting == conf;
                let verdicts: Vec<FitsVerdict> =
                    answer.predicted.iter().filter(of).filter_map(|one| one.verdict).collect();
                let order = [FitsVerdict::Fits, FitsVerdict::TooClose, FitsVerdict::DoesNotFit];
                let place = |one: &FitsVerdict| order.iter().position(|it| it == one);
                prop_assert!(verdicts.is_sorted_by_key(place), "{verdicts:?}");
            }
        }
    }
}

/// Whether the interval holds what the program really allocates, where the recordings can be compared. How much is
/// reserved depends on the order of requests too.
fn holds(
    program: &Program,
    recordings: &[Recording],
    at: Option<(Axis, u64)>,
    to: Values,
) -> Result<(), TestCaseError> {
    let conf = Conf::parse(EXPANDABLE).unwrap();
    let confs = vec![(EXPANDABLE.to_string(), conf.clone())];
    let question = Question { at, card: None, in_use: None, values: vec![to.first], confs };
    let Ok(answer) = answer(recordings, &question) else { return Ok(()) };
    let (interval, right) =
        (answer.predicted[0].allocated, program.peaks(to, &conf).peak_allocated);
    prop_assert!(
        (interval.low..=interval.high).contains(&right),
        "{right} is not in {interval:?} at {to:?}, of {:?}",
        answer.recorded
    );
    Ok(())
}
