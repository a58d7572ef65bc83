//! Verdicts on small programs of which it is known whether they leak, at driver level and as blocks
//! of PyTorch's cache. The table is in docs/gpu-evidence.md.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;
use testkit::{Program, Run, Said, Scratch, Setup, functions, vramtrace};

/// The expected answer: a verdict, and the function that it names.
type Answer = Option<(&'static str, &'static str)>;

const GROWING: Answer = Some(("growing", "leaking_line"));
const FREED_AT_END: Answer = Some(("freed_at_end", "leaking_line"));

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Driver,
    Tensor,
}

use Level::{Driver, Tensor};

const BOTH: &[Level] = &[Driver, Tensor];
const DRIVER: &[Level] = &[Driver];

#[rustfmt::skip]
const PROGRAMS: &[(&str, &str, &[Level], Answer)] = &[
    ("linear", "2 MiB in each step", BOTH, GROWING),
    ("alone", "the same, and nothing else ever", BOTH, GROWING),
    ("slow", "512 B in every 15th step", BOTH, GROWING),
    ("under-steps", "64 KiB in every 10th step, by the line that makes 100 MiB and frees them in each", BOTH, GROWING),
    ("under-epochs", "8 MiB in each epoch, by the line whose 60 MiB an epoch frees", BOTH, GROWING),
    ("thread", "in a separate thread", BOTH, GROWING),
    ("one-of-many-sites", "one of twelve call sites of one wrapper", BOTH, Some(("growing", "site_7"))),
    ("many-ways", "one line, reached on 32 ways", BOTH, GROWING),
    ("late", "from the middle of the run on", BOTH, GROWING),
    ("bursts", "8 MiB at once in every 25th step", BOTH, GROWING),
    ("paused", "with a pause in the middle as long as the run", BOTH, GROWING),
    ("short-loop", "512 B in each of 100 steps, after loading and before an end that take longer", BOTH, GROWING),
    ("two-sizes", "4 MiB and 512 B in each step", BOTH, GROWING),
    ("queue-that-leaks", "by the line that also fills a bounded queue", BOTH, GROWING),
    ("buffer", "one buffer, replaced by larger ones", BOTH, GROWING),
    ("larger-and-larger", "ever larger pieces that are forgotten", BOTH, GROWING),
    ("list", "a list that is dropped at the end", BOTH, FREED_AT_END),
    ("list-of-the-interpreter", "512 B a step, dropped some time after the last step", BOTH, FREED_AT_END),
    ("forgotten", "one of thirteen that is not freed at the end", DRIVER, Some(("never_freed", "leaking_line"))),
    ("async", "of a memory pool", BOTH, Some(("growing", "leaking_stream"))),
    ("objects", "memory objects that are never mapped", BOTH, Some(("growing", "leaking_object"))),
    ("nothing", "training steps, and no more", BOTH, None),
    ("cache", "a cache that grows for half of the run", BOTH, None),
    ("cache-then-slow", "a cache that grows nearly to the end of the steps, not of the time", BOTH, None),
    ("lru", "the last 60", BOTH, None),
    ("lru-of-sizes", "the last 40, of random sizes", BOTH, None),
    ("shapes", "something for each of 32 shapes that come by chance", BOTH, None),
    ("warm-up", "4 MiB in each of the first steps", BOTH, None),
    ("saw-tooth", "25 MiB that are dropped, again and again", BOTH, None),
    ("requests", "a buffer that grows with each token, for each request", BOTH, None),
    ("queue", "a queue of random length", BOTH, None),
    ("singletons", "something of each of twelve sites, over the run, never freed", BOTH, None),
    ("library-start", "workspaces at the first steps", BOTH, None),
    ("exit", "held from the beginning, freed at exit", BOTH, None),
    ("fill-and-drain", "filled one by one, freed one by one", BOTH, None),
    ("only-load", "weights are loaded, and no more", BOTH, None),
    ("load-and-convert", "weights are loaded and converted, and no more", BOTH, None),
    ("one-training-step", "forward, backward, optimizer", BOTH, None),
    ("few-training-steps", "five of them", BOTH, None),
    ("training", "sixty of them", BOTH, None),
    ("item", "the loss of a step lives until the next", BOTH, None),
    ("fragmentation", "sizes that never come again: the cache's segments grow", BOTH, None),
    ("pool", "the driver's pool keeps what it once had", DRIVER, None),
    ("framework", "a framework's pool of which no blocks are known grows", DRIVER, None),
    ("larger-pieces", "a scratch pool that keeps its pieces, each too small for the next request", DRIVER, None),
    ("host", "pinned host memory", DRIVER, None),
    ("imports", "another process's memory, piece by piece", DRIVER, None),
];

/// A program and a level.
type Case = (usize, Level);
type Found = BTreeMap<Case, Vec<Value>>;

/// Programs whose leaks are large against the rate of samples, and programs without a leak: their verdicts do not change.
const OF_SAMPLES: &str = "linear thread one-of-many-sites many-ways late bursts paused two-sizes under-epochs nothing \
    cache lru warm-up saw-tooth library-start exit only-load training";

/// With `clock` as the program's own clock (`tests/programs/clock.h`).
fn recorded(program: &Program, (at, level): Case, clock: u64, recording: &str) -> Run {
    let name = PROGRAMS[at].0;
    let scratch = Scratch::new();
    let state = scratch.0.join("devices");
    let mut setup = Setup::simulated().preload().env("VRAMTRACE_STACKS", "native");
    // The programs do little else: the recorder's cost is no bound of samples here.
    setup = setup.env("VRAMTRACE_RECORD", recording).env("VRAMTRACE_OVERHEAD", "100%");
    setup = setup.env("VRAMTRACE_SIM_STATE", state).arg(name);
    setup = setup.env("VRAMTRACE_TEST_CLOCK", clock.to_string());
    if level == Tensor || name == "framework" {
        setup = setup.arg(testkit::torch_stand_ins::libraries().join("libc10_cuda.so").display());
    }
    program.run_in(setup, scratch).ok()
}

/// What `vramtrace leaks` says of the programs' runs.
fn leaks_of(cases: &[Case], clock: u64, recording: &str) -> Found {
    let program = Program::c("leaks");
    let (left, runs) = (Mutex::new(cases.to_vec()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = { left.lock().unwrap().pop() } {
                    let run = recorded(&program, case, clock, recording);
                    runs.lock().unwrap().push((case, run.only_trace(), run));
                }
            });
        }
    });
    let runs = runs.into_inner().unwrap();
    // At once: each time takes what it takes to read the C library's debug information.
    let mut command = vramtrace();
    command.args(["leaks", "--json"]).args(runs.iter().map(|(_, trace, _)| trace));
    let all = Said::by(&mut command).ended(0).json();
    let processes = all["processes"].as_array().unwrap();
    assert_eq!(processes.len(), cases.len());
    let mut case_of = BTreeMap::new();
    for process in processes {
        let trace = process["trace"].as_str().unwrap();
        let (case, ..) = runs.iter().find(|(_, path, _)| path.ends_with(trace)).unwrap();
        let earlier = case_of.insert(process["pid"].as_u64().unwrap(), *case);
        assert_eq!(earlier, None, "two processes with one pid");
        assert_pool(PROGRAMS[case.0].0, process);
    }
    let mut found: Found = cases.iter().map(|case| (*case, Vec::new())).collect();
    for leak in all["leaks"].as_array().unwrap() {
        let case = case_of[&leak["pid"].as_u64().unwrap()];
        found.get_mut(&case).unwrap().push(leak.clone());
    }
    found
}

/// One program has a pool of ever larger pieces.
fn assert_pool(name: &str, process: &Value) {
    let kept = process["kept"].as_array().map_or(&[][..], Vec::as_slice);
    let pools: Vec<&Value> = kept.iter().filter(|kept| kept["why"] == "outgrown").collect();
    match (name, &pools[..]) {
        ("larger-pieces", [pool]) => {
            let wanted: u64 = (0..300).step_by(3).map(|n: u64| (1 << 20) + n * (64 << 10)).sum();
            assert_eq!(pool["count"], 100, "{pool:#}");
            // In pages.
            let bytes = pool["bytes"].as_u64().unwrap();
            assert!(bytes >= wanted && bytes < wanted / 5 * 6, "{wanted}: {pool:#}");
        }
        ("larger-pieces", _) => panic!("{process:#}"),
        (_, pools) => assert!(pools.is_empty(), "{name}: {pools:#?}"),
    }
}

/// No verdict without evidence.
fn assert_evidence(name: &str, leak: &Value) {
    let evidence = leak["evidence"].as_array().unwrap();
    let tells = |line: &Value| line.as_str().unwrap().contains(|c: char| c.is_ascii_digit());
    assert!(evidence.len() >= 2 && evidence.iter().any(tells), "{name}: {leak:#}");
    assert!(!leak["shape"].as_array().unwrap().is_empty(), "{name}: {leak:#}");
}

fn are_stacks_taken(found: &Found) -> bool {
    let taken = found.values().flatten().any(|leak| leak["frames"].as_array().unwrap().len() > 1);
    if !taken {
        testkit::skip("leak_verdicts: the recorder takes no stacks here");
    }
    taken
}

#[derive(Default)]
struct Score {
    right: usize,
    real: usize,
    verdicts: usize,
}

/// The table, and what of it is wrong.
fn scored(found: &Found) -> (String, String) {
    let mut scores = BTreeMap::from([(Driver, Score::default()), (Tensor, Score::default())]);
    let mut table = String::from(
        "| program | what it holds | leaks | driver | blocks |\n|---|---|---|---|---|\n",
    );
    let mut wrong = String::new();
    for (at, (name, what, levels, answer)) in PROGRAMS.iter().enumerate() {
        let mut cells = [String::from("-"), String::from("-")];
        for level in *levels {
            let Some(leaks) = found.get(&(at, *level)) else { continue };
            for leak in leaks {
                assert_evidence(name, leak);
            }
            let sure = || leaks.iter().filter(|leak| leak["confidence"].as_f64().unwrap() >= 0.5);
            let right = |leak: &&Value| {
                answer.is_some_and(|(verdict, function)| {
                    leak["verdict"] == verdict && functions(leak).contains(&function)
                })
            };
            let score = scores.get_mut(level).unwrap();
            let hits = sure().filter(right).count().min(1);
            score.real += usize::from(answer.is_some());
            score.right += hits;
            score.verdicts += sure().count();
            let verdicts: Vec<&str> =
                sure().map(|leak| leak["verdict"].as_str().unwrap()).collect();
            cells[*level as usize] =
                if verdicts.is_empty() { "no leak".into() } else { verdicts.join(", ") };
            if hits != usize::from(answer.is_some()) || sure().count() != hits {
                let level = cells[*level as usize].clone();
                wrong += &format!("{name}: {level}: {}\n", serde_json::json!(leaks));
            }
        }
        let leaks = if answer.is_some() { "yes" } else { "no" };
        table += &format!("| {name} | {what} | {leaks} | {} | {} |\n", cells[0], cells[1]);
    }
    for (level, name) in [(Driver, "driver"), (Tensor, "blocks")] {
        let Score { right, real, verdicts } = scores[&level];
        let (precision, recall) = (right as f64 / verdicts as f64, right as f64 / real as f64);
        table += &format!(
            "\n{name}: {real} programs leak; precision {precision:.2} ({right} of {verdicts} verdicts), \
             recall {recall:.2} ({right} of {real})"
        );
    }
    (table, wrong)
}

fn all_cases() -> Vec<Case> {
    let programs = PROGRAMS.iter().enumerate();
    programs
        .flat_map(|(at, (_, _, levels, _))| levels.iter().map(move |level| (at, *level)))
        .collect()
}

/// On a machine on which each call takes as long as every other, and on busy ones: more of them by
/// `VRAMTRACE_SEEDS`. Time is the program's own, so it is the same on every run.
#[test]
fn verdicts_on_programs_with_known_answers() {
    let busy = std::env::var("VRAMTRACE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut all_wrong = String::new();
    for clock in 0..=busy.unwrap_or(1) {
        let found = leaks_of(&all_cases(), clock, "full");
        if !are_stacks_taken(&found) {
            return;
        }
        let (table, wrong) = scored(&found);
        wrong.lines().for_each(|line| all_wrong += &format!("clock {clock}: {line}\n"));
        if clock > 0 {
            continue;
        }
        println!("{table}");
        let documented = include_str!("../../../docs/gpu-evidence.md");
        for line in table.lines().filter(|_| wrong.is_empty()) {
            assert!(documented.contains(line), "docs/gpu-evidence.md lacks: {line}");
        }
    }
    assert!(all_wrong.is_empty(), "{all_wrong}");
}

/// Samples of blocks give the same verdicts as all of them, where what leaks is large against their rate.
#[test]
fn verdicts_of_samples() {
    let at = |name| PROGRAMS.iter().position(|program| program.0 == name).unwrap();
    let cases: Vec<Case> = OF_SAMPLES.split(' ').map(|name| (at(name), Tensor)).collect();
    let found = leaks_of(&cases, 0, "sampled");
    if are_stacks_taken(&found) {
        let (_, wrong) = scored(&found);
        assert!(wrong.is_empty(), "{wrong}");
    }
}
