//! Recorded runs of PyTorch on a GPU, whose numbers of iterations are known.

use vramtrace_format::{Kind, Space};

use super::*;
use crate::testing::{SECOND, TraceBuilder};
use crate::trace::{Trace, in_repository};

fn steps_of(path: &str) -> Steps {
    let trace = Trace::recorded(path);
    Steps::of(&trace, &trace.definitions().0)
}

/// The moments `s0.0.forward`, or in another version the number, of the programs' own counts.
fn moments(name: &str) -> usize {
    let path = in_repository(&format!("tests/data/roles/{name}.json"));
    let truth: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    truth.as_array().unwrap().len()
}

#[track_caller]
fn has(steps: &Steps, number: usize, backward_passes: usize) {
    let found = steps.found.as_ref().unwrap();
    assert_eq!(found.len(), number);
    for (step, number) in found.iter().zip(1..) {
        assert_eq!((step.number, step.backward_passes), (number, backward_passes));
    }
}

#[test]
fn recorded_trainings_have_their_iterations() {
    for (name, moments_of_step, backward_passes) in
        [("gpt2", 4, 1), ("accum", 6, 2), ("compile", 3, 1)]
    {
        let steps = steps_of(&format!("tests/data/roles/{name}.vtrace.gz"));
        has(&steps, moments(name) / moments_of_step, backward_passes);
        assert!(steps.steps().iter().all(|step| step.state == StepState::Whole), "{name}");
        assert!(steps.apart.is_empty(), "{name}");
    }
}

#[test]
fn generation_has_no_iterations() {
    let steps = steps_of("tests/data/roles/gen.vtrace.gz");
    assert_eq!(steps.found, Err(NoSteps::NoBackward));
}

#[test]
fn the_iteration_that_ran_out_of_memory_is_unfinished() {
    let steps = steps_of("assets/recorded.vtrace.gz");
    has(&steps, 24, 1);
    assert_eq!(steps.whole(), 23);
    let (last, earlier) = steps.steps().split_last().unwrap();
    assert_eq!(last.state, StepState::Unfinished);
    assert!(earlier.iter().all(|step| step.state == StepState::Whole));
}

/// `tests/data/steps/make.sh` records these; `programs.py` there counts its own iterations.
fn recorded(name: &str) -> Steps {
    steps_of(&format!("tests/data/steps/{name}.vtrace.gz"))
}

#[track_caller]
fn states(name: &str) -> Vec<StepState> {
    let steps = recorded(name);
    let found = steps.found.as_ref().unwrap_or_else(|why| panic!("{name}: {why}"));
    found.iter().map(|step| step.state).collect()
}

#[test]
fn programs_have_the_iterations_that_they_count() {
    use StepState::Whole;
    for (name, steps) in [
        ("evaluation", 12),
        ("accumulation", 6),
        ("gan", 6),
        ("rollouts", 6),
        ("closure", 6),
        ("checkpointing", 5),
    ] {
        assert_eq!(states(name), vec![Whole; steps], "{name}");
    }
}

#[test]
fn a_step_that_a_gradient_scaler_skips_is_counted() {
    let states = states("scaler");
    assert_eq!(states.len(), 10);
    for (index, state) in states.into_iter().enumerate() {
        let skipped = [0, 1, 5].contains(&index);
        assert_eq!(state, if skipped { StepState::Skipped } else { StepState::Whole }, "{index}");
    }
}

#[test]
fn micro_batches_and_updates_are_counted_inside_an_iteration() {
    let of = |name: &str| -> Vec<(usize, usize)> {
        let steps = recorded(name);
        steps.steps().iter().map(|step| (step.backward_passes, step.updates)).collect()
    };
    // SGD allocates nothing: its updates are not seen.
    assert_eq!(of("accumulation"), [(4, 0), (4, 0), (2, 0), (4, 0), (4, 0), (2, 0)]);
    assert_eq!(of("checkpointing"), [(3, 0); 5]);
    assert_eq!(of("closure"), [(2, 1); 6]);
    assert_eq!(of("gan"), [(3, 2); 6]);
}

#[test]
fn evaluation_and_rollouts_stand_between_the_iterations() {
    let apart = |name: &str| -> Vec<(usize, usize)> {
        recorded(name).apart.iter().map(|apart| (apart.after, apart.forward_passes)).collect()
    };
    assert_eq!(apart("evaluation"), [(4, 3), (8, 3), (12, 3)]);
    let rollouts = apart("rollouts");
    assert_eq!(rollouts.iter().map(|(after, _)| *after).collect::<Vec<_>>(), [0, 2, 4]);
    assert!(apart("gan").is_empty());
}

#[test]
fn iterations_that_cannot_be_told_are_not_counted() {
    for (name, why) in [
        ("kept_gradients", NoSteps::NoUpdates),
        ("step_in_backward", NoSteps::NoUpdates),
        ("gan_sgd", NoSteps::Parts),
        ("gan_critic", NoSteps::Turns),
        ("saliency", NoSteps::Inputs),
    ] {
        assert_eq!(recorded(name).found, Err(why), "{name}");
    }
}

#[test]
fn programs_without_training_have_no_iterations() {
    for name in ["inference", "server", "arithmetic"] {
        assert_eq!(recorded(name).found, Err(NoSteps::NoBackward), "{name}");
    }
}

/// What the stacks of a trace without native names show: forward passes and optimizers.
#[test]
fn a_training_whose_backward_has_no_names_is_not_called_one_without_steps() {
    let mut t = TraceBuilder::new();
    t.code(1, "Module._call_impl", "/v/torch/nn/modules/module.py", 20);
    t.code(2, "AdamW.step", "/v/torch/optim/adamw.py", 30);
    t.stack(1, &[], &[1], &[]);
    t.stack(2, &[], &[2], &[]);
    for turn in 0..3 {
        for stack in [1, 2] {
            let at = SECOND * (2 * turn + u64::from(stack));
            t.alloc_by(at, Kind::Device, at, 4096, stack);
            t.free(at + 1, Space::Device, at);
        }
    }
    let trace = Trace::of(&t);
    assert_eq!(Steps::of(&trace, &trace.definitions().0).found, Err(NoSteps::NoNames));
}
