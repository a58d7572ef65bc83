//! Memory that is unmapped and mapped again, by the calls of real allocators: owners and totals stay
//! right, and what grows meanwhile is named.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup, vramtrace};
use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::{Holdings, Level};
use vramtrace_reader::replay::{CacheSums, State, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::open;

const MIB: u64 = 1 << 20;
const CYCLES: usize = 20;

/// Bytes, paused bytes and pieces.
type Owners = BTreeMap<String, (u64, u64, u64)>;

/// A moment of the program, with what was true then, and what its trace says.
#[derive(Clone, Debug)]
struct Mark {
    word: String,
    /// As PyTorch's stand-in says.
    allocated: u64,
    reserved: u64,
    /// What the driver had given out.
    taken: u64,
    cache: CacheSums,
    live_bytes: u64,
    unmapped: u64,
    /// By function.
    tensors: Owners,
    memory: Owners,
}

struct Slept {
    run: Run,
    marks: Vec<Mark>,
    consistent: bool,
}

pub(super) fn setup(pattern: &str, cycles: usize, grows: &str) -> Setup {
    let library = libraries().join("libc10_cuda.so");
    Setup::simulated().arg(library.display()).arg(pattern).arg(cycles).arg(grows)
}

fn run(pattern: &str, cycles: usize, grows: &str) -> Slept {
    run_with(setup(pattern, cycles, grows).preload())
}

fn run_with(setup: Setup) -> Slept {
    let run = Program::c("sleeping").run(setup).ok();
    let trace = open(&run.only_trace()).unwrap();
    let definitions = trace.definitions().0;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let start = trace.header().start_mono_ns;
    let reported: Vec<(String, [u64; 4])> = run
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("MARK "))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            (words[0].to_string(), [number(1) - start, number(2), number(3), number(4)])
        })
        .collect();
    let stops: Vec<Until> = reported.iter().map(|(_, [at, ..])| Until::Time(*at)).collect();
    let mut marks: Vec<Option<Mark>> = vec![None; reported.len()];
    let mut visitor = (stops, |stop: usize, state: &State| {
        let (word, [_, allocated, reserved, taken]) = reported[stop].clone();
        let device = state.devices.get(&DeviceId(0)).cloned().unwrap_or_default();
        let holdings = Holdings::of_state(state, Level::Driver);
        marks[stop] = Some(Mark {
            word,
            allocated,
            reserved,
            taken,
            cache: device.cache.clone(),
            live_bytes: device.live_bytes,
            unmapped: holdings.held.values().map(|held| held.unmapped).sum(),
            tensors: owners(&symbols, &Holdings::of_state(state, Level::Tensor)),
            memory: owners(&symbols, &holdings),
        });
    });
    trace.visit(&definitions, &mut [&mut visitor]);
    let state = trace.replay(&definitions, &mut ()).state;
    let consistent = state.inconsistencies == Default::default();
    Slept { run, marks: marks.into_iter().flatten().collect(), consistent }
}

fn owners(symbols: &Symbols, holdings: &Holdings) -> Owners {
    let mut owners = Owners::new();
    // What the driver took for itself is no allocation.
    for (owner, held) in holdings.held.iter().filter(|(owner, _)| owner.cause.is_none()) {
        let frames = symbols.stack(owner.stack).map(|frame| frame.function.to_string());
        let sums = owners.entry(wanted(frames)).or_default();
        sums.0 += held.bytes;
        sums.1 += held.paused;
        sums.2 += held.count;
    }
    owners
}

/// The function that the program wanted memory in.
fn wanted(functions: impl Iterator<Item = String> + Clone) -> String {
    let ends = ["_line", "_block", "_region", "_pages"];
    let is_one =
        |name: &String| ends.iter().any(|end| name.ends_with(end)) && name != "cache_block";
    let found = functions.clone().find(is_one);
    found.or_else(|| functions.clone().next()).unwrap_or_else(|| "?".into())
}

fn function(holder: &Value) -> String {
    let frames = holder["frames"].as_array().unwrap().iter();
    wanted(frames.map(|frame| frame["function"].as_str().unwrap_or("").to_string()))
}

fn ask(trace: &Path, command: &str, arguments: &[&str]) -> Value {
    let output =
        vramtrace().arg(command).arg(trace).args(arguments).arg("--json").output().unwrap();
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{command} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

impl Slept {
    fn at<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s Mark> {
        self.marks.iter().filter(move |mark| mark.word == word)
    }

    fn leaks(&self) -> Vec<(String, Value)> {
        let found = ask(&self.run.only_trace(), "leaks", &[]);
        let sure = found["leaks"].as_array().unwrap().iter();
        let sure = sure.filter(|leak| leak["confidence"].as_f64().unwrap() >= 0.5);
        sure.map(|leak| (function(leak), leak.clone())).collect()
    }
}

#[test]
fn torchs_blocks_in_regions_that_sleep() {
    let slept = run("torch", CYCLES, "");
    assert_eq!(slept.at("awake").count(), CYCLES + 1);
    for mark in &slept.marks {
        let cache = &mark.cache;
        assert_eq!((cache.allocated, cache.reserved), (mark.allocated, mark.reserved), "{mark:?}");
        assert_eq!(mark.live_bytes, mark.taken, "{mark:?}");
        for owners in [&mark.tensors, &mark.memory] {
            let bytes: u64 = owners.values().map(|(bytes, _, _)| bytes).sum();
            assert_eq!(bytes, mark.taken, "{mark:?}");
        }
        match mark.word.as_str() {
            "awake" => assert_eq!((cache.paused, cache.reserved_paused), (0, 0)),
            "asleep" => {
                assert_eq!((cache.resident(), cache.paused), (3 * MIB, mark.allocated - 3 * MIB));
                assert_eq!(cache.reserved_paused, mark.reserved - 20 * MIB);
            }
            _ => {}
        }
    }
    let before = slept.at("awake").next().unwrap();
    for after in slept.at("awake") {
        assert_eq!((&after.tensors, &after.memory), (&before.tensors, &before.memory));
    }
    assert_eq!(before.tensors["weights_block"], (72 * MIB, 0, 8));
    assert_eq!(before.memory["weights_line"], (80 * MIB, 0, 4));
    assert_eq!(before.memory["kv_cache_line"], (136 * MIB, 0, 3));
    let asleep = slept.at("asleep").next().unwrap();
    assert_eq!(asleep.tensors["weights_block"], (0, 72 * MIB, 8));
    assert_eq!(asleep.memory["weights_line"], (0, 80 * MIB, 4));
    // A later reservation at the same address shows nothing of what lay there.
    assert!(slept.run.stdout.contains("same address: 1"), "{}", slept.run.stdout);
    let end = slept.at("end").next().unwrap();
    assert_eq!(end.tensors["kv_block"], ((10 + 3) * MIB, 0, 2));
    assert_eq!(end.tensors["buffers_line"], (32 * MIB, 0, 1));
    assert!(slept.consistent);
    assert!(slept.leaks().is_empty(), "{:?}", slept.leaks());
}

#[test]
fn who_brought_memory_back_stands_beside_its_owner() {
    let slept = run("torch", 2, "");
    let trace = slept.run.only_trace();
    for (level, owner) in [("driver", "weights_line"), ("tensor", "weights_block")] {
        let found = ask(&trace, "holders", &["--at", "end", "--level", level]);
        let holders = found["holders"].as_array().unwrap();
        let holder = holders.iter().find(|holder| function(holder) == owner).unwrap();
        assert_eq!(holder["brought_back_by"]["function"], "wake_up", "{holder:#}");
    }
    let mut command = vramtrace();
    command.args(["holders", "--level", "driver", "--at", "end"]).arg(&trace);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.contains("brought back by") && text.contains("wake_up"), "{text}");
}

#[test]
fn the_report_tells_what_slept_and_what_stayed() {
    let slept = run("torch", CYCLES, "driver");
    let trace = slept.run.only_trace();
    let report = ask(&trace, "report", &[]);
    let sleeps = &report["processes"][0]["devices"][0]["sleeps"];
    assert_eq!(sleeps["count"], CYCLES, "what is unmapped to be freed is no sleep");
    for sleep in sleeps["sleeps"].as_array().unwrap() {
        assert_eq!(sleep["asleep_bytes"], 216 * MIB, "{sleep:#}");
        let unmapped = sleep["unmapped_by"].as_array().unwrap().iter();
        let bytes: u64 = unmapped.clone().map(|by| by["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, 216 * MIB);
        assert!(unmapped.clone().all(|by| by["lead"]["function"] == "put_to_sleep"), "{sleep:#}");
        assert!(sleep["ended_s"].as_f64().unwrap() > sleep["began_s"].as_f64().unwrap());
    }
    let stayed = |at: usize| sleeps["sleeps"][at]["stayed_bytes"].as_u64().unwrap();
    assert_eq!(stayed(0), slept.at("asleep").next().unwrap().taken);
    assert_eq!(stayed(CYCLES - 1) - stayed(0), (CYCLES as u64 - 1) * 16 * MIB);
    let all = sleeps["stayed"].as_array().unwrap().iter();
    let grown: Vec<&Value> = all.filter(|one| one["growth_bytes_per_sleep"] != 0).collect();
    assert_eq!(grown.len(), 1, "{grown:#?}");
    assert_eq!(grown[0]["growth_bytes_per_sleep"], 16 * MIB);
    assert_eq!(grown[0]["lead"]["function"], "growing_line");
    let text = vramtrace().args(["report", "--full"]).arg(&trace).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for part in ["asleep 20 times", "stayed while asleep", "+16.00 MiB", "put_to_sleep"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn regions_of_the_driver_keep_their_owners() {
    let slept = run("driver", CYCLES, "");
    let before = slept.at("awake").next().unwrap();
    for after in slept.at("awake") {
        assert_eq!(after.memory, before.memory);
    }
    assert_eq!(before.memory["weights_line"], (96 * MIB, 0, 2));
    for (word, weights) in [("half", (96 * MIB, 0, 2)), ("asleep", (0, 96 * MIB, 2))] {
        assert_eq!(slept.at(word).count(), CYCLES);
        for mark in slept.at(word) {
            assert_eq!(mark.memory["weights_line"], weights, "{word}");
            assert_eq!(mark.memory["kv_cache_line"], (0, 128 * MIB, 1));
            let bytes: u64 = mark.memory.values().map(|(bytes, _, _)| bytes).sum();
            assert_eq!((bytes, mark.live_bytes), (mark.taken, mark.taken), "{word}");
        }
    }
    assert!(
        slept
            .marks
            .iter()
            .all(|mark| mark.unmapped == if mark.word == "end" { 6 * MIB } else { 0 })
    );
    assert!(slept.consistent);
}

#[test]
fn a_placeholder_is_no_memory_and_counts_once() {
    let slept = run("kvcached", CYCLES, "");
    let page = 2 * MIB;
    for mark in &slept.marks {
        let pages = match mark.word.as_str() {
            "full" => 48,
            "awake" | "end" => 16,
            _ => 0,
        };
        assert_eq!((mark.live_bytes, mark.taken), ((pages + 1) * page, (pages + 1) * page));
        if pages > 0 {
            assert_eq!(mark.memory["take_pages"].0, pages * page, "{mark:?}");
        }
    }
    assert!(slept.consistent);
}

#[test]
fn expandable_segments_stay_exact() {
    let slept = run("expandable", CYCLES, "");
    for mark in &slept.marks {
        let cache = &mark.cache;
        assert_eq!((cache.allocated, cache.reserved), (mark.allocated, mark.reserved), "{mark:?}");
        assert_eq!((cache.paused, cache.reserved_paused), (0, 0), "{mark:?}");
        assert_eq!(mark.live_bytes, mark.taken);
    }
    let report = ask(&slept.run.only_trace(), "report", &[]);
    assert!(report["processes"][0]["devices"][0].get("sleeps").is_none(), "nothing slept");
    assert!(slept.consistent);
}

/// Waking passes the cap; pausing charges nothing.
#[test]
fn the_cap_follows_physical_memory() {
    // What the program sees is as without us, but for times.
    let results = |run: &Run| -> Vec<String> {
        let word = |(at, word): (usize, &str)| (at != 2).then(|| word.to_string());
        let line = |line: &str| line.split(' ').enumerate().filter_map(word).collect::<Vec<_>>();
        run.stdout.lines().map(|text| line(text).join(" ")).collect()
    };
    let bare = Program::c("sleeping").run(setup("torch", 3, "")).ok();
    let wide = Program::c("sleeping").run(setup("torch", 3, "").cap("20GiB")).ok();
    assert_eq!(results(&bare), results(&wide));
    // Room for all that is there when it is awake, and for little more.
    let report = wide.only_report();
    let device = &report["devices"][0];
    let peak = device["peak_process_bytes"].as_u64().or(device["peak_bytes"].as_u64()).unwrap();
    let cap = format!("{}MiB", peak / MIB + 8);
    let exact = Program::c("sleeping").run(setup("torch", 3, "").cap(&cap)).ok();
    assert_eq!(exact.only_report()["devices"][0]["refused_by_cap"], 0);
    // What came while it slept is in the way of what wakes.
    let short = Program::c("sleeping").run(setup("torch", 3, "asleep").cap(&cap));
    assert_eq!(short.status, 98, "{}", short.stderr);
    assert!(short.stderr.contains("cuMemCreate"), "{}", short.stderr);
}

/// A trace of which the beginning is gone: a checkpoint knows owners and what sleeps.
#[test]
fn checkpoints_know_owners_and_what_sleeps() {
    let long = setup("driver", 9000, "quick").preload().env("VRAMTRACE_MAX", "4MiB");
    let slept = run_with(long.timeout(Duration::from_secs(240)));
    let report = slept.run.only_report();
    assert!(report["history_from_s"].as_f64().unwrap() > 0.0, "nothing was let go");
    let end = slept.at("end").next().unwrap();
    assert_eq!(end.memory["weights_line"], (96 * MIB, 0, 2), "{:?}", end.memory);
    assert_eq!(end.memory["kv_cache_line"], (128 * MIB, 0, 1), "{:?}", end.memory);
    assert!(!end.memory.contains_key("wake_up"));
}
