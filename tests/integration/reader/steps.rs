//! Steps of a training: `report --by step`, `--at step:N`, and the step of a post-mortem, on recorded runs.

use serde_json::json;
use testkit::{Scratch, has, unpacked};

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

/// Equal steps are one row; evaluation has other rows; skipped updates are said. Where steps are not known the reason is.
#[test]
fn a_table_has_the_steps_and_every_command_with_a_moment_takes_one() {
    let run = Scratch::new();
    for name in
        ["roles/gpt2", "roles/gen", "steps/evaluation", "steps/scaler", "steps/kept_gradients"]
    {
        let to = format!("{}.vtrace", name.split_once('/').unwrap().1);
        run.write(&to, unpacked(&format!("tests/data/{name}.vtrace.gz")));
    }
    let steps = "--json | processes.0.steps.count processes.0.steps.unknown processes.0.steps.why";
    run.prints(
        "steps",
        &[
            "report --by step --no-hints gpt2.vtrace",
            "report --by step --no-hints evaluation.vtrace",
            "report --by step --no-hints scaler.vtrace",
            "report --by step --no-hints kept_gradients.vtrace",
            &format!("report --by step gen.vtrace {steps}"),
            &format!("report --by step kept_gradients.vtrace {steps}"),
            "holders --at step:2 --top 1 gpt2.vtrace",
            "holders --by role --at step:2:end gpt2.vtrace",
            "report --at step:6 gpt2.vtrace",
            "holders --at step:6 gpt2.vtrace",
            "frag --at step:6 gpt2.vtrace",
            "flame -o f.svg --at step:6 gpt2.vtrace",
            "export --format folded -o - --at step:6 gpt2.vtrace",
            "holders --at step:0 gpt2.vtrace",
            "holders --at step:1 gen.vtrace",
        ],
    );
    for line in [
        "report --at step:2",
        "frag --at step:2",
        "diff --at step:1:end --vs step:5:end",
        "flame --at step:2 -o flame.svg",
        "export --format folded --at step:2 -o -",
    ] {
        run.text(&format!("{line} gpt2.vtrace"));
    }
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
