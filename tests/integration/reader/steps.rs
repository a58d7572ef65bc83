//! Steps of a training: `report --by step`, `--at step:N`, and the step of a post-mortem, on recorded runs.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use testkit::{Scratch, vramtrace};

/// A recorded run of this repository, as `t.vtrace`.
fn recorded(packed: &str) -> Scratch {
    let scratch = Scratch::new();
    let packed = std::fs::File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(packed)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(scratch.0.join("t.vtrace"), bytes).unwrap();
    scratch
}

const GPT2: &str = "tests/data/roles/gpt2.vtrace.gz";
const DEMO: &str = "assets/recorded.vtrace.gz";

fn run(scratch: &Scratch, words: &str) -> (i32, String, String) {
    let mut command = vramtrace();
    command.args(words.split_whitespace()).current_dir(&scratch.0).env("NO_COLOR", "1");
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn text(scratch: &Scratch, words: &str) -> String {
    let (status, stdout, stderr) = run(scratch, words);
    assert_eq!(status, 0, "{words}: {stderr}");
    stdout
}

#[track_caller]
fn facts(scratch: &Scratch, words: &str) -> Value {
    serde_json::from_str(&text(scratch, words)).unwrap()
}

fn steps(scratch: &Scratch) -> Value {
    facts(scratch, "report --by step --json t.vtrace")["processes"][0]["steps"].clone()
}

#[test]
fn the_figures_of_a_step_are_those_of_its_moments() {
    let run = recorded(GPT2);
    let steps = steps(&run);
    assert_eq!((&steps["count"], &steps["unknown"]), (&5.into(), &Value::Null));
    let allocated = |at: &str| {
        let frag = facts(&run, &format!("frag --json t.vtrace --at {at}"));
        frag["devices"][0]["allocated_bytes"].clone()
    };
    for number in [1, 3, 5] {
        let of = &steps["steps"][number - 1]["devices"][0];
        assert_eq!(allocated(&format!("step:{number}")), of["peak_bytes"], "{number}");
        assert_eq!(allocated(&format!("step:{number}:end")), of["left_bytes"], "{number}");
    }
}

#[test]
fn a_table_has_equal_steps_in_one_row_and_the_line_that_grew() {
    let run = recorded(GPT2);
    let report = text(&run, "report --by step t.vtrace");
    let rows: Vec<&str> = report.lines().skip_while(|line| !line.contains("by step")).collect();
    assert!(rows[0].starts_with("GPU 0 by step  5 steps"), "{report}");
    assert!(rows[2].trim_start().starts_with("1 "), "{report}");
    assert!(rows[2].contains("+480.70 MiB  roles_truth.py:44"), "{report}");
    assert!(rows[3].trim_start().starts_with("2 to 5"), "{report}");
}

#[test]
fn evaluation_has_rows_of_its_own() {
    let run = recorded("tests/data/steps/evaluation.vtrace.gz");
    let report = text(&run, "report --by step t.vtrace");
    let words =
        |line: &&str| line.split_whitespace().take(4).eq("apart 3 forward passes".split(' '));
    assert_eq!(report.lines().filter(words).count(), 3, "{report}");
    let skipped = recorded("tests/data/steps/scaler.vtrace.gz");
    let report = text(&skipped, "report --by step t.vtrace");
    assert!(report.contains("10 steps; 3 skipped by the optimizer"), "{report}");
}

#[test]
fn where_steps_cannot_be_told_the_reason_is_printed() {
    for (packed, name, sentence) in [
        ("tests/data/roles/gen.vtrace.gz", "no-backward", "no steps: "),
        (
            "tests/data/steps/kept_gradients.vtrace.gz",
            "no-updates",
            "iterations cannot be told from micro-batches: ",
        ),
    ] {
        let run = recorded(packed);
        let report = text(&run, "report --by step t.vtrace");
        assert!(report.contains(sentence), "{report}");
        let steps = steps(&run);
        assert_eq!((&steps["count"], &steps["unknown"]), (&Value::Null, &name.into()));
        assert!(steps["why"].as_str().unwrap().starts_with(sentence), "{steps}");
        assert_eq!(steps["steps"], Value::Array(Vec::new()));
    }
}

#[test]
fn every_command_with_a_moment_takes_a_step() {
    let run = recorded(GPT2);
    for words in [
        "report --at step:2 t.vtrace",
        "holders --at step:2 t.vtrace",
        "holders --by role --at step:2:end t.vtrace",
        "holders --at step:2:end --vs step:4:end t.vtrace",
        "tree --at step:2 t.vtrace",
        "frag --at step:2 t.vtrace",
        "diff --at step:1:end --vs step:5:end t.vtrace",
        "flame --at step:2 -o flame.svg t.vtrace",
        "export --format folded --at step:2 -o - t.vtrace",
    ] {
        text(&run, words);
    }
    let heading = text(&run, "holders --at step:2 t.vtrace");
    assert!(heading.starts_with("GPU 0, at the peak of step 2 ("), "{heading}");
    let roles = facts(&run, "holders --by role --json --at step:2:end t.vtrace");
    let of = |role: &str| -> u64 {
        let all = roles["holders"].as_array().unwrap().iter();
        all.filter(|of| of["role"] == role).map(|of| of["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!((of("weights"), of("gradients")), (498_558_976, 0), "zeroed after the step");
}

/// Under one plateau of the cache phases differ by what is allocated.
#[test]
fn a_phase_has_its_peak_of_allocated_bytes() {
    let run = recorded(GPT2);
    let report = facts(&run, "report --by phase --json t.vtrace");
    let process = &report["processes"][0];
    let of = |name: &str, key: &str| -> u64 {
        let mut phases = process["phases"].as_array().unwrap().iter();
        let phase = phases.find(|phase| phase["path"] == serde_json::json!([name])).unwrap();
        phase["devices"][0][key].as_u64().unwrap()
    };
    let highest = process["devices"][0]["torch"]["peak_allocated_bytes"].as_u64().unwrap();
    let [forward, backward, optimizer] =
        ["forward", "backward", "optimizer"].map(|name| of(name, "peak_allocated_bytes"));
    assert!(
        forward.max(backward) == highest && optimizer < highest / 2,
        "{forward} {backward} {optimizer}"
    );
    assert_eq!(of("forward", "peak_bytes"), of("optimizer", "peak_bytes"), "the plateau");
    let shown = text(&run, "report --by phase t.vtrace");
    let row =
        |name: &str| shown.lines().find(|line| line.trim().starts_with(name)).unwrap().to_string();
    assert!(
        row("optimizer").contains(" 2.40 GiB ") && !row("optimizer").contains("6.21"),
        "{shown}"
    );
}

#[test]
fn a_step_that_is_not_there_is_an_error_that_says_how_many_there_are() {
    let training = recorded(GPT2);
    for command in
        ["report", "holders", "tree", "frag", "flame -o f.svg", "export --format folded -o -"]
    {
        let (status, _, stderr) = run(&training, &format!("{command} --at step:6 t.vtrace"));
        assert_eq!(status, 2, "{command}: {stderr}");
        let words = "t.vtrace: --at step:6: the run has 5 steps, there is no step 6";
        assert!(stderr.contains(words), "{command}: {stderr}");
    }
    let generation = recorded("tests/data/roles/gen.vtrace.gz");
    let (status, _, stderr) = run(&generation, "holders --at step:1 t.vtrace");
    assert_eq!((status, stderr.contains("--at step:1: no steps: ")), (2, true), "{stderr}");
    let (status, _, stderr) = run(&training, "holders --at step:0 t.vtrace");
    assert_eq!((status, stderr.contains("`step:23` (its peak)")), (2, true), "{stderr}");
}

#[test]
fn a_post_mortem_compares_the_step_with_those_before_it() {
    let run = recorded(DEMO);
    let oom = text(&run, "oom t.vtrace");
    let line =
        "step    24 asked 1.31 GiB; the largest requests of steps 1 to 23: 147.24 MiB to 1.19 GiB";
    let unfolded: Vec<&str> = oom.split_whitespace().collect();
    assert!(unfolded.join(" ").contains(&line.replace("    ", " ")), "{oom}");
    let facts = facts(&run, "oom --json t.vtrace");
    let step = &facts["ooms"].as_array().unwrap().last().unwrap()["post_mortem"]["step"];
    assert_eq!((&step["number"], &step["differs"]), (&24.into(), &true.into()));
}
