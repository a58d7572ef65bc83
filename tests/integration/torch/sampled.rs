//! `VRAMTRACE_RECORD=sampled`: samples of PyTorch's blocks, exact totals.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup, flat, functions, has};
use vramtrace_format::Event;

use super::recorded::Recorded;

/// Bytes for which a sample is taken at the start.
const RATE: u32 = 4 << 20;

fn setup(mode: &str) -> Setup {
    let library = libraries().join("libc10_cuda.so");
    Setup::simulated().devices("1x80GiB").arg(mode).arg(library.display())
}

fn recorded(mode: &str, recording: &str) -> Run {
    let mut setup = setup(mode).preload().env("VRAMTRACE_STACKS", "native");
    if mode == "fork" {
        // The child's blocks lie in no memory.
        setup = setup.contradicts();
    }
    // The programs do little else, and a build with assertions is slow: its cost is no bound here.
    let setup = setup.env("VRAMTRACE_OVERHEAD", "100%");
    Program::c("sampled").run(setup.env("VRAMTRACE_RECORD", recording))
}

/// The figures that the program printed: the bytes of each line, and their number.
fn truth(run: &Run) -> BTreeMap<String, (f64, f64)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let figure = |at: usize| words.get(at).map_or(0.0, |word| word.parse().unwrap_or(0.0));
        (words[0].to_string(), (figure(1), figure(2)))
    };
    run.stdout.lines().map(line).collect()
}

/// Bytes, standard error and number of blocks of each line at the end.
fn holders(run: &Run) -> BTreeMap<String, (f64, f64, f64)> {
    let all = run.json("holders --at end");
    let mut found: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    for holder in all["holders"].as_array().unwrap() {
        let mut functions = functions(holder).into_iter();
        let Some(name) = functions.find(|name| name.ends_with("_line")) else { continue };
        let figure = |name: &str| holder[name].as_f64().unwrap_or(0.0);
        let sum = found.entry(name.to_string()).or_default();
        sum.0 += figure("bytes");
        sum.1 = sum.1.hypot(figure("error_bytes"));
        sum.2 += figure("count");
    }
    found
}

fn torch(run: &Run) -> Value {
    run.only_report()["devices"][0]["torch"].clone()
}

#[test]
fn holders_are_right_within_the_stated_error_and_totals_exactly() {
    let full = recorded("train", "full").ok();
    let sampled = recorded("train", "sampled").ok();
    assert_eq!(full.stdout, sampled.stdout);
    let exact = truth(&full);
    let found = holders(&sampled);
    if found.is_empty() {
        return testkit::skip("sampled: the recorder takes no stacks here");
    }
    for (name, (bytes, error, blocks)) in holders(&full) {
        assert_eq!(((bytes, blocks), error), (exact[&name], 0.0), "{name}");
    }
    for (name, (bytes, _)) in exact.iter().filter(|(name, _)| *name != "allocated") {
        let (estimate, error, _) = found.get(name).copied().unwrap_or_default();
        // Of lines with small blocks only the error is estimated, too: from the rate.
        let least = (bytes * f64::from(RATE)).sqrt();
        let apart = (estimate - bytes).abs();
        assert!(apart < 5.0 * error.max(least), "{name}: {estimate} {error} {bytes}");
        assert!(error < 3.0 * least, "{name}: {error}");
    }
    // Blocks that are large against the rate are all there.
    assert_eq!(found["large_line"], (256.0 * f64::from(1 << 20), 0.0, 4.0));
    let [all, some] = [&full, &sampled].map(|run| Recorded::by(run).blocks().count());
    assert!(some * 2 < all, "{some} of {all} blocks");
    let (full, sampled) = (torch(&full), torch(&sampled));
    let figures = "allocated_bytes reserved_bytes peak_allocated_bytes peak_reserved_bytes blocks \
        allocations frees disagreements outside_bytes free_in_segments_bytes segments";
    for figure in figures.split(' ') {
        assert_eq!(full[figure], sampled[figure], "{figure}");
    }
    assert_eq!(full["allocated_bytes"].as_f64(), Some(exact["allocated"].0));
}

#[test]
fn what_needs_all_blocks_refuses_the_trace_and_the_rest_takes_it() {
    let run = recorded("train", "sampled").ok();
    let trace = run.only_trace().display().to_string();
    for words in ["frag", "whatif", "fits", "export --format torch-snapshot -o -"] {
        for part in ["VRAMTRACE_RECORD=sampled", "=full"] {
            run.scratch.fails(2, &format!("{words} {trace}"), part);
        }
    }
    for words in ["verify", "holders --by role", "oom"] {
        run.text(words);
    }
    for words in ["report", "holders", "leaks"] {
        let text = run.text(words);
        assert!(text.contains("samples of PyTorch's blocks were recorded"), "{words} {text}");
    }
    assert!(run.text("holders --at end").contains(" MiB ± "));
    let sampling = &run.only_report()["sampling"];
    has(sampling, json!({ "least_rate_bytes": RATE, "bound_share": 1.0 }));
}

#[test]
fn counts_of_many_threads_are_exact() {
    let run = recorded("threads", "sampled").ok();
    let torch = torch(&run);
    let figures =
        ["blocks", "allocations", "frees", "allocated_bytes"].map(|name| torch[name].as_u64());
    let (live, all) = (8 * 128, 8 * 20_000);
    assert_eq!(figures, [live, all, all - live, live * 4096].map(Some), "{torch:#}");
}

#[test]
fn a_killed_program_leaves_all_up_to_its_last_sample() {
    let run = recorded("killed", "sampled");
    assert_eq!(run.status, -9, "{}", run.stderr);
    let exact = truth(&run)["allocated"].0;
    let torch = torch(&run);
    let allocated = torch["allocated_bytes"].as_f64().unwrap();
    assert!((allocated - exact).abs() < f64::from(40 * RATE), "{allocated} {exact}");
    run.text("verify");
}

#[test]
fn a_forked_child_samples_its_own_blocks() {
    let run = recorded("fork", "sampled").ok();
    let report = run.report();
    let processes = report["processes"].as_array().unwrap().iter();
    let blocks = |of: &Value| of["devices"][0]["torch"]["blocks"].as_u64().unwrap_or_default();
    let mut blocks: Vec<u64> = processes.map(blocks).collect();
    blocks.sort_unstable();
    let parent = truth(&run).iter().map(|(_, (_, blocks))| *blocks as u64).sum::<u64>();
    assert_eq!(blocks, [100, parent]);
}

/// The recorder takes more than 0.01 % of the time of a loop that does nothing else.
#[test]
fn above_its_bound_it_takes_fewer_samples_and_says_so() {
    let setup =
        setup("busy").preload().env("VRAMTRACE_STACKS", "native").env("VRAMTRACE_CAP", "4GiB");
    let setup = setup.env("VRAMTRACE_RECORD", "sampled").env("VRAMTRACE_OVERHEAD", "0.01%");
    let run = Program::c("sampled").run(setup).ok();
    let recorded = Recorded::by(&run);
    let rate = |event: &Event| match *event {
        Event::Sampling { rate, least, bound, .. } => {
            assert_eq!((least, bound), (u64::from(RATE), 100));
            Some(rate)
        }
        _ => None,
    };
    let rates: Vec<u64> = recorded.events.iter().filter_map(rate).collect();
    assert_eq!(rates.first(), Some(&u64::from(RATE)));
    assert!(rates.iter().max() > Some(&(1 << 26)), "{rates:?}");
    // At the first rate half of two million blocks of 3 MiB would be there.
    assert!(recorded.blocks().count() < 400_000, "{}", recorded.blocks().count());
    let report = run.only_report();
    assert_eq!(report["devices"][0]["cap_bytes"], 4u64 << 30, "{report:#}");
    let text = run.text("report");
    let text = flat(&text);
    assert!(text.contains("fewer than the one for 4.00 MiB of the start"), "{text}");
}
