//! Memory that sleeps: every command and every export says the same of one moment.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::{Value, json};
use testkit::{InteractiveProgram, MIB, Program, Run, SharedMemory, gunzip, has, repository, sum};
use vramtrace_reader::export::perfetto::proto::Trace as Timeline;
use vramtrace_reader::pprof::Profile;

use super::sleeping::{Moment, setup};

fn run(pattern: &str, cycles: usize) -> Run {
    Program::c("sleeping").run(setup(pattern, cycles, "").preload()).ok()
}

fn exported(run: &Run, line: &str) -> Vec<u8> {
    run.scratch.bytes(&format!("export {line} -o - {}", run.only_trace().display()))
}

/// The rows that are memory of the driver's own, or the others.
fn rows(all: &Value, of_driver: bool) -> Value {
    let wanted = |row: &&Value| row["driver_memory"].is_null() != of_driver;
    all.as_array().unwrap().iter().filter(wanted).cloned().collect()
}

/// Holders, report, frag and exported stacks.
#[track_caller]
fn agree_at_every_moment(pattern: &str, has_blocks: bool) {
    let run = run(pattern, 1);
    for moment in Moment::of(&run) {
        let what = format!("{pattern}: {moment:?}");
        let at = format!("--at {}.{:09}", moment.ns / 1_000_000_000, moment.ns % 1_000_000_000);
        let paused = moment.paused(pattern);
        let levels: &[&str] = if has_blocks { &["driver", "tensor"] } else { &["driver"] };
        for level in levels {
            let by_line = run.json(&format!("holders {at} --level {level} --top 1000"));
            // What the driver took for itself is no allocation.
            let all = moment.taken + sum(&rows(&by_line["holders"], true), "bytes");
            let by_role = run.json(&format!("holders {at} --level {level} --by role --top 1000"));
            for found in [by_line, by_role] {
                let holders = &found["holders"];
                let sums = (sum(holders, "bytes"), sum(holders, "paused_bytes"));
                assert_eq!(sums, (all, paused), "{level}, {what}");
            }
            let folded = exported(&run, &format!("--format folded {at} --level {level}"));
            let folded = String::from_utf8(folded).unwrap();
            let of_line = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            assert_eq!(folded.lines().map(of_line).sum::<u64>(), all, "{what}");
            let profile = pprof(&exported(&run, &format!("--format pprof {at} --level {level}")));
            assert_eq!(profile.get("inuse_space"), Some(&all), "{what}");
            let expected = Some(&paused).filter(|_| paused > 0);
            assert_eq!(profile.get("paused_space"), expected, "{what}");
        }
        let report = run.json(&format!("report {at}"));
        let device = &report["processes"][0]["devices"][0];
        assert_eq!(device["live_bytes"], moment.taken, "{what}");
        if !has_blocks {
            continue;
        }
        let (reserved_paused, allocated_paused) = moment.cache_paused(pattern);
        let frag = &run.json(&format!("frag {at}"))["devices"][0];
        let torch = &device["torch"];
        for facts in [torch, frag] {
            let figures =
                ["allocated_bytes", "reserved_bytes", "paused_bytes", "reserved_paused_bytes"]
                    .map(|field| facts[field].as_u64().unwrap_or(0));
            let expected = [moment.allocated, moment.reserved, allocated_paused, reserved_paused];
            assert_eq!(figures, expected, "{what}: {facts}");
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
fn pprof(written: &[u8]) -> BTreeMap<String, u64> {
    let profile = Profile::decode(&*gunzip(written)).unwrap();
    let name = |index: i64| profile.string_table[index as usize].clone();
    let sums = profile.sample_type.iter().enumerate().map(|(at, of)| {
        let values = profile.sample.iter().map(|sample| sample.value[at] as u64);
        (name(of.r#type), values.sum())
    });
    sums.collect()
}

type Row = BTreeMap<String, String>;

fn nanoseconds(row: &Row, field: &str) -> u64 {
    (row[field].parse::<f64>().unwrap() * 1e9).round() as u64
}

#[test]
fn timelines_count_what_sleeps_and_keep_its_owner() {
    // MiB of weights that are awake again, and regions that came back in two cycles.
    for (pattern, woken) in [
        ("torch", Some((80, 14))),
        ("driver", Some((96, 8))),
        ("kvcached", None),
        ("expandable", None),
    ] {
        let run = run(pattern, 2);
        let table = exported(&run, "--format csv");
        let mut reader = csv::Reader::from_reader(&table[..]);
        let rows: Vec<Row> = reader.deserialize().collect::<Result<_, _>>().unwrap();
        let timeline = Timeline::decode(&*exported(&run, "")).unwrap().packet;
        let tracks = || timeline.iter().filter_map(|packet| packet.track_descriptor.as_ref());
        let by_role =
            tracks().find(|track| track.name() == "GPU 0 by role").map(|track| track.uuid());
        let roles = tracks().filter(|track| by_role.is_some() && track.parent_uuid == by_role);
        let roles: Vec<u64> = roles.map(|track| track.uuid()).collect();
        for moment in Moment::of(&run) {
            let what = format!("{pattern}: {moment:?}");
            let now = |kind: &str| -> u64 {
                let of_kind = |row: &&Row| {
                    let counts = row["record"] == "counter" && row["kind"] == kind;
                    counts && row["device"] == "0" && nanoseconds(row, "time_s") <= moment.ns
                };
                let last = rows.iter().rfind(of_kind);
                last.map_or(0, |row| row["bytes"].parse().unwrap())
            };
            let found = (now("live"), now("paused"));
            assert_eq!(found, (moment.taken, moment.paused(pattern)), "{what}");
            if pattern == "torch" || pattern == "expandable" {
                let (reserved_paused, allocated_paused) = moment.cache_paused(pattern);
                let found = ["allocated", "reserved", "allocated_paused", "reserved_paused"];
                let expected =
                    [moment.allocated, moment.reserved, allocated_paused, reserved_paused];
                assert_eq!(found.map(now), expected, "{what}");
                // What memory is for adds up to what is on the card.
                let events = timeline.iter().filter(|packet| packet.timestamp() <= moment.ns);
                let events = events.filter_map(|packet| packet.track_event.as_ref());
                let last: BTreeMap<u64, i64> = events
                    .filter(|event| roles.contains(&event.track_uuid()))
                    .map(|event| (event.track_uuid(), event.counter_value()))
                    .collect();
                assert_eq!(last.values().sum::<i64>() as u64, moment.taken, "{last:?}, {what}");
            }
            if let Some((weights, _)) = woken
                && moment.word == "awake"
            {
                let of_owner = |row: &&Row| {
                    let is_one = row["record"] == "allocation" && row["kind"] == "vmm";
                    let live = |row: &Row| {
                        nanoseconds(row, "time_s") <= moment.ns
                            && nanoseconds(row, "end_s") > moment.ns
                    };
                    is_one && row["stack"].contains("weights_line") && live(row)
                };
                let live = rows.iter().filter(of_owner);
                let bytes: u64 = live.map(|row| row["bytes"].parse::<u64>().unwrap()).sum();
                assert_eq!(bytes, weights * MIB, "{what}");
            }
        }
        if let Some((_, regions)) = woken {
            assert!(!rows.iter().any(|row| row["stack"].contains("wake_up")), "{pattern}");
            let back = rows.iter().filter(|row| !row["brought_back_by"].is_empty());
            assert_eq!(back.count(), regions, "{pattern}");
            let names = timeline.iter().filter_map(|packet| packet.interned_data.as_ref());
            let mut names = names.flat_map(|new| &new.debug_annotation_names);
            let by = names.find(|name| name.name() == "brought_back_by").unwrap().iid;
            let events = timeline.iter().filter_map(|packet| packet.track_event.as_ref());
            let known = events.flat_map(|event| &event.debug_annotations);
            assert_eq!(known.filter(|of| of.name_iid == by).count(), regions, "{pattern}");
        }
    }
}

#[test]
fn snapshots_and_what_if_show_what_pytorch_has() {
    const SUMS: &str = "import json, pickle, sys; s = pickle.load(open(sys.argv[1], 'rb')); \
        print(json.dumps([sum(g['total_size'] for g in s['segments']), [f['name'] for g in \
        s['segments'] for b in g['blocks'] for f in b.get('frames', [])]]))";
    let script = repository().join("tests/python/torch_snapshot.py");
    for (pattern, unmapped) in [("torch", 0), ("driver", 6 * MIB), ("expandable", 0)] {
        let run = run(pattern, 2);
        let all = Moment::of(&run);
        let pickle = run.scratch.0.join("pickle");
        let pickle = pickle.to_str().unwrap();
        run.text(&format!("export --format torch-snapshot -o {pickle}"));
        let python = |words: &[&str]| {
            let said = testkit::Said::by(std::process::Command::new("python3").args(words));
            said.ended(0).out
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
        let device = &run.json("whatif")["devices"][0];
        let torch = &run.only_report()["devices"][0]["torch"];
        for (field, least) in [
            ("peak_reserved_bytes", all.iter().map(|moment| moment.reserved).max()),
            ("peak_allocated_bytes", all.iter().map(|moment| moment.allocated).max()),
        ] {
            assert_eq!(device[field], torch[field], "{pattern}");
            assert!(torch[field].as_u64() >= least, "{pattern}: {torch}");
        }
    }
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
            let device = &memory.shown(program.pid())["devices"][0];
            let paused = moment.paused(pattern);
            let taken = moment.taken;
            has(
                device,
                json!({ "live_bytes": taken, "resident_bytes": taken, "paused_bytes": paused }),
            );
            // As PyTorch counts, which knows nothing of what sleeps, by its last report: that comes with
            // a block, and before the end only a segment went.
            if pattern == "torch" && moment.word != "end" {
                let free = moment.reserved - moment.allocated;
                assert_eq!(device["free_cache_bytes"], free, "{what}");
            }
            // Call sites are added up so seldom that it takes a hundredth of the time at most.
            let wanted = (taken, moment.allocated - moment.cache_paused(pattern).1);
            let sites = |_| {
                let shown = memory.shown(program.pid());
                let of = |level: &str| -> Value {
                    let sites = shown["sites"].as_array().unwrap().iter();
                    sites.filter(|site| site["level"] == level).cloned().collect()
                };
                let found = (sum(&of("driver"), "bytes"), sum(&of("tensor"), "bytes"));
                if found != wanted {
                    assert_eq!(program.ask("again"), "again");
                }
                found
            };
            let agree = (0..50).map(sites).any(|found| found == wanted);
            assert!(agree, "the call sites: {what}");
            let found =
                program.scratch.json("holders --at end --level driver --by stack --top 1000");
            let sums = (
                sum(&rows(&found["holders"], false), "bytes"),
                sum(&found["holders"], "paused_bytes"),
            );
            assert_eq!(sums, (taken, paused), "{what}");
            program.order("go on");
        }
        assert!(seen >= 6, "{pattern}: {seen}");
    }
}
