//! `vramtrace export`: each format is read back with a parser of its own kind, and holds what the
//! traces hold.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use serde_json::Value;
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached};
use testkit::{Scratch, vramtrace};
use vramtrace_format::{Definition, Event, Kind, PoolId, RefusedBy, Space, ThreadId};
use vramtrace_reader::export::perfetto::proto::{
    AnnotationValue, EventType, InternedName, ProcessDescriptor, Trace, TrackDescriptor,
};

const MIB: u64 = 1 << 20;
/// A: 4 MiB from 1 s to 3 s. B: 1 KiB from 2 s on. C: a pool block of 8 MiB from 2.5 s to 2.6 s.
/// A refusal at 4 s. D: 2 MiB at 5 s, at the address of A. Pinned host memory at 6 s.
fn of_rank(rank: u32) -> TraceBuilder {
    let mut t = TraceBuilder::new().rank(rank, 2);
    let name = "main, \"quoted\"".into();
    t.define(Definition::Thread { id: ThreadId(1), tid: 4711, name });
    t.alloc(SECOND, Kind::Device, 0x7f00_0000_0000, 4 * MIB);
    t.alloc(2 * SECOND, Kind::Device, 0x7f00_0100_0000, 1024);
    let pool = Event::PoolState { pool: PoolId(1), reserved: 32 * MIB, used: 8 * MIB };
    t.event(2500 * MS, pool);
    t.alloc(2500 * MS, Kind::Pool, 0x7f00_0200_0000, 8 * MIB);
    t.free(2600 * MS, Space::Device, 0x7f00_0200_0000);
    t.free(3 * SECOND, Space::Device, 0x7f00_0000_0000);
    t.refused(4 * SECOND, Kind::Device, 99 * MIB, RefusedBy::Cap, 64 * MIB);
    t.alloc(5 * SECOND, Kind::Device, 0x7f00_0000_0000, 2 * MIB);
    t.alloc(6 * SECOND, Kind::HostPinned, 0x5555_0000, 3 * MIB);
    t.event(7 * SECOND, Event::Ended);
    t
}

/// Two ranks on two hosts with the same pid; the second starts 10 s later.
fn two_ranks() -> Scratch {
    let scratch = Scratch::new();
    for rank in [0, 1] {
        let mut t = of_rank(rank);
        t.header.pid = 42;
        t.header.host = format!("node{rank}");
        t.header.start_unix_ns += u64::from(rank) * 10 * SECOND;
        t.header.command = vec!["train, \"it\"".into()];
        t.write(&scratch.0.join(format!("rank{rank}.vtrace")));
    }
    scratch
}

#[track_caller]
fn exported(scratch: &Scratch, words: &str) -> Vec<u8> {
    let output = scratch.run(&format!("export {words} -o -"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn rows(csv: &[u8]) -> Vec<HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(csv);
    reader.deserialize().map(Result::unwrap).collect()
}

/// Every allocation, counter and refusal; a window leaves out the rest: A, B and C were live in it, and D comes
/// later.
#[test]
fn csv_has_every_allocation_counter_and_refusal() {
    two_ranks().prints(
        "csv",
        &[
            "export rank0.vtrace rank1.vtrace --format csv -o -",
            "export rank0.vtrace --from 2.55 --to 4.5 --format csv -o -",
        ],
    );
}

/// Async events of one id never overlap: a block has not the id of its segment.
#[test]
fn chrome_is_valid_json_whose_slices_pair() {
    for (scratch, traces, wanted) in
        [(two_ranks(), "rank0.vtrace rank1.vtrace", 10), (Scratch::with(&cached()), "t.vtrace", 24)]
    {
        let json = exported(&scratch, &format!("{traces} --format chrome"));
        let json: Value = serde_json::from_slice(&json).unwrap();
        let (mut open, mut ended, mut pairs) = (HashMap::new(), HashMap::new(), 0);
        for event in json["traceEvents"].as_array().unwrap() {
            let id = (event["pid"].as_u64(), event["id"].as_str());
            let at = event["ts"].as_f64().unwrap();
            if event["ph"] == "b" {
                assert!(at >= ended.get(&id).copied().unwrap_or(0.0), "lanes do not overlap");
                assert!(open.insert(id, at).is_none(), "{id:?} begins twice");
                assert!(event["args"]["bytes"].as_u64().unwrap() > 0);
            } else if event["ph"] == "e" {
                assert!(at >= open.remove(&id).expect("an end has its begin"));
                ended.insert(id, at);
                pairs += 1;
            }
        }
        assert!(open.is_empty() && pairs == wanted, "{pairs}");
    }
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
    let scratch = two_ranks();
    let bytes = exported(&scratch, "rank0.vtrace rank1.vtrace --format perfetto");
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    let mut tracks: HashMap<u64, TrackDescriptor> = HashMap::new();
    let mut names: HashMap<u32, (Names, Names, Names)> = HashMap::new();
    let mut open: HashMap<u64, u64> = HashMap::new();
    let mut last_end: HashMap<u64, u64> = HashMap::new();
    let (mut slices, mut instants, mut counters) = (Vec::new(), Vec::new(), BTreeMap::new());
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
            EventType::Instant => instants.push(at),
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
    assert_eq!((slices.len(), instants), (10, vec![4 * SECOND, 14 * SECOND]));
    assert_eq!(slices[0], ("cuMemAlloc_v2 4.00 MiB".into(), SECOND, 4 * MIB));
    assert_eq!(slices[5], ("cuMemAlloc_v2 4.00 MiB".into(), 11 * SECOND, 4 * MIB));
    assert_eq!(counters[&(1, "GPU 0: live".into())], [4, 6, 38, 34, 36]);
    assert_eq!(counters[&(2, "GPU 0: pool".into())], [32]);
    let processes: Vec<_> = tracks.values().filter_map(|track| track.process.as_ref()).collect();
    assert_eq!(processes.len(), 2);
    assert!(processes[0].pid != processes[1].pid, "two hosts with one pid stay two processes");
    let named = |of: &&ProcessDescriptor| of.process_name.clone().unwrap();
    let names: Vec<String> = processes.iter().map(named).collect();
    for rank in ["rank 0: ", "rank 1: "] {
        assert!(names.iter().any(|name| name.starts_with(rank)), "{names:?}");
    }
}

#[test]
fn an_existing_file_is_kept_unless_forced() {
    let scratch = two_ranks();
    let target = scratch.0.join("out.csv");
    std::fs::write(&target, "mine").unwrap();
    let line = "export rank0.vtrace --format csv -o out.csv";
    scratch.fails(2, line, "--force");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    scratch.text(&format!("{line} --force"));
    assert!(std::fs::read(&target).unwrap().starts_with(b"record,"));
}

#[test]
fn bad_input_is_exit_2_and_leaves_nothing() {
    let scratch = two_ranks();
    std::fs::write(scratch.0.join("text.vtrace"), "no trace at all").unwrap();
    scratch.damaged_traces();
    for (words, says) in [
        ("none.vtrace -o o", "none.vtrace"),
        ("text.vtrace -o o", "text.vtrace"),
        ("rank0.vtrace -o no/where", "no/where"),
        ("rank0.vtrace --from x -o o", "--from"),
        ("rank0.vtrace --from 3 --to 1 -o o", "--from"),
        ("rank0.vtrace --format xml -o o", "perfetto"),
        ("rank0.vtrace", "--output"),
    ] {
        scratch.fails(2, &format!("export {words}"), says);
    }
    let left = std::fs::read_dir(&scratch.0).unwrap();
    assert_eq!(left.count(), 3);
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    use std::io::Read;
    use std::process::Stdio;
    let mut t = TraceBuilder::new();
    for n in 1..20_000 {
        t.alloc(n * 1000, Kind::Device, 0x7f00_0000_0000 + n * (2 << 20), 2 * MIB);
    }
    let scratch = Scratch::with(&t);
    let mut child = vramtrace()
        .args(["export", "t.vtrace", "--format", "csv", "-o", "-"])
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

/// A recorded run of PyTorch.
const PYTORCH: &str = "tests/data/roles/gpt2.vtrace.gz";

#[test]
fn a_run_of_pytorch_has_few_tracks_and_slices_with_names() {
    let scratch = Scratch::recorded(PYTORCH);
    let bytes = exported(&scratch, "t.vtrace --format perfetto");
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    let mut tracks: HashMap<u64, String> = HashMap::new();
    let mut names: HashMap<u64, String> = HashMap::new();
    let (mut lanes, mut counters, mut slices) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut small, mut activations) = (0, 0);
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
                if tracks[&track] == "activations" {
                    activations = event.counter_value.unwrap().max(activations);
                }
            }
            _ => {}
        }
    }
    let of_blocks = lanes.get("GPU 0 PyTorch blocks").unwrap();
    assert!((2..=64).contains(&of_blocks.len()), "{} lanes", of_blocks.len());
    assert!(lanes.values().all(|lanes| lanes.len() <= 64), "{lanes:?}");
    assert!(tracks.len() < 200, "{} tracks", tracks.len());
    assert!(small > 0 && activations > 3_000_000_000, "{counters:?}");
    assert!(slices.iter().any(|name| name == "loss_utils.py:40 442.00 MiB"), "{slices:?}");
    assert!(slices.iter().all(|name| !name.starts_with("_Z")));
    assert_eq!(counters["weights"], 498_558_976);
    assert!(lanes.contains_key(lanes.keys().find(|name| name.starts_with("phases of")).unwrap()));
}

#[test]
fn csv_has_roles_lines_and_stacks() {
    let scratch = Scratch::recorded(PYTORCH);
    let rows = rows(&exported(&scratch, "t.vtrace --format csv"));
    let blocks: Vec<_> = rows.iter().filter(|row| row["kind"] == "block").collect();
    assert!(blocks.len() > 1000, "every block has a row: {}", blocks.len());
    let loss = blocks.iter().find(|row| row["line"] == "loss_utils.py:40").unwrap();
    assert_eq!(loss["role"], "activations");
    assert!(loss["stack"].starts_with("<module> (roles_truth.py:65);step"), "{}", loss["stack"]);
}
