//! Steps of a training: `report --by step`, `--at step:N`, and the step of a post-mortem, on recorded runs.

use serde_json::{Value, json};
use testkit::Scratch;
use testkit::has;

const GPT2: &str = "tests/data/roles/gpt2.vtrace.gz";

#[test]
fn the_figures_of_a_step_are_those_of_its_moments() {
    let run = Scratch::recorded(GPT2);
    let steps = run.json("report --by step t.vtrace")["processes"][0]["steps"].clone();
    has(&steps, json!({ "count": 5, "unknown": null }));
    let allocated = |at: &str| {
        let frag = run.json(&format!("frag t.vtrace --at {at}"));
        frag["devices"][0]["allocated_bytes"].clone()
    };
    for number in [1, 3, 5] {
        let of = &steps["steps"][number - 1]["devices"][0];
        assert_eq!(allocated(&format!("step:{number}")), of["peak_bytes"], "{number}");
        assert_eq!(allocated(&format!("step:{number}:end")), of["left_bytes"], "{number}");
    }
}

/// Equal steps are one row; evaluation has other rows; skipped updates are said.
#[test]
fn a_table_has_the_steps() {
    let table = |packed: &str| {
        let report = Scratch::recorded(packed).text("report --by step t.vtrace");
        let rows = report.lines().skip_while(|line| !line.contains("by step"));
        rows.map(str::to_string).collect::<Vec<_>>()
    };
    let rows = table(GPT2);
    assert!(rows[0].starts_with("GPU 0 by step  5 steps"), "{rows:#?}");
    assert!(rows[2].trim_start().starts_with("1 "), "{rows:#?}");
    assert!(rows[3].trim_start().starts_with("2 to 5"), "{rows:#?}");
    let rows = table("tests/data/steps/evaluation.vtrace.gz");
    let words =
        |line: &&String| line.split_whitespace().take(4).eq("apart 3 forward passes".split(' '));
    assert_eq!(rows.iter().filter(words).count(), 3, "{rows:#?}");
    let rows = table("tests/data/steps/scaler.vtrace.gz");
    assert!(rows[0].contains("10 steps; 3 skipped by the optimizer"), "{rows:#?}");
}

#[test]
fn where_steps_cannot_be_told_the_reason_is_printed() {
    for (packed, name, sentence) in [
        ("roles/gen", "no-backward", "no steps: "),
        ("steps/kept_gradients", "no-updates", "iterations cannot be told from micro-batches: "),
    ] {
        let run = Scratch::recorded(&format!("tests/data/{packed}.vtrace.gz"));
        let report = run.text("report --by step t.vtrace");
        assert!(report.contains(sentence), "{report}");
        let steps = run.json("report --by step t.vtrace")["processes"][0]["steps"].clone();
        has(&steps, json!({ "count": null, "unknown": name }));
        assert!(steps["why"].as_str().unwrap().starts_with(sentence), "{steps}");
        assert_eq!(steps["steps"], Value::Array(Vec::new()));
    }
}

#[test]
fn every_command_with_a_moment_takes_a_step() {
    let run = Scratch::recorded(GPT2);
    for line in [
        "report --at step:2 t.vtrace",
        "holders --by role --at step:2:end t.vtrace",
        "tree --at step:2 t.vtrace",
        "frag --at step:2 t.vtrace",
        "diff --at step:1:end --vs step:5:end t.vtrace",
        "flame --at step:2 -o flame.svg t.vtrace",
        "export --format folded --at step:2 -o - t.vtrace",
    ] {
        run.text(line);
    }
    let heading = run.text("holders --at step:2 t.vtrace");
    assert!(heading.starts_with("GPU 0, at the peak of step 2 ("), "{heading}");
    let roles = run.json("holders --by role --at step:2:end t.vtrace");
    let of = |role: &str| -> u64 {
        let all = roles["holders"].as_array().unwrap().iter();
        all.filter(|of| of["role"] == role).map(|of| of["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!((of("weights"), of("gradients")), (498_558_976, 0), "zeroed after the step");
    for command in
        ["report", "holders", "tree", "frag", "flame -o f.svg", "export --format folded -o -"]
    {
        let words = "t.vtrace: --at step:6: the run has 5 steps, there is no step 6";
        run.fails(2, &format!("{command} --at step:6 t.vtrace"), words);
    }
    run.fails(2, "holders --at step:0 t.vtrace", "`step:23` (its peak)");
    let generation = Scratch::recorded("tests/data/roles/gen.vtrace.gz");
    generation.fails(2, "holders --at step:1 t.vtrace", "--at step:1: no steps: ");
}

/// Under one plateau of the cache phases differ by what is allocated.
#[test]
fn a_phase_has_its_peak_of_allocated_bytes() {
    let run = Scratch::recorded(GPT2);
    let report = run.json("report --by phase t.vtrace");
    let process = &report["processes"][0];
    let of = |name: &str, key: &str| -> u64 {
        let mut phases = process["phases"].as_array().unwrap().iter();
        let phase = phases.find(|phase| phase["path"] == serde_json::json!([name])).unwrap();
        phase["devices"][0][key].as_u64().unwrap()
    };
    let highest = process["devices"][0]["torch"]["peak_allocated_bytes"].as_u64().unwrap();
    let all = ["forward", "backward", "optimizer"].map(|name| of(name, "peak_allocated_bytes"));
    assert!(all[0].max(all[1]) == highest && all[2] < highest / 2, "{all:?}");
    assert_eq!(of("forward", "peak_bytes"), of("optimizer", "peak_bytes"), "the plateau");
    let shown = run.text("report --by phase t.vtrace");
    let row = shown.lines().find(|line| line.trim().starts_with("optimizer")).unwrap();
    assert!(row.contains(" 2.40 GiB ") && !row.contains("6.21"), "{shown}");
}

/// golden.rs keeps the line of the text: `step 24 asked 1.31 GiB; ...`.
#[test]
fn a_post_mortem_compares_the_step_with_those_before_it() {
    let facts = Scratch::recorded("assets/recorded.vtrace.gz").json("oom t.vtrace");
    let step = &facts["ooms"].as_array().unwrap().last().unwrap()["post_mortem"]["step"];
    has(step, json!({ "number": 24, "differs": true }));
}
