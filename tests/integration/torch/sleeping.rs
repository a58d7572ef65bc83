//! Memory that is unmapped and mapped again, by the calls of real allocators: owners and totals stay
//! right, and what grows meanwhile is named.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use testkit::torch_stand_ins::libraries;
use testkit::{MIB, Program, Run, Setup, functions, sum};
use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::{Holdings, Level};
use vramtrace_reader::replay::{CacheSums, State, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::open;

const CYCLES: usize = 20;

/// A moment of the program, as the program knows it.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) word: String,
    /// Since the start of the trace.
    pub(super) ns: u64,
    pub(super) allocated: u64,
    pub(super) reserved: u64,
    pub(super) taken: u64,
}

impl Moment {
    pub(super) fn parse(line: &str, start_ns: u64) -> Option<Moment> {
        let words: Vec<&str> = line.strip_prefix("MARK ")?.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (word, ns) = (words[0].to_string(), number(1) - start_ns);
        Some(Moment { word, ns, allocated: number(2), reserved: number(3), taken: number(4) })
    }

    /// All moments of a run.
    pub(super) fn of(run: &Run) -> Vec<Moment> {
        let start = open(&run.only_trace()).unwrap().header().start_mono_ns;
        run.stdout.lines().filter_map(|line| Moment::parse(line, start)).collect()
    }

    /// What the program has unmapped and maps again later.
    pub(super) fn paused(&self, pattern: &str) -> u64 {
        match (pattern, self.word.as_str()) {
            ("torch", "asleep") => 216 * MIB,
            ("driver", "half") => 144 * MIB,
            ("driver", "asleep") => 240 * MIB,
            _ => 0,
        }
    }

    /// Of PyTorch's segments, and of its blocks: all but one segment of 20 MiB sleep.
    pub(super) fn cache_paused(&self, pattern: &str) -> (u64, u64) {
        match self.paused(pattern) {
            0 => (0, 0),
            _ if pattern != "torch" => (0, 0),
            _ => (self.reserved - 20 * MIB, self.allocated - 3 * MIB),
        }
    }
}

/// Bytes, paused bytes and pieces, by function.
type Owners = BTreeMap<String, (u64, u64, u64)>;

/// What the trace says of a moment.
struct Mark {
    moment: Moment,
    cache: CacheSums,
    live_bytes: u64,
    unmapped: u64,
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

fn slept(setup: Setup) -> Slept {
    let run = Program::c("sleeping").run(setup.preload()).ok();
    let trace = open(&run.only_trace()).unwrap();
    let definitions = trace.definitions().0;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let moments = Moment::of(&run);
    let stops: Vec<Until> = moments.iter().map(|moment| Until::Time(moment.ns)).collect();
    let mut marks = Vec::new();
    let mut visitor = (stops, |stop: usize, state: &State| {
        let device = state.devices.get(&DeviceId(0)).cloned().unwrap_or_default();
        let holdings = Holdings::of_state(state, Level::Driver);
        marks.push(Mark {
            moment: moments[stop].clone(),
            cache: device.cache.clone(),
            live_bytes: device.live_bytes,
            unmapped: holdings.held.values().map(|held| held.unmapped).sum(),
            tensors: owners(&symbols, &Holdings::of_state(state, Level::Tensor)),
            memory: owners(&symbols, &holdings),
        });
    });
    trace.visit(&definitions, &mut [&mut visitor]);
    let state = trace.replay(&definitions, &mut ()).state;
    Slept { run, marks, consistent: state.inconsistencies == Default::default() }
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

impl Slept {
    fn at<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s Mark> {
        self.marks.iter().filter(move |mark| mark.moment.word == word)
    }
}

/// Pattern, word, owner, and what it has at all these moments: MiB, paused MiB, pieces.
type Owner = (&'static str, &'static str, &'static str, (u64, u64, u64));
const OWNERS: [Owner; 14] = [
    ("torch", "awake", "weights_block", (72, 0, 8)),
    ("torch", "awake", "weights_line", (80, 0, 4)),
    ("torch", "awake", "kv_cache_line", (136, 0, 3)),
    ("torch", "asleep", "weights_block", (0, 72, 8)),
    ("torch", "asleep", "weights_line", (0, 80, 4)),
    ("torch", "end", "kv_block", (13, 0, 2)),
    ("torch", "end", "buffers_line", (32, 0, 1)),
    ("driver", "awake", "weights_line", (96, 0, 2)),
    ("driver", "half", "weights_line", (96, 0, 2)),
    ("driver", "half", "kv_cache_line", (0, 128, 1)),
    ("driver", "asleep", "weights_line", (0, 96, 2)),
    ("driver", "asleep", "kv_cache_line", (0, 128, 1)),
    ("kvcached", "full", "take_pages", (96, 0, 48)),
    ("kvcached", "end", "take_pages", (32, 0, 16)),
];

/// At each moment of many cycles; owners that wake are those that fell asleep. A placeholder is no memory, and counts once.
#[test]
fn owners_and_totals_are_those_of_the_program() {
    for pattern in ["torch", "driver", "kvcached", "expandable"] {
        let slept = slept(setup(pattern, CYCLES, ""));
        let awake = slept.at("awake").next();
        for mark in &slept.marks {
            let (moment, cache) = (&mark.moment, &mark.cache);
            let what = format!("{pattern}: {moment:?}");
            assert_eq!(mark.live_bytes, moment.taken, "{what}");
            let sum = |owners: &Owners| owners.values().map(|(bytes, _, _)| bytes).sum::<u64>();
            assert_eq!(sum(&mark.memory), moment.taken, "{what}");
            if ["torch", "expandable"].contains(&pattern) {
                let (allocated, reserved) = (cache.allocated, cache.reserved);
                assert_eq!((allocated, reserved), (moment.allocated, moment.reserved), "{what}");
                let paused = (cache.reserved_paused, cache.paused);
                assert_eq!(paused, moment.cache_paused(pattern), "{what}");
                assert_eq!(sum(&mark.tensors), moment.taken, "{what}");
            }
            if moment.word == "awake" && ["torch", "driver"].contains(&pattern) {
                let before = awake.unwrap();
                assert_eq!((&mark.tensors, &mark.memory), (&before.tensors, &before.memory));
            }
            let unmapped = if (pattern, &*moment.word) == ("driver", "end") { 6 * MIB } else { 0 };
            assert!(pattern != "driver" || mark.unmapped == unmapped, "{what}");
        }
        for (_, word, owner, (bytes, paused, pieces)) in OWNERS.iter().filter(|of| of.0 == pattern)
        {
            assert!(slept.at(word).count() > 0, "{pattern} {word}");
            for mark in slept.at(word) {
                let found = mark.tensors.get(*owner).or(mark.memory.get(*owner));
                let expected = (bytes * MIB, paused * MIB, *pieces);
                assert_eq!(found, Some(&expected), "{pattern} {owner}: {:?}", mark.moment);
            }
        }
        assert!(slept.consistent, "{pattern}");
        match pattern {
            // A later reservation at the same address shows nothing of what lay there.
            "torch" => {
                assert!(slept.run.stdout.contains("same address: 1"), "{}", slept.run.stdout);
                let leaks = slept.run.json("leaks");
                let leaks = leaks["leaks"].as_array().unwrap();
                assert!(leaks.iter().all(|leak| leak["confidence"].as_f64() < Some(0.5)));
            }
            "expandable" => {
                let report = slept.run.only_report();
                assert!(report["devices"][0].get("sleeps").is_none(), "nothing slept");
            }
            _ => {}
        }
    }
}

#[test]
fn who_brought_memory_back_stands_beside_its_owner() {
    let run = slept(setup("torch", 2, "")).run;
    for (level, owner) in [("driver", "weights_line"), ("tensor", "weights_block")] {
        let found = run.json(&format!("holders --at end --level {level}"));
        let mut holders = found["holders"].as_array().unwrap().iter();
        let of = |holder: &&Value| wanted(functions(holder).into_iter().map(String::from)) == owner;
        let holder = holders.find(of).unwrap();
        assert_eq!(holder["brought_back_by"]["function"], "wake_up", "{holder:#}");
    }
    let text = run.text("holders --level driver --at end");
    assert!(text.contains("brought back by") && text.contains("wake_up"), "{text}");
}

#[test]
fn the_report_tells_what_slept_and_what_stayed() {
    let slept = slept(setup("torch", CYCLES, "driver"));
    let report = slept.run.only_report();
    let sleeps = &report["devices"][0]["sleeps"];
    assert_eq!(sleeps["count"], CYCLES, "what is unmapped to be freed is no sleep");
    let lead = |of: &Value| of["frames"][of["lead"].as_u64().unwrap() as usize]["function"].clone();
    for sleep in sleeps["sleeps"].as_array().unwrap() {
        assert_eq!(sleep["asleep_bytes"], 216 * MIB, "{sleep:#}");
        let unmapped = &sleep["unmapped_by"];
        assert_eq!(sum(unmapped, "bytes"), 216 * MIB);
        let mut by = unmapped.as_array().unwrap().iter();
        assert!(by.all(|by| lead(by) == "put_to_sleep"), "{sleep:#}");
        assert!(sleep["ended_s"].as_f64().unwrap() > sleep["began_s"].as_f64().unwrap());
    }
    let stayed = |at: usize| sleeps["sleeps"][at]["stayed_bytes"].as_u64().unwrap();
    assert_eq!(stayed(0), slept.at("asleep").next().unwrap().moment.taken);
    assert_eq!(stayed(CYCLES - 1) - stayed(0), (CYCLES as u64 - 1) * 16 * MIB);
    let all = sleeps["stayed"].as_array().unwrap().iter();
    let grown: Vec<&Value> = all.filter(|one| one["growth_bytes_per_sleep"] != 0).collect();
    assert_eq!(grown.len(), 1, "{grown:#?}");
    assert_eq!(grown[0]["growth_bytes_per_sleep"], 16 * MIB);
    assert_eq!(lead(grown[0]), "growing_line");
    let text = slept.run.text("report --full");
    for part in ["asleep 20 times", "stayed while asleep", "+16.00 MiB", "put_to_sleep"] {
        assert!(text.contains(part), "{part}: {text}");
    }
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
    let long = setup("driver", 9000, "quick").env("VRAMTRACE_MAX", "4MiB");
    let slept = slept(long.timeout(Duration::from_secs(240)));
    let report = slept.run.only_report();
    assert!(report["history_from_s"].as_f64().unwrap() > 0.0, "nothing was let go");
    let end = &slept.at("end").next().unwrap().memory;
    let found = ["weights_line", "kv_cache_line", "wake_up"].map(|owner| end.get(owner));
    assert_eq!(found, [Some(&(96 * MIB, 0, 2)), Some(&(128 * MIB, 0, 1)), None], "{end:?}");
}
