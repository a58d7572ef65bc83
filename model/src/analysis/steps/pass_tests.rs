//! Iterations of orders of passes, written as words: `F` a forward pass that backward needs, `f` another one, `B` a
//! backward pass, a digit the gradients that it leaves, `x` that these are freed, `!` a request that failed, `s` a gradient scaler, `A`, `C` and
//! `D` optimizers.

use vramtrace_format::DeviceId;

use super::iterations::{cycles, groups, iterations};
use super::passes::{Gradients, Pass, PassKind};
use super::step::{EventPlace, NoSteps, StepState, Steps};

fn passes(text: &str) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    for letter in text.chars().filter(|letter| *letter != ' ') {
        let kind = match letter {
            'F' | 'f' => PassKind::Forward,
            'B' => PassKind::Backward,
            's' => PassKind::Scaler,
            'A' | 'C' | 'D' => PassKind::Optimizer,
            _ => {
                let last = passes.last_mut().unwrap();
                match letter {
                    'x' => last.frees_gradients = true,
                    'o' => last.in_optimizer = true,
                    '!' => last.failed = Some((1, 1)),
                    digit => last.gradients = digit.to_digit(10).map(|set| set as usize),
                }
                continue;
            }
        };
        let at = passes.len() as u64 * 10;
        let mut pass = Pass::new(kind, EventPlace { offset: at, time_ns: at });
        pass.end = EventPlace { offset: at + 5, time_ns: at + 5 };
        pass.feeds = letter == 'F';
        if kind == PassKind::Optimizer {
            pass.callers.push(letter as u64);
        }
        pass.devices.of(DeviceId(0)).peak = at;
        passes.push(pass);
    }
    passes
}

fn steps(text: &str) -> Steps {
    let passes = passes(text);
    let groups = groups(&passes);
    let set = |sizes: &[(u64, u32)]| Gradients { sizes: sizes.to_vec(), of_weights: true };
    let inputs = Gradients { sizes: vec![(64, 1)], of_weights: false };
    let [large, larger] = [154_389_504, 155_189_248].map(|bytes| set(&[(bytes, 1)]));
    let sets =
        [set(&[(100, 4)]), set(&[(8, 1), (100, 4)]), set(&[(7000, 2)]), inputs, large, larger];
    let cycles = match groups.is_empty() {
        true => Err(NoSteps::NoBackward),
        false => cycles(&groups, &sets, false),
    };
    iterations(&passes, &groups, cycles)
}

/// Iterations, without the one that the trace ends in; the backward passes of each.
#[track_caller]
fn counts(text: &str, passes: &[usize]) {
    let steps = steps(text);
    let found = steps.found.as_ref().unwrap_or_else(|why| panic!("{text}: {why}"));
    let found: Vec<usize> = found
        .iter()
        .filter(|step| step.state != StepState::Unfinished)
        .map(|step| step.backward_passes)
        .collect();
    assert_eq!(found, passes, "{text}");
}

#[track_caller]
fn says(text: &str, why: NoSteps) {
    assert_eq!(steps(text).found.err(), Some(why), "{text}");
}

#[test]
fn an_iteration_ends_where_an_optimizer_runs_or_else_where_gradients_are_freed() {
    counts("FBA FBA FBA", &[1, 1, 1]);
    counts("FBA FxBA FxBA", &[1, 1, 1]);
    counts("FBx FBx FBx", &[1, 1, 1]);
    counts("FB xFB xFB", &[1, 1, 1]);
    counts("BA BA BA", &[1, 1, 1]);
    counts("FBAx FBx FBx FBx", &[1, 1, 1, 1]);
    counts("FBA FBA F", &[1, 1]);
    counts("FBA FBA FB", &[1, 1]);
}

#[test]
fn micro_batches_are_counted_inside_and_are_no_iterations() {
    counts("FBFBFBA FBFBFBA", &[3, 3]);
    counts("FBFBFBx FBFBFBx FBFBFBx", &[3, 3, 3]);
    counts("FBFBFBx FBFBFBx FB", &[3, 3]);
    counts("FBFBFBA FBFBA FBFBFBFBA FBA", &[3, 2, 4, 1]);
}

#[test]
fn where_nothing_ends_an_iteration_none_is_counted() {
    says("FB FB FB FB", NoSteps::NoUpdates);
    // The first step makes the optimizer's state.
    says("FBA FB FB FB FB", NoSteps::NoUpdates);
    says("FBA FB FB FB FBx", NoSteps::NoUpdates);
    says("FBx FBFBFBFBFBx FBx", NoSteps::NoUpdates);
    says("FBA FB", NoSteps::NoUpdates);
    counts("FBA FB!", &[1]);
    counts("FBA F!", &[1]);
    counts("FBA FBA ff F!", &[1, 1]);
    says("f f f f", NoSteps::NoBackward);
    says("fA fA fA", NoSteps::NoBackward);
}

#[test]
fn the_cycle_of_two_optimizers_is_one_iteration() {
    counts("FBFBA FBC FBFBA FBC FBFBA FBC", &[3, 3, 3]);
    let steps = steps("FBFBA FBC FBFBA FBC FBFBA");
    assert_eq!((steps.whole(), steps.steps().len()), (2, 3));
    assert_eq!(steps.steps()[0].updates, 2);
    counts("FBA FBC FBD FBA FBC FBD", &[3, 3]);
    counts("FBAC FBAC FBAC", &[1, 1, 1]);
    // One after the other: two trainings.
    counts("FBA FBA FBA FBC FBC", &[1, 1, 1, 1, 1]);
    // In long turns: each for itself.
    counts("FBA FBA FBA FBC FBC FBC FBA FBA FBA", &[1; 9]);
    says("FBA FBA FBC FBA FBA FBC", NoSteps::Turns);
    says("FBA FBA FBA FBA FBA FBC FBA FBA FBA FBA FBA FBC", NoSteps::Turns);
}

#[test]
fn different_gradients_in_turn_are_not_counted() {
    counts("FB0x FB1x FB0x FB1x", &[1; 4]);
    // In a block with the rest of a segment: the same gradient.
    counts("FB4x FB5x FB5x", &[1; 3]);
    says("FB0x FB2x FB0x FB2x", NoSteps::Turns);
    says("FB3x FB3x FB3x", NoSteps::Inputs);
    counts("FB3A FB3A FB3A", &[1, 1, 1]);
    says("FB0A FB2A FB0A FB2A", NoSteps::Turns);
}

#[test]
fn a_skipped_step_is_an_iteration_without_an_optimizer() {
    let states =
        |text| -> Vec<StepState> { steps(text).steps().iter().map(|step| step.state).collect() };
    use StepState::{Skipped, Whole};
    assert_eq!(states("FBsA FBs FBsA FBsA"), [Whole, Skipped, Whole, Whole]);
    assert_eq!(states("FBsx FBsx FBsAx FBsAx"), [Skipped, Skipped, Whole, Whole]);
    assert_eq!(states("FBA FBx FBA FBA FBA FBA"), [Whole, Skipped, Whole, Whole, Whole, Whole]);
    counts("FBs FBs FBs", &[1, 1, 1]);
    // In a cycle of two, the other one runs.
    counts("FBs FBC FBA FBC FBA FBC", &[2, 2, 2]);
    says("FBx FBx FBx FBA FBx FBx FBx FBA", NoSteps::Frees);
}

#[test]
fn passes_that_an_optimizer_calls_are_counted_where_it_calls_all_or_the_last() {
    counts("FoBA FoBA FoBA", &[1, 1, 1]);
    counts("FBFBFoBA FBFBFoBA", &[3, 3]);
    says("FBA FoBA FBA FoBA", NoSteps::Closure);
}

#[test]
fn evaluation_is_apart() {
    let steps = steps("fff FBA FBA ffff FBA FBA fff");
    assert_eq!(steps.whole(), 4);
    let apart: Vec<(usize, usize)> =
        steps.apart.iter().map(|apart| (apart.after, apart.forward_passes)).collect();
    assert_eq!(apart, [(0, 3), (2, 4), (4, 3)]);
    assert_eq!(steps.steps()[2].begin.offset, 130);
    // A teacher before each pass, and rollouts before several.
    let taught = super::pass_tests::steps("fFBA fFBA fFBA");
    assert!(taught.apart.is_empty(), "{:?}", taught.apart);
    let rollouts = super::pass_tests::steps("fff FBA FBA FBA fff FBA FBA FBA");
    assert_eq!(rollouts.whole(), 6);
    assert_eq!(rollouts.apart.len(), 2);
}

#[test]
fn a_moment_of_the_file_is_in_one_iteration_or_apart() {
    let steps = steps("FBA ff FBA");
    let number = |offset| steps.at(offset).map(|step| step.number);
    assert_eq!(
        [0, 20, 25, 40, 50, 70].map(number),
        [Some(1), Some(1), Some(1), None, Some(2), Some(2)]
    );
}
