//! Recorded runs of PyTorch on a GPU, whose numbers of iterations are known.

use std::io::Read;
use std::path::Path;

use super::*;
use crate::trace::Trace;

fn steps_of(path: &str) -> Steps {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(packed).unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let trace = Trace::open(file.path()).unwrap();
    let (definitions, _) = trace.definitions();
    Steps::of(&trace, &definitions)
}

/// The moments `s0.0.forward`, or in another version the number, of the programs' own counts.
fn moments(name: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/roles/{name}.json"));
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
