//! The caveats of an answer.

use super::answer::AnsweredCard;
use super::law::LawKind;
use super::scaling::Scaling;
use super::varied::{Axis, describe};
use crate::units::size;

/// Part of the bytes of a run whose law may be unknown without a note.
const UNKNOWN_PART: f64 = 0.02;
/// Relative difference up to which the replayed peak counts as equal to the recorded one.
const AGREES: f64 = 0.01;

/// One sentence each.
pub(super) fn caveats(scaling: &Scaling, card: Option<&AnsweredCard>) -> Vec<String> {
    let base = scaling.base;
    let mut caveats = Vec::new();
    for (axis, name) in [Axis::First, Axis::Second].into_iter().zip(base.varied.names()) {
        let mut values: Vec<u64> = scaling.recorded.iter().map(|at| at.of(axis)).collect();
        values.sort_unstable();
        values.dedup();
        if let [only] = values[..] {
            let name = name.as_str();
            caveats.push(format!(
                "only {name} {only} was recorded, so which memory grows with it is not known: a \
                 second short run, at another {name}, narrows the answer to a few of them"
            ));
        }
    }
    if let Some(why) = &base.no_steps {
        caveats.push(format!("the whole run is replayed as one step: {why}"));
    }
    let shares = scaling.shares();
    let all: u64 = shares.values().map(|share| share.bytes).sum();
    let unknown = shares.get(&LawKind::Unknown).map_or(0, |share| share.bytes);
    if scaling.recorded.len() > 1 && unknown as f64 > UNKNOWN_PART * all as f64 {
        caveats.push(format!(
            "{} of the {} that a run at {} allocates in all follow no known law: the \
             intervals include what they may become",
            size(unknown),
            size(all),
            describe(&base.varied.numbers(scaling.base_values()))
        ));
    }
    if scaling.model_off > AGREES {
        caveats.push(format!(
            "a recorded run, replayed, reserves {:.1} % more or less than it did: the intervals \
             are as much wider",
            scaling.model_off * 100.0
        ));
    }
    match card {
        Some(card) if card.in_use_recorded => caveats.push(format!(
            "{} of the card were held by other processes and the driver when the run was recorded, and are \
             subtracted: --in-use gives another figure",
            size(card.in_use)
        )),
        Some(AnsweredCard { in_use: 0, .. }) => caveats.push(
            "memory that a desktop or other processes use is not subtracted: give it with --in-use"
                .into(),
        ),
        _ => {}
    }
    caveats
}
