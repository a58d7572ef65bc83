//! `vramtrace export`: each format is read back with a parser of its own kind, and holds what the
//! traces hold.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Output;

use prost::Message;
use serde_json::Value;
use testkit::trace_builder::{MS, SECOND, TraceBuilder};
use testkit::{Scratch, vramtrace};
use vramtrace_format::{Definition, Event, Kind, PoolId, RefusedBy, Space, ThreadId};
use vramtrace_reader::export::perfetto::proto::{
    AnnotationValue, EventType, InternedName, Trace, TrackDescriptor,
};

const MIB: u64 = 1 << 20;
const START: u64 = 1_700_000_000 * SECOND;

/// A: 4 MiB from 1 s to 3 s. B: 1 KiB from 2 s on. C: a pool block of 8 MiB from 2.5 s to 2.6 s.
/// A refusal at 4 s. D: 2 MiB at 5 s, at the address of A. Pinned host memory at 6 s.
fn trace(rank: u32, start_s: u64) -> TraceBuilder {
    let mut trace = TraceBuilder::new().rank(rank, 2);
    trace.header.pid = 42;
    trace.header.start_unix_ns = START + start_s * SECOND;
    trace.header.host = format!("node{rank}");
    trace.header.command = vec!["train, \"it\"".into()];
    let name = "main, \"quoted\"".into();
    trace.define(Definition::Thread { id: ThreadId(1), tid: 4711, name });
    trace.alloc(SECOND, Kind::Device, 0x7f00_0000_0000, 4 * MIB);
    trace.alloc(2 * SECOND, Kind::Device, 0x7f00_0100_0000, 1024);
    let state = Event::PoolState { pool: PoolId(1), reserved: 32 * MIB, used: 8 * MIB };
    trace.event(2500 * MS, state);
    trace.alloc(2500 * MS, Kind::Pool, 0x7f00_0200_0000, 8 * MIB);
    trace.free(2600 * MS, Space::Device, 0x7f00_0200_0000);
    trace.free(3 * SECOND, Space::Device, 0x7f00_0000_0000);
    trace.refused(4 * SECOND, Kind::Device, 99 * MIB, RefusedBy::Cap, 64 * MIB);
    trace.alloc(5 * SECOND, Kind::Device, 0x7f00_0000_0000, 2 * MIB);
    trace.alloc(6 * SECOND, Kind::HostPinned, 0x5555_0000, 3 * MIB);
    trace.event(7 * SECOND, Event::Ended);
    trace
}

/// Two ranks on two hosts with the same pid; the second starts 10 s later.
fn two_ranks(scratch: &Scratch) {
    for (rank, start_s) in [(0, 0), (1, 10)] {
        trace(rank, start_s).write(&scratch.0.join(format!("rank{rank}.vtrace")));
    }
}

fn export(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().arg("export").args(args).current_dir(&scratch.0).output().unwrap()
}

#[track_caller]
fn exported(scratch: &Scratch, args: &[&str]) -> Vec<u8> {
    let output = export(scratch, &[args, &["-o", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn rows(csv: &[u8]) -> Vec<HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(csv);
    reader.deserialize().map(Result::unwrap).collect()
}

fn of<'r>(
    rows: &'r [HashMap<String, String>],
    record: &str,
    rank: &str,
) -> Vec<&'r HashMap<String, String>> {
    rows.iter().filter(|row| row["record"] == record && row["rank"] == rank).collect()
}

#[test]
fn csv_has_every_allocation_counter_and_refusal() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    let rows = rows(&exported(&scratch, &["rank0.vtrace", "rank1.vtrace", "--format", "csv"]));
    for (rank, offset) in [("0", 0.0), ("1", 10.0)] {
        let allocations: Vec<(String, f64, f64, u64, String)> = of(&rows, "allocation", rank)
            .into_iter()
            .map(|row| {
                (
                    row["kind"].clone(),
                    row["time_s"].parse::<f64>().unwrap() - offset,
                    row["end_s"].parse::<f64>().unwrap() - offset,
                    row["bytes"].parse().unwrap(),
                    row["end"].clone(),
                )
            })
            .collect();
        let row = |kind: &str, from, to, bytes, end: &str| {
            (kind.to_string(), from, to, bytes, end.to_string())
        };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        let expected = [
            row("pool", 2.5, 2.6, 8 * MIB, "freed"),
            row("device", 1.0, 3.0, 4 * MIB, "freed"),
            row("device", 2.0, 7.0, 1024, "live"),
            row("device", 5.0, 7.0, 2 * MIB, "live"),
            row("host_pinned", 6.0, 7.0, 3 * MIB, "live"),
        ];
        assert_eq!(allocations.len(), expected.len());
        for (found, expected) in allocations.iter().zip(&expected) {
            assert_eq!((&found.0, found.3, &found.4), (&expected.0, expected.3, &expected.4));
            assert!(near(found.1, expected.1), "{found:?} {expected:?}");
            assert!(near(found.2, expected.2), "{found:?} {expected:?}");
        }
        let live: Vec<u64> = of(&rows, "counter", rank)
            .into_iter()
            .filter(|row| row["kind"] == "live")
            .map(|row| row["bytes"].parse::<u64>().unwrap() / MIB)
            .collect();
        assert_eq!(live, [4, 6, 38, 34, 36]);
        let refusals = of(&rows, "refusal", rank);
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0]["result"], "cap 2");
        assert_eq!(refusals[0]["api"], "cuMemAlloc_v2");
        assert_eq!(refusals[0]["cap_bytes"], (64 * MIB).to_string());
    }
}

#[test]
fn a_window_and_a_least_size_leave_out_the_rest() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    let wanted = ["--from", "2.55", "--to", "4.5", "--min-size", "1MiB", "--format", "csv"];
    let rows = rows(&exported(&scratch, &[&["rank0.vtrace"][..], &wanted].concat()));
    let sizes: Vec<u64> =
        of(&rows, "allocation", "0").iter().map(|row| row["bytes"].parse().unwrap()).collect();
    assert_eq!(sizes, [8 * MIB, 4 * MIB], "A and C were live in it, B is too small, D comes later");
    assert_eq!(of(&rows, "refusal", "0").len(), 1);
    let counters = of(&rows, "counter", "0");
    let first: Vec<_> = counters.iter().filter(|row| row["time_s"] == "2.550000000").collect();
    assert!(
        first.iter().any(|row| row["kind"] == "live" && row["bytes"] == (38 * MIB).to_string())
    );
    assert!(counters.iter().all(|row| row["time_s"].parse::<f64>().unwrap() >= 2.55));
}

#[test]
fn chrome_is_valid_json_whose_slices_pair() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    let json = exported(&scratch, &["rank0.vtrace", "rank1.vtrace", "--format", "chrome"]);
    let json: Value = serde_json::from_slice(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let mut open: HashMap<(u64, &str), f64> = HashMap::new();
    let mut closed_at: HashMap<(u64, &str), f64> = HashMap::new();
    let mut pairs = 0;
    for event in events {
        let phase = event["ph"].as_str().unwrap();
        if !matches!(phase, "b" | "e") {
            continue;
        }
        let id = (event["pid"].as_u64().unwrap(), event["id"].as_str().unwrap());
        let at = event["ts"].as_f64().unwrap();
        if phase == "b" {
            assert!(at >= closed_at.get(&id).copied().unwrap_or(0.0), "lanes do not overlap");
            assert!(open.insert(id, at).is_none(), "{id:?} begins twice");
            assert!(event["args"]["bytes"].as_u64().unwrap() > 0);
        } else {
            let began = open.remove(&id).expect("an end has its begin");
            assert!(at >= began);
            closed_at.insert(id, at);
            pairs += 1;
        }
    }
    assert!(open.is_empty(), "every begin has its end");
    assert_eq!(pairs, 10);
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert!(names[0].starts_with("rank 0: ") && names[1].starts_with("rank 1: "), "{names:?}");
    let pids: std::collections::HashSet<u64> =
        events.iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 2, "two hosts with one pid stay two processes");
    assert_eq!(events.iter().filter(|event| event["ph"] == "i").count(), 2);
    let late = events.iter().filter(|e| e["ph"] == "i").map(|e| e["ts"].as_f64().unwrap());
    assert_eq!(late.collect::<Vec<_>>(), [4e6, 14e6]);
}

/// Names of one sequence, as far as they were written.
#[derive(Default)]
struct Names(BTreeMap<u64, String>);

impl Names {
    fn learn(&mut self, names: &[InternedName]) {
        for name in names {
            let fresh = self.0.insert(name.iid.unwrap(), name.name.clone().unwrap());
            assert!(fresh.is_none(), "an id names one thing");
        }
    }
}

#[test]
fn perfetto_parses_back_and_its_slices_never_overlap_on_a_track() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    let bytes = exported(&scratch, &["rank0.vtrace", "rank1.vtrace", "--format", "perfetto"]);
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    let mut tracks: HashMap<u64, TrackDescriptor> = HashMap::new();
    let mut names: HashMap<u32, (Names, Names, Names)> = HashMap::new();
    let mut open: HashMap<u64, u64> = HashMap::new();
    let mut last_end: HashMap<u64, u64> = HashMap::new();
    let (mut slices, mut instants, mut counters) = (Vec::new(), 0, BTreeMap::new());
    for packet in &trace.packet {
        let sequence = packet.trusted_packet_sequence_id.unwrap();
        let first = !names.contains_key(&sequence);
        assert_eq!(packet.sequence_flags.unwrap() & 1 == 1, first, "state is cleared once");
        let known = names.entry(sequence).or_default();
        if let Some(new) = &packet.interned_data {
            known.0.learn(&new.event_categories);
            known.1.learn(&new.event_names);
            known.2.learn(&new.debug_annotation_names);
        }
        if let Some(track) = &packet.track_descriptor {
            assert!(track.parent_uuid.is_none_or(|parent| tracks.contains_key(&parent)));
            assert!(tracks.insert(track.uuid.unwrap(), track.clone()).is_none());
        }
        let Some(event) = &packet.track_event else { continue };
        let at = packet.timestamp.unwrap();
        let track = event.track_uuid.unwrap();
        assert!(tracks.contains_key(&track), "a track is described before it is used");
        assert!(event.category_iids.iter().all(|iid| known.0.0.contains_key(iid)));
        let annotations = event.debug_annotations.iter();
        let value = |wanted: &str| {
            annotations
                .clone()
                .find(|a| known.2.0[&a.name_iid.unwrap()] == wanted)
                .and_then(|a| a.value.clone())
        };
        match EventType::try_from(event.r#type.unwrap()).unwrap() {
            EventType::SliceBegin => {
                assert!(at >= last_end.get(&track).copied().unwrap_or(0));
                assert!(open.insert(track, at).is_none(), "one slice at a time on a track");
                let Some(AnnotationValue::Uint(bytes)) = value("bytes") else {
                    panic!("a slice has its size")
                };
                slices.push((known.1.0[&event.name_iid.unwrap()].clone(), at, bytes));
            }
            EventType::SliceEnd => {
                assert!(at >= open.remove(&track).expect("an end has its begin"));
                last_end.insert(track, at);
                assert!(value("lifetime_s").is_some());
            }
            EventType::Instant => instants += 1,
            EventType::Counter => {
                let name = tracks[&track].name.clone().unwrap();
                assert_eq!(tracks[&track].counter.as_ref().unwrap().unit, Some(3));
                let bytes = event.counter_value.unwrap() as u64 / MIB;
                counters.entry((sequence, name)).or_insert_with(Vec::new).push(bytes);
            }
            EventType::Unspecified => panic!("an event has a type"),
        }
    }
    assert!(open.is_empty());
    assert_eq!((slices.len(), instants), (10, 2));
    assert_eq!(slices[0], ("cuMemAlloc_v2 4.00 MiB".into(), SECOND, 4 * MIB));
    assert_eq!(slices[5], ("cuMemAlloc_v2 4.00 MiB".into(), 11 * SECOND, 4 * MIB));
    assert_eq!(counters[&(1, "GPU 0: live".into())], [4, 6, 38, 34, 36]);
    assert_eq!(counters[&(2, "GPU 0: pool".into())], [32]);
    let processes: Vec<_> = tracks.values().filter_map(|track| track.process.as_ref()).collect();
    assert_eq!(processes.len(), 2);
    assert!(processes[0].pid != processes[1].pid);
}

#[test]
fn an_existing_file_is_kept_unless_forced() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    let target = scratch.0.join("out.json");
    std::fs::write(&target, "mine").unwrap();
    let args = ["rank0.vtrace", "--format", "chrome", "-o", "out.json"];
    let refused = export(&scratch, &args);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    let forced = export(&scratch, &[&args[..], &["--force"]].concat());
    assert_eq!(forced.status.code(), Some(0));
    assert!(serde_json::from_slice::<Value>(&std::fs::read(&target).unwrap()).is_ok());
}

#[test]
fn bad_input_is_exit_2_and_leaves_nothing() {
    let scratch = Scratch::new();
    two_ranks(&scratch);
    std::fs::write(scratch.0.join("text.vtrace"), "no trace at all").unwrap();
    scratch.damaged_traces();
    for (args, says) in [
        (&["none.vtrace", "-o", "o"][..], "none.vtrace"),
        (&["text.vtrace", "-o", "o"], "text.vtrace"),
        (&["rank0.vtrace", "-o", "no/where"], "no/where"),
        (&["rank0.vtrace", "--from", "x", "-o", "o"], "12.5"),
        (&["rank0.vtrace", "--from", "3", "--to", "1", "-o", "o"], "--from"),
        (&["rank0.vtrace", "--min-size", "1X", "-o", "o"], "--min-size"),
        (&["rank0.vtrace", "--format", "xml", "-o", "o"], "perfetto"),
        (&["rank0.vtrace"], "--output"),
    ] {
        let output = export(&scratch, args);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {printed}");
        assert!(printed.contains(says), "{args:?}: {printed}");
    }
    let mut left: Vec<_> =
        std::fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["rank0.vtrace", "rank1.vtrace", "text.vtrace"]);
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    use std::io::Read;
    use std::process::Stdio;
    let scratch = Scratch::new();
    let mut many = TraceBuilder::new();
    for n in 1..20_000 {
        many.alloc(n * 1000, Kind::Device, 0x7f00_0000_0000 + n * (2 << 20), 2 * MIB);
    }
    many.write(&scratch.0.join("many.vtrace"));
    let mut child = vramtrace()
        .args(["export", "many.vtrace", "--format", "csv", "-o", "-"])
        .current_dir(&scratch.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 6];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"record");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

/// A recorded run of PyTorch, as `t.vtrace`.
fn recorded(scratch: &Scratch) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/roles/gpt2.vtrace.gz");
    let mut packed = flate2::read::GzDecoder::new(std::fs::File::open(data).unwrap());
    let mut file = std::fs::File::create(scratch.0.join("t.vtrace")).unwrap();
    std::io::copy(&mut packed, &mut file).unwrap();
}

#[test]
fn a_run_of_pytorch_has_few_tracks_and_slices_with_names() {
    let scratch = Scratch::new();
    recorded(&scratch);
    let bytes = exported(&scratch, &["t.vtrace", "--format", "perfetto"]);
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    let mut tracks: HashMap<u64, String> = HashMap::new();
    let mut names: HashMap<u64, String> = HashMap::new();
    let (mut lanes, mut counters, mut slices) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut small, mut by_role) = (0, 0);
    for packet in &trace.packet {
        if let Some(new) = &packet.interned_data {
            let all = new.event_names.iter();
            names.extend(all.map(|name| (name.iid.unwrap(), name.name.clone().unwrap())));
        }
        if let Some(track) = &packet.track_descriptor {
            tracks.insert(track.uuid.unwrap(), track.name.clone().unwrap_or_default());
        }
        let Some(event) = &packet.track_event else { continue };
        let track = event.track_uuid.unwrap();
        match EventType::try_from(event.r#type.unwrap()).unwrap() {
            EventType::SliceBegin => {
                let lane: &mut std::collections::BTreeSet<u64> =
                    lanes.entry(tracks[&track].clone()).or_default();
                lane.insert(track);
                slices.push(names[&event.name_iid.unwrap()].clone());
            }
            EventType::Counter => {
                counters.insert(tracks[&track].clone(), event.counter_value.unwrap());
                small += u32::from(tracks[&track].contains("small_blocks"));
                by_role += u32::from(tracks[&track] == "activations");
            }
            _ => {}
        }
    }
    let of_blocks = lanes.get("GPU 0 PyTorch blocks").unwrap();
    assert!((2..=64).contains(&of_blocks.len()), "{} lanes", of_blocks.len());
    assert!(lanes.values().all(|lanes| lanes.len() <= 64), "{lanes:?}");
    assert!(tracks.len() < 200, "{} tracks", tracks.len());
    assert!(small > 0 && by_role > 0, "{counters:?}");
    assert!(slices.iter().any(|name| name == "loss_utils.py:40 442.00 MiB"), "{slices:?}");
    assert!(slices.iter().all(|name| !name.starts_with("_Z")));
    assert_eq!(counters["weights"], 498_558_976);
    assert!(lanes.contains_key(lanes.keys().find(|name| name.starts_with("phases of")).unwrap()));
}

#[test]
fn chrome_stacks_roles_and_csv_has_lines_and_stacks() {
    let scratch = Scratch::new();
    recorded(&scratch);
    let json = exported(&scratch, &["t.vtrace", "--format", "chrome"]);
    let json: Value = serde_json::from_slice(&json).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let roles: Vec<&Value> =
        events.iter().filter(|event| event["name"] == "GPU 0 by role").collect();
    let most = roles.iter().map(|event| event["args"]["activations"].as_u64().unwrap()).max();
    assert!(most.unwrap() > 3_000_000_000, "{most:?}");
    let ids: std::collections::HashSet<&str> =
        events.iter().filter_map(|event| event["id"].as_str()).collect();
    assert!(ids.len() <= 2 * 64 + 16, "{} lanes", ids.len());
    let rows = rows(&exported(&scratch, &["t.vtrace", "--format", "csv"]));
    let blocks: Vec<_> = rows.iter().filter(|row| row["kind"] == "block").collect();
    assert!(blocks.len() > 1000, "every block has a row: {}", blocks.len());
    let loss = blocks.iter().find(|row| row["line"] == "loss_utils.py:40").unwrap();
    assert_eq!(loss["role"], "activations");
    assert!(loss["stack"].starts_with("<module> (roles_truth.py:65);step"), "{}", loss["stack"]);
}
