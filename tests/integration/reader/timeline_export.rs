//! `vramtrace export`: each format is read back with a parser of its own kind, and holds what the
//! traces hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message;
use testkit::trace_builder::{MS, SECOND, TraceBuilder};
use testkit::{MIB, Scratch};
use vramtrace_format::{Definition, Event, Kind, PoolId, RefusedBy, Space, ThreadId};
use vramtrace_reader::export::perfetto::proto::{
    AnnotationValue, EventType, InternedName, Trace, TrackDescriptor,
};

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

fn exported(scratch: &Scratch, words: &str) -> Vec<u8> {
    scratch.bytes(&format!("export {words} -o -"))
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

/// What a timeline shows, of which all that holds for every timeline is checked.
#[derive(Default)]
struct Shown {
    tracks: HashMap<u64, TrackDescriptor>,
    /// Track, name, time, bytes.
    slices: Vec<(u64, String, u64, u64)>,
    /// Slices whose end says how long they were.
    lifetimes: usize,
    instants: Vec<u64>,
    /// By sequence and track.
    counters: BTreeMap<(u32, String), Vec<i64>>,
}

impl Shown {
    fn of(bytes: &[u8]) -> Shown {
        let mut shown = Shown::default();
        let mut names: HashMap<u32, (Names, Names, Names)> = HashMap::new();
        let mut open: HashMap<u64, u64> = HashMap::new();
        let mut last_end: HashMap<u64, u64> = HashMap::new();
        for packet in Trace::decode(bytes).unwrap().packet {
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
                let is_known = |parent| shown.tracks.contains_key(&parent);
                assert!(track.parent_uuid.is_none_or(is_known));
                assert!(shown.tracks.insert(track.uuid.unwrap(), track.clone()).is_none());
            }
            let Some(event) = &packet.track_event else { continue };
            let at = packet.timestamp.unwrap();
            let track = event.track_uuid.unwrap();
            let descriptor = &shown.tracks[&track];
            assert!(event.category_iids.iter().all(|iid| known.0.0.contains_key(iid)));
            let value = |wanted: &str| {
                let mut annotations = event.debug_annotations.iter();
                let found = annotations.find(|a| known.2.0[&a.name_iid.unwrap()] == wanted);
                found.and_then(|a| a.value.clone())
            };
            match EventType::try_from(event.r#type.unwrap()).unwrap() {
                EventType::SliceBegin => {
                    assert!(at >= last_end.get(&track).copied().unwrap_or(0));
                    assert!(open.insert(track, at).is_none(), "one slice at a time on a track");
                    let bytes = match value("bytes") {
                        Some(AnnotationValue::Uint(bytes)) => bytes,
                        _ => 0,
                    };
                    let name = known.1.0[&event.name_iid.unwrap()].clone();
                    shown.slices.push((track, name, at, bytes));
                }
                EventType::SliceEnd => {
                    assert!(at >= open.remove(&track).expect("an end has its begin"));
                    last_end.insert(track, at);
                    shown.lifetimes += usize::from(value("lifetime_s").is_some());
                }
                EventType::Instant => shown.instants.push(at),
                EventType::Counter => {
                    assert_eq!(descriptor.counter.as_ref().unwrap().unit, Some(3));
                    let name = descriptor.name.clone().unwrap();
                    let values = shown.counters.entry((sequence, name)).or_default();
                    values.push(event.counter_value.unwrap());
                }
                EventType::Unspecified => panic!("an event has a type"),
            }
        }
        assert!(open.is_empty());
        shown
    }

    fn name(&self, track: u64) -> &str {
        self.tracks[&track].name.as_deref().unwrap_or_default()
    }
}

#[test]
fn perfetto_parses_back_and_its_slices_never_overlap_on_a_track() {
    let bytes = exported(&two_ranks(), "rank0.vtrace rank1.vtrace --format perfetto");
    let shown = Shown::of(&bytes);
    assert_eq!((shown.slices.len(), shown.instants.clone()), (10, vec![4 * SECOND, 14 * SECOND]));
    assert!(shown.slices.iter().all(|slice| slice.3 > 0), "a slice has its size");
    assert_eq!(shown.lifetimes, 10);
    let slice = |n: usize| (&*shown.slices[n].1, shown.slices[n].2, shown.slices[n].3);
    assert_eq!(slice(0), ("cuMemAlloc_v2 4.00 MiB", SECOND, 4 * MIB));
    assert_eq!(slice(5), ("cuMemAlloc_v2 4.00 MiB", 11 * SECOND, 4 * MIB));
    let mib = |n: &i64| *n as u64 / MIB;
    let counter = |sequence, name: &str| {
        shown.counters[&(sequence, name.to_string())].iter().map(mib).collect::<Vec<_>>()
    };
    assert_eq!(counter(1, "GPU 0: live"), [4, 6, 38, 34, 36]);
    assert_eq!(counter(2, "GPU 0: pool"), [32]);
    let processes = shown.tracks.values().filter_map(|track| track.process.as_ref());
    let processes: BTreeMap<_, _> = processes.map(|of| (of.pid, of.process_name())).collect();
    assert_eq!(processes.len(), 2, "two hosts with one pid stay two processes");
    for rank in ["rank 0: ", "rank 1: "] {
        assert!(processes.values().any(|name| name.starts_with(rank)), "{processes:?}");
    }
}

#[test]
fn bad_input_is_exit_2_and_leaves_nothing() {
    let scratch = two_ranks();
    scratch.write("text.vtrace", "no trace at all");
    scratch.write("out.csv", "mine");
    scratch.damaged_traces();
    for (words, says) in [
        ("none.vtrace -o o", "none.vtrace"),
        ("text.vtrace -o o", "text.vtrace"),
        ("rank0.vtrace -o no/where", "no/where"),
        ("rank0.vtrace --from x -o o", "--from"),
        ("rank0.vtrace --from 3 --to 1 -o o", "--from"),
        ("rank0.vtrace --format xml -o o", "perfetto"),
        ("rank0.vtrace", "--output"),
        ("rank0.vtrace --format csv -o out.csv", "--force"),
    ] {
        scratch.fails(2, &format!("export {words}"), says);
    }
    let left = std::fs::read_dir(&scratch.0).unwrap();
    assert_eq!(left.count(), 4);
    assert_eq!(std::fs::read(scratch.0.join("out.csv")).unwrap(), b"mine");
    scratch.text("export rank0.vtrace --format csv -o out.csv --force");
    assert!(std::fs::read(scratch.0.join("out.csv")).unwrap().starts_with(b"record,"));
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
    let mut export = scratch.command(&["export", "t.vtrace", "--format", "csv", "-o", "-"]);
    let mut child = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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
    let shown = Shown::of(&exported(&Scratch::recorded(PYTORCH), "t.vtrace --format perfetto"));
    let mut lanes: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for (track, name, ..) in &shown.slices {
        lanes.entry(shown.name(*track)).or_default().insert(*track);
        assert!(!name.starts_with("_Z"), "{name}");
    }
    assert!(lanes["GPU 0 PyTorch blocks"].len() >= 2);
    assert!(lanes.values().all(|lanes| lanes.len() <= 64), "{lanes:?}");
    assert!(lanes.keys().any(|name| name.starts_with("phases of")));
    assert!(shown.tracks.len() < 200, "{} tracks", shown.tracks.len());
    assert!(shown.slices.iter().any(|slice| slice.1 == "loss_utils.py:40 442.00 MiB"));
    let counters = || shown.counters.iter().map(|((_, name), values)| (&**name, values));
    assert!(counters().any(|(name, _)| name.contains("small_blocks")));
    let of = |wanted| counters().find(|(name, _)| *name == wanted).unwrap().1;
    assert!(*of("activations").iter().max().unwrap() > 3_000_000_000);
    assert_eq!(of("weights").last(), Some(&498_558_976));
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
