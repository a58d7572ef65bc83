//! Memory that sleeps: every command and every export says the same of one moment.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;
use serde_json::{Value, json};
use testkit::{InteractiveProgram, Program, Run, SharedMemory, has, vramtrace};
use vramtrace_reader::export::perfetto::proto::Trace as Timeline;
use vramtrace_reader::export::stacks::pprof::Profile;

use super::sleeping::setup;

const MIB: u64 = 1 << 20;

/// A moment of the program, as the program knows it.
#[derive(Clone, Debug)]
struct Moment {
    word: String,
    /// Since the start of the trace.
    ns: u64,
    allocated: u64,
    reserved: u64,
    taken: u64,
}

impl Moment {
    fn parse(line: &str, start_ns: u64) -> Option<Moment> {
        let words: Vec<&str> = line.strip_prefix("MARK ")?.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let (word, ns) = (words[0].to_string(), number(1) - start_ns);
        Some(Moment { word, ns, allocated: number(2), reserved: number(3), taken: number(4) })
    }

    fn seconds(&self) -> String {
        format!("{}.{:09}", self.ns / 1_000_000_000, self.ns % 1_000_000_000)
    }

    /// What the program has unmapped and maps again later.
    fn paused(&self, pattern: &str) -> u64 {
        match (pattern, self.word.as_str()) {
            ("torch", "asleep") => 216 * MIB,
            ("driver", "half") => 144 * MIB,
            ("driver", "asleep") => 240 * MIB,
            _ => 0,
        }
    }

    /// Of PyTorch's segments, and of its blocks: all but one segment of 20 MiB sleep.
    fn cache_paused(&self, pattern: &str) -> (u64, u64) {
        match self.paused(pattern) {
            0 => (0, 0),
            _ if pattern != "torch" => (0, 0),
            _ => (self.reserved - 20 * MIB, self.allocated - 3 * MIB),
        }
    }
}

fn moments(run: &Run) -> Vec<Moment> {
    let trace = vramtrace_reader::trace::open(&run.only_trace()).unwrap();
    let start = trace.header().start_mono_ns;
    run.stdout.lines().filter_map(|line| Moment::parse(line, start)).collect()
}

#[track_caller]
fn bytes(trace: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = vramtrace().args(arguments).arg(trace).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {printed}");
    output.stdout
}

#[track_caller]
fn json(trace: &Path, arguments: &[&str]) -> Value {
    serde_json::from_slice(&bytes(trace, arguments)).unwrap()
}

/// Sum of a field of all rows.
fn sum(rows: &Value, field: &str) -> u64 {
    let of_row = |row: &Value| match &row[field] {
        Value::Null if field == "paused_bytes" => 0,
        bytes => bytes.as_u64().unwrap(),
    };
    rows.as_array().unwrap().iter().map(of_row).sum()
}

/// Bytes of the rows that are no memory of the driver's own.
fn allocated(rows: &Value) -> u64 {
    let own = |row: &&Value| row["driver_memory"].is_null();
    let rows: Vec<Value> = rows.as_array().unwrap().iter().filter(own).cloned().collect();
    sum(&rows.into(), "bytes")
}

/// Holders, report, frag and exported stacks.
#[track_caller]
fn agree_at_every_moment(pattern: &str, has_blocks: bool) {
    let run = Program::c("sleeping").run(setup(pattern, 1, "").preload()).ok();
    let trace = run.only_trace();
    for moment in moments(&run) {
        let what = format!("{pattern}: {moment:?}");
        let (at, paused) = (moment.seconds(), moment.paused(pattern));
        let levels: &[&str] = if has_blocks { &["driver", "tensor"] } else { &["driver"] };
        for level in levels {
            // What the driver took for itself is no allocation.
            let mut by_driver = 0;
            for by in ["line", "role"] {
                let words =
                    ["holders", "--json", "--at", &at, "--level", level, "--by", by, "--top"];
                let found = json(&trace, &[&words[..], &["1000"]].concat());
                let holders = &found["holders"];
                if by == "line" {
                    by_driver = sum(holders, "bytes") - allocated(holders);
                }
                let all = moment.taken + by_driver;
                assert_eq!(sum(holders, "bytes"), all, "{level} by {by}, {what}");
                assert_eq!(sum(holders, "paused_bytes"), paused, "{level} by {by}, {what}");
            }
            let folded = bytes(
                &trace,
                &["export", "--format", "folded", "--at", &at, "--level", level, "-o", "-"],
            );
            let folded = String::from_utf8(folded).unwrap();
            let of_line = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            let all = moment.taken + by_driver;
            assert_eq!(folded.lines().map(of_line).sum::<u64>(), all, "{what}");
            let profile = pprof(&trace, &at, level);
            assert_eq!(profile.get("inuse_space"), Some(&all), "{what}");
            let expected = Some(&paused).filter(|_| paused > 0);
            assert_eq!(profile.get("paused_space"), expected, "{what}");
        }
        let report = json(&trace, &["report", "--json", "--at", &at]);
        let device = &report["processes"][0]["devices"][0];
        assert_eq!(device["live_bytes"], moment.taken, "{what}");
        if !has_blocks {
            continue;
        }
        let (reserved_paused, allocated_paused) = moment.cache_paused(pattern);
        let frag = json(&trace, &["frag", "--json", "--at", &at]);
        let frag = &frag["devices"][0];
        let torch = &device["torch"];
        for (name, facts) in [("report", torch), ("frag", frag)] {
            for (field, expected) in [
                ("allocated_bytes", moment.allocated),
                ("reserved_bytes", moment.reserved),
                ("paused_bytes", allocated_paused),
                ("reserved_paused_bytes", reserved_paused),
            ] {
                // What is 0 may be left out.
                let found = facts[field].as_u64().unwrap_or(0);
                assert_eq!(found, expected, "{name} {field}, {what}");
            }
        }
        assert_eq!(torch["resident_bytes"], moment.allocated - allocated_paused, "{what}");
        // What has gone already cannot be given back.
        let releasable = frag["releasable_bytes"].as_u64().unwrap();
        assert!(releasable <= moment.reserved - reserved_paused, "{releasable}, {what}");
    }
}

// A test each: they run beside one another.
#[test]
fn all_agree_at_every_moment_of_pytorchs_sleep() {
    agree_at_every_moment("torch", true);
}

#[test]
fn all_agree_at_every_moment_of_a_sleep_without_blocks() {
    agree_at_every_moment("driver", false);
}

#[test]
fn all_agree_at_every_moment_of_a_paged_cache() {
    agree_at_every_moment("kvcached", false);
}

#[test]
fn all_agree_at_every_moment_of_expandable_segments() {
    agree_at_every_moment("expandable", true);
}

/// Sums of a profile's values, by their names.
fn pprof(trace: &Path, at: &str, level: &str) -> BTreeMap<String, u64> {
    let written =
        bytes(trace, &["export", "--format", "pprof", "--at", at, "--level", level, "-o", "-"]);
    let mut plain = Vec::new();
    std::io::copy(&mut flate2::read::GzDecoder::new(&written[..]), &mut plain).unwrap();
    let profile = Profile::decode(&plain[..]).unwrap();
    let name = |index: i64| profile.string_table[index as usize].clone();
    let sums = profile.sample_type.iter().enumerate().map(|(at, of)| {
        let values = profile.sample.iter().map(|sample| sample.value[at] as u64);
        (name(of.r#type), values.sum())
    });
    sums.collect()
}

#[test]
fn timelines_count_what_sleeps_and_keep_its_owner() {
    for pattern in ["torch", "driver", "kvcached", "expandable"] {
        let run = Program::c("sleeping").run(setup(pattern, 2, "").preload()).ok();
        let trace = run.only_trace();
        let table = bytes(&trace, &["export", "--format", "csv", "-o", "-"]);
        let mut reader = csv::Reader::from_reader(&table[..]);
        let rows: Vec<BTreeMap<String, String>> =
            reader.deserialize().collect::<Result<_, _>>().unwrap();
        let time = |text: &str| (text.parse::<f64>().unwrap() * 1e9).round() as u64;
        let timeline = Timeline::decode(&*bytes(&trace, &["export", "-o", "-"])).unwrap().packet;
        let tracks = || timeline.iter().filter_map(|packet| packet.track_descriptor.as_ref());
        let by_role =
            tracks().find(|track| track.name() == "GPU 0 by role").map(|track| track.uuid());
        let roles: Vec<u64> = tracks()
            .filter(|track| track.parent_uuid == by_role && by_role.is_some())
            .map(|track| track.uuid())
            .collect();
        for moment in moments(&run) {
            let what = format!("{pattern}: {moment:?}");
            let now = |kind: &str| -> u64 {
                let of_kind = |row: &&BTreeMap<String, String>| {
                    row["record"] == "counter"
                        && row["kind"] == kind
                        && row["device"] == "0"
                        && time(&row["time_s"]) <= moment.ns
                };
                let last = rows.iter().rfind(of_kind);
                last.map_or(0, |row| row["bytes"].parse().unwrap())
            };
            assert_eq!(now("live"), moment.taken, "{what}");
            assert_eq!(now("paused"), moment.paused(pattern), "{what}");
            if pattern == "torch" || pattern == "expandable" {
                let (reserved_paused, allocated_paused) = moment.cache_paused(pattern);
                assert_eq!(now("allocated"), moment.allocated, "{what}");
                assert_eq!(now("reserved"), moment.reserved, "{what}");
                assert_eq!(now("allocated_paused"), allocated_paused, "{what}");
                assert_eq!(now("reserved_paused"), reserved_paused, "{what}");
                // What memory is for adds up to what is on the card.
                let events = timeline.iter().filter(|packet| packet.timestamp() <= moment.ns);
                let events = events.filter_map(|packet| packet.track_event.as_ref());
                let last: BTreeMap<u64, i64> = events
                    .filter(|event| roles.contains(&event.track_uuid()))
                    .map(|event| (event.track_uuid(), event.counter_value()))
                    .collect();
                assert_eq!(last.values().sum::<i64>() as u64, moment.taken, "{last:?}, {what}");
            }
            let (word, weights) = match pattern {
                "torch" => ("awake", 80 * MIB),
                "driver" => ("awake", 96 * MIB),
                _ => continue,
            };
            if moment.word == word {
                let live = |row: &&BTreeMap<String, String>| {
                    row["record"] == "allocation"
                        && row["kind"] == "vmm"
                        && time(&row["time_s"]) <= moment.ns
                        && time(&row["end_s"]) > moment.ns
                };
                let of_owner =
                    rows.iter().filter(live).filter(|row| row["stack"].contains("weights_line"));
                let bytes: u64 = of_owner.map(|row| row["bytes"].parse::<u64>().unwrap()).sum();
                assert_eq!(bytes, weights, "{what}");
                assert!(!rows.iter().any(|row| row["stack"].contains("wake_up")), "{what}");
            }
        }
        if pattern == "torch" || pattern == "driver" {
            let back = |row: &&BTreeMap<String, String>| !row["brought_back_by"].is_empty();
            let regions = if pattern == "torch" { 7 } else { 4 };
            assert_eq!(rows.iter().filter(back).count(), 2 * regions, "two cycles");
            let names = timeline.iter().filter_map(|packet| packet.interned_data.as_ref());
            let mut names = names.flat_map(|new| &new.debug_annotation_names);
            let by = names.find(|name| name.name() == "brought_back_by").unwrap().iid;
            let events = timeline.iter().filter_map(|packet| packet.track_event.as_ref());
            let known = events.flat_map(|event| &event.debug_annotations);
            assert_eq!(known.filter(|of| of.name_iid == by).count(), 2 * regions);
        }
    }
}

#[test]
fn snapshots_and_what_if_show_what_pytorch_has() {
    const SUMS: &str = "import json, pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); \
        print(json.dumps([sum(g['total_size'] for g in s['segments']), [f['name'] for g in \
        s['segments'] for b in g['blocks'] for f in b.get('frames', [])]]))";
    for (pattern, unmapped) in [("torch", 0), ("driver", 6 * MIB), ("expandable", 0)] {
        let run = Program::c("sleeping").run(setup(pattern, 2, "").preload()).ok();
        let (trace, all) = (run.only_trace(), moments(&run));
        let pickle = trace.with_extension("pickle");
        let pickle = pickle.to_str().unwrap();
        bytes(&trace, &["export", "--format", "torch-snapshot", "-o", pickle]);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_snapshot.py");
        let python = |words: &[&str]| {
            let output = std::process::Command::new("python3").args(words).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{pattern}: {printed}");
            String::from_utf8(output.stdout).unwrap()
        };
        python(&[script.to_str().unwrap(), "rules", pickle]);
        let found: Value = serde_json::from_str(&python(&["-c", SUMS, pickle])).unwrap();
        let end = all.iter().rfind(|moment| moment.word == "end").unwrap();
        assert_eq!(found[0], end.taken - unmapped, "{pattern}: memory with an address at the end");
        let names: Vec<&str> =
            found[1].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(!names.contains(&"wake_up"), "{pattern}: {names:?}");
        if pattern == "driver" {
            assert!(names.contains(&"weights_line"), "{names:?}");
            continue;
        }
        let whatif = json(&trace, &["whatif", "--json"]);
        let device = &whatif["devices"][0];
        let report = json(&trace, &["report", "--json"]);
        let torch = &report["processes"][0]["devices"][0]["torch"];
        for (field, least) in [
            ("peak_reserved_bytes", all.iter().map(|moment| moment.reserved).max()),
            ("peak_allocated_bytes", all.iter().map(|moment| moment.allocated).max()),
        ] {
            assert_eq!(device[format!("recorded_{field}")], torch[field], "{pattern}");
            assert!(torch[field].as_u64() >= least, "{pattern}: {torch}");
        }
    }
}

/// Bytes of call sites: of the driver's memory, and of blocks.
fn of_sites(process: &Value) -> (u64, u64) {
    let sum = |level: &str| {
        let sites = process["sites"].as_array().unwrap().iter();
        let here = sites.filter(|site| site["level"] == level);
        here.map(|site| site["bytes"].as_u64().unwrap()).sum()
    };
    (sum("driver"), sum("tensor"))
}

/// The live page, and the trace of a program that runs, at the same moment.
#[test]
fn the_live_page_says_what_the_trace_says() {
    for pattern in ["torch", "driver", "kvcached", "expandable"] {
        let memory = SharedMemory::new();
        let mut setup = setup(pattern, 2, "").preload().env("SLEEPING_WAITS", "1");
        setup = setup.env("XDG_RUNTIME_DIR", &memory.0);
        let mut program = InteractiveProgram::start_as("sleeping", setup);
        let mut seen = 0;
        loop {
            let line = program.answer();
            if line == "bye" {
                break;
            }
            assert!(!line.is_empty(), "{pattern}: {}", program.stderr());
            let Some(moment) = Moment::parse(&line, 0) else { continue };
            seen += 1;
            let what = format!("{pattern}: {moment:?}");
            let processes = memory.ps(&[]);
            let mine = processes.iter().find(|one| one["pid"] == program.pid()).unwrap();
            let device = &mine["devices"][0];
            has(
                device,
                json!({
                    "live_bytes": moment.taken, "resident_bytes": moment.taken,
                    "paused_bytes": moment.paused(pattern)
                }),
            );
            // As PyTorch counts, which knows nothing of what sleeps, by its last report: that comes with
            // a block, and before the end only a segment went.
            if pattern == "torch" && moment.word != "end" {
                let free = moment.reserved - moment.allocated;
                assert_eq!(device["free_cache_bytes"], free, "{what}");
            }
            // Call sites are added up so seldom that it takes a hundredth of the time at most.
            let resident = moment.allocated - moment.cache_paused(pattern).1;
            let mut sites = of_sites(mine);
            for _ in 0..50 {
                if sites == (moment.taken, resident) {
                    break;
                }
                assert_eq!(program.ask("again"), "again");
                let processes = memory.ps(&[]);
                let mine = processes.iter().find(|one| one["pid"] == program.pid()).unwrap();
                sites = of_sites(mine);
            }
            assert_eq!(sites, (moment.taken, resident), "{what}");
            let words = ["holders", "--json", "--at", "end", "--level", "driver", "--by", "stack"];
            let found = json(&program.traces()[0], &[&words[..], &["--top", "1000"]].concat());
            assert_eq!(allocated(&found["holders"]), moment.taken, "{what}");
            assert_eq!(sum(&found["holders"], "paused_bytes"), moment.paused(pattern), "{what}");
            program.order("go on");
        }
        assert!(seen >= 6, "{pattern}: {seen}");
    }
}
