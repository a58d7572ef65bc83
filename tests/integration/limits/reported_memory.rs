//! What the driver's functions report of the device's memory: the driver's own without a cap, bit for bit;
//! the cap's share under one, the same from every function.

use serde_json::json;
use testkit::{Group, InteractiveProgram, Program, Run, Scratch, Setup, has};

fn run(how: &str, setup: Setup) -> Run {
    Program::c("shown").run(setup.arg(how)).ok()
}

/// The figure after `word` on the line that starts with `start`.
#[track_caller]
fn figure(run: &Run, start: &str, word: &str) -> u64 {
    let line = run.stdout.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no line {start}: {}", run.stdout));
    let mut words = line.split_whitespace().skip_while(|w| *w != word).skip(1);
    words.next().and_then(|n| n.trim_end_matches(';').parse().ok()).expect(line)
}

#[test]
fn without_a_cap_every_figure_is_the_drivers_own() {
    for how in ["steps", "monitor", "stack"] {
        Program::c("shown").as_bare(Setup::simulated().arg(how), Setup::preload).quiet().ok();
    }
}

#[test]
fn under_a_cap_every_function_reports_the_same() {
    let run = run("steps", Setup::simulated().cap("4GiB"));
    let moments = ["start", "taken", "freed", "second context", "destroyed"];
    for moment in moments {
        let cuda = format!("{moment} cuda");
        let total = figure(&run, &cuda, "total");
        let free = figure(&run, &cuda, "free");
        assert_eq!((total, figure(&run, &cuda, "size")), (4096, 4096), "{moment}");
        for lookup in ["nvml1", "nvml2"] {
            let lookup = format!("{moment} {lookup}");
            assert_eq!(figure(&run, &lookup, "total"), 4096, "{lookup}");
            assert_eq!(figure(&run, &lookup, "free"), free, "{lookup}");
            // Figures are cut to whole MiB.
            assert!(figure(&run, &lookup, "used").abs_diff(4096 - free) <= 1, "{lookup}");
        }
        assert_eq!(figure(&run, &format!("{moment} nvml2"), "reserved"), 0);
        assert!(run.stdout.contains(&format!("{moment} sums 1 1")), "{}", run.stdout);
        assert!(run.stdout.contains(&format!("{moment} null 0 0 0 same 1 1")), "{}", run.stdout);
    }
    let free = moments.map(|moment| figure(&run, &format!("{moment} cuda"), "free"));
    assert_eq!(free[0] - free[1], 100, "{}", run.stdout);
    assert_eq!(free[0], free[2], "{}", run.stdout);
    assert!(free[3] + 100 < free[2], "a context takes its bytes: {}", run.stdout);
    assert_eq!(free[4], free[0], "{}", run.stdout);
    assert!((3000..4000).contains(&free[0]), "the first context counts: {}", run.stdout);
}

#[test]
fn a_cap_above_the_device_shows_the_device() {
    let bare = run("steps", Setup::simulated());
    let ours = run("steps", Setup::simulated().cap("100GiB"));
    let cuda = |run: &Run| -> Vec<String> {
        run.stdout.lines().filter(|line| line.contains(" cuda ")).map(String::from).collect()
    };
    assert_eq!(cuda(&ours), cuda(&bare));
}

#[test]
fn the_report_leads_to_what_nvidia_smi_shows() {
    let device = run("steps", Setup::simulated().preload()).device();
    let context = device["context_bytes"].as_u64().unwrap();
    assert!((500 << 20..600 << 20).contains(&context), "one context is left: {device:#}");
    has(&device, json!({ "process_bytes": context, "unattributed_bytes": 0 }));
    // Read when the second context was there.
    assert_eq!(device["peak_process_bytes"], 2 * context, "{device:#}");
}

#[test]
fn what_a_larger_stack_took_is_named() {
    let run = run("stack", Setup::simulated().preload());
    let taken = 3960u64 << 20;
    has(&run.device(), json!({ "unattributed_bytes": taken }));
    let text = run.scratch.text("report . --full");
    assert!(text.contains("3.87 GiB  local memory"), "{text}");
}

#[test]
fn a_monitor_sees_the_real_figures() {
    let capped = |setup: Setup| setup.cap("1GiB");
    let ours = Program::c("shown").as_bare(Setup::simulated().arg("monitor"), capped).ok();
    assert!(ours.traces().is_empty(), "it used no memory and leaves no trace");
}

#[test]
fn a_program_that_only_looks_at_a_device_leaves_no_trace() {
    let group = Group::new("looks");
    let ways = [
        ("VRAMTRACE_CAP_MODE", "warn"),
        ("VRAMTRACE_CAP_WARN", "50%"),
        ("VRAMTRACE_CAP_GROUP", &group.0),
    ];
    for (name, value) in ways {
        let run = run("look", Setup::simulated().cap("1GiB").env(name, value));
        // The device was met: of its size the cap is shown where it refuses.
        let shown = if value == "warn" { 24 << 10 } else { 1 << 10 };
        assert_eq!(run.stdout, format!("size {shown}\n"), "{name}");
        assert!(run.traces().is_empty(), "{name}={value}");
    }
}

#[test]
fn a_larger_stack_is_refused_before_it_is_taken() {
    let refused = run("stack", Setup::simulated().cap("4GiB"));
    assert!(refused.stdout.contains("= 2\n"), "{}", refused.stdout);
    assert!(refused.stdout.contains("limit 1024\n"), "{}", refused.stdout);
    assert_eq!(figure(&refused, "after cuda", "free"), figure(&refused, "before cuda", "free"));
    assert_eq!(refused.device()["refused_by_cap"], 1);

    let granted = run("stack", Setup::simulated().cap("8GiB"));
    assert!(granted.stdout.contains("limit 16384\n"), "{}", granted.stdout);
    let taken = figure(&granted, "before cuda", "free") - figure(&granted, "after cuda", "free");
    assert_eq!(taken, 3960, "{}", granted.stdout);
}

#[test]
fn a_cap_that_cannot_be_understood_is_not_no_cap() {
    for spec in ["8", "8XB", "0GiB", "-1GiB", "101%", "0=1GiB,0=2GiB", "", ","] {
        let run = run("refused", Setup::simulated().cap(spec));
        let results = run.stdout.lines().filter_map(|line| line.split(" = ").nth(1));
        assert_eq!(results.collect::<Vec<_>>(), ["1"; 6], "{spec:?}: {}", run.stdout);
        assert!(run.stdout.contains("untouched 1"), "{spec:?}: {}", run.stdout);
        assert_eq!(run.stderr.lines().count(), 1, "{spec:?}: {}", run.stderr);
        assert!(run.stderr.starts_with("vramtrace: "), "{spec:?}: {}", run.stderr);
    }
}

/// WSL2 and desktops: a display has 1500 MiB of the card, and NVML says nothing of processes. The cap counts what
/// the process took, not the card's use, and the headline is what was recorded. A context is measured by what the
/// card's use grew when it came; without NVML it is not known.
#[test]
fn cap_and_headline_work_beside_a_display_without_figures_by_process() {
    let scratch = Scratch::new();
    let state = scratch.0.join("state");
    for how in ["absent", "no-figures"] {
        let card = || {
            let setup = Setup::simulated().devices("1x4GiB").env("VRAMTRACE_SIM_STATE", &state);
            setup.env("VRAMTRACE_SIM_NVML", how)
        };
        let mut display = InteractiveProgram::start(card());
        assert_eq!(display.result("a 1500"), 0);
        let mut program = InteractiveProgram::start(card().cap("1500MiB"));
        let second = if how == "absent" { "a 1000" } else { "a 600" };
        let orders = format!("a 600, {second}, a 200");
        assert_eq!(program.results(&orders), [0, 2, 0], "{how}: {}", program.stderr());
        // What the program sees is the cap's share, not the rest of the card.
        let info = program.ask("i");
        assert!(info.contains("1500"), "{how}: {info}");
        let device = program.end()["devices"][0].clone();
        let context = device["context_bytes"].as_u64().unwrap();
        let peak = (800 << 20) + context;
        has(&device, json!({ "peak_bytes": peak, "process_bytes": null, "refused_by_cap": 1 }));
        let expected = if how == "absent" { 0..1 } else { 400 << 20..700 << 20 };
        assert!(expected.contains(&context), "{how}: {device:#}");
        let text = program.scratch.text("report .");
        // Without NVML's figure of the process: the allocations and the contexts.
        let headline = vramtrace_reader::units::size(peak);
        assert!(text.contains(&format!("{headline}  recorded")), "{how}: {text}");
        let counted = format!("1500 MiB  {headline} counted by the cap");
        assert!(text.contains(&counted), "{how}: {text}");
        display.finish();
    }
}
