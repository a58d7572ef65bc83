//! Files of each form become traces that tell the same.

use std::io::Read;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;
use vramtrace_format::{BlockChange, DeviceId, Event, Kind, Space, StackId, TraceReader};

use super::*;
use crate::symbols::Language::{Native, Python};
use crate::symbols::Symbols;
use crate::trace::Definitions;

fn data(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// The trace's bytes, and what was written.
fn converted(history: &History, path: &str) -> (Vec<u8>, Converted) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let converted = convert(history, Path::new(path), file.reopen().unwrap()).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    (bytes, converted)
}

fn events(bytes: &[u8]) -> Vec<(u64, Event)> {
    let reader = TraceReader::new(bytes).unwrap();
    let mut events = reader.events();
    let all = events.by_ref().map(|at| (at.time_ns, at.event)).collect();
    assert!(events.damage().is_empty());
    all
}

fn definitions(reader: &TraceReader) -> Definitions {
    let mut all = Definitions::default();
    reader.definitions().for_each(|definition| all.add(definition));
    all
}

#[test]
fn the_csv_of_a_training_run() {
    let history = &read(&data("varlen_s1.csv.gz")).unwrap()[0];
    let (bytes, converted) = converted(history, "varlen_s1.csv.gz");
    assert_eq!(
        (converted.segments, converted.blocks, converted.before, converted.contradictions),
        (219, 41_169, 0, 0)
    );
    let events = events(&bytes);
    // What torch reported at its peak, and at the end of the run: to the byte, so each block's size is.
    let state = |(_, event): &(u64, Event)| match *event {
        Event::CacheState { device, allocated, reserved } => Some((device, allocated, reserved)),
        _ => None,
    };
    let (device, allocated, reserved) = events.iter().rev().find_map(state).unwrap();
    assert_eq!((device, reserved), (DeviceId(0), 27_426_553_856));
    let (mut live, mut peak) = (std::collections::HashMap::new(), 0);
    let mut sum = 0;
    for (_, event) in &events {
        match event {
            Event::Alloc(alloc) if alloc.space == Space::Block => {
                assert_eq!(live.insert(alloc.key, alloc.size), None);
                sum += alloc.size;
                peak = peak.max(sum);
            }
            Event::Free { key, space: Space::Block, .. } => sum -= live.remove(key).unwrap(),
            _ => {}
        }
    }
    assert_eq!(peak, 14_359_854_592, "torch's own peak");
    assert_eq!(sum, allocated);
}

#[test]
fn a_snapshot_with_streams_stacks_and_a_failure() {
    let history = &read(&data("torch_snapshot_2.11.pickle.gz")).unwrap()[0];
    assert_eq!(history.conf.as_deref(), Some(""));
    let (bytes, converted) = converted(history, "snapshot.pickle.gz");
    assert_eq!(
        (converted.segments, converted.blocks, converted.before, converted.contradictions),
        (11, 154, 0, 0)
    );
    let events = events(&bytes);
    let oom = |(time, event): &(u64, Event)| match event {
        Event::CacheOom { size, stack, .. } => Some((*time, *size, *stack)),
        _ => None,
    };
    let (time, size, stack) = events.iter().find_map(oom).unwrap();
    assert_eq!((time, size), (5_318_750_000 & !63, 1 << 50));
    let reader = TraceReader::new(&bytes).unwrap();
    assert_eq!(reader.header().start_unix_ns, 1_795_227_694_063_033_000);
    let definitions = definitions(&reader);
    let symbols = Symbols::of_all(&definitions, reader.header());
    let frame = symbols.stack(stack).next().unwrap();
    assert_eq!((&*frame.function, frame.line), ("<module>", Some(10)));
    let blocks = definitions.sites().filter(|site| site.kind == Some(Kind::Block));
    let streams: std::collections::BTreeSet<u64> = blocks.map(|site| site.stream).collect();
    assert_eq!(streams.len(), 2);
    let requested = events.iter().any(|(_, event)| {
        matches!(event, Event::BlockChange { change: BlockChange::Requested(1_200_000), .. })
    });
    assert!(requested);
}

const MIB: u64 = 1 << 20;

fn text(snapshot: serde_json::Value) -> Vec<u8> {
    snapshot.to_string().into_bytes()
}

#[test]
fn torch_2_0_had_fewer_keys() {
    let snapshot = text(json!({
        "segments": [{
            "device": 0, "address": 16 * MIB, "total_size": 2 * MIB, "stream": 0,
            "allocated_size": 1024, "segment_type": "small",
            "blocks": [
                {"size": 512, "state": "inactive"},
                {"size": 1024, "state": "active_allocated", "history": [
                    {"addr": 16 * MIB + 512, "real_size": 900, "frames": [
                        {"name": "f", "filename": "/t.py", "line": 3}
                    ]}
                ]},
                {"size": 2 * MIB - 1536, "state": "inactive"},
            ],
        }],
        "device_traces": [[]],
    }));
    let history = parse(&snapshot).unwrap();
    assert!(!history.has_times && history.conf.is_none());
    let block = history.devices[0].segments[0].blocks[0];
    assert_eq!((block.address, block.size, block.requested), (16 * MIB + 512, 1024, 900));
    assert_eq!(&*history.stacks.frames()[0].file, "/t.py");
    let (bytes, converted) = converted(&history, "old.pickle");
    assert_eq!((converted.segments, converted.blocks, converted.before), (1, 1, 2));
    assert!(!events(&bytes).is_empty());
    // The segments alone are a dump too.
    let alone = text(json!([{
        "device": 1, "address": MIB, "total_size": MIB, "stream": 0, "blocks": []
    }]));
    assert_eq!(parse(&alone).unwrap().devices[0].ordinal, 1);
}

/// The pool of an entry is that of the segment that is there at the end; equal times, and those that are too late, are none.
#[test]
fn entries_without_a_pool_or_times() {
    let entry = |action: &str, time: u64| json!({"action": action, "addr": MIB, "size": MIB, "time_us": time});
    for (last, timed) in [(1, false), (2, true), (u64::MAX >> 1, false)] {
        let mut entries: Vec<_> =
            ["segment_alloc", "segment_free", "segment_alloc"].map(|it| entry(it, 1)).into();
        entries.push(entry("alloc", last));
        let history = parse(&text(json!({
            "segments": [{"device": 0, "address": MIB, "total_size": MIB, "segment_pool_id": [0, 1], "blocks": []}],
            "device_traces": [entries],
        })))
        .unwrap();
        let pools = history.devices[0].entries.iter().map(|entry| entry.pool);
        assert_eq!(
            (pools.collect::<Vec<_>>(), history.has_times),
            (vec![0, 0, 1, 0], timed),
            "{last}"
        );
    }
}

/// Cut at each byte, JSON and CSV have a prefix of what they had.
#[test]
fn text_that_was_cut_off_is_read_up_to_there() {
    let rows: Vec<_> = (1..9)
        .map(|n| json!({"action": "alloc", "addr": n * MIB, "size": 9, "user_metadata": "\\\"{"}))
        .collect();
    let events: Vec<_> = (1..9).map(|n| json!({"name": "[memory]", "ts": n, "args": {"Addr": n * MIB, "Bytes": 9, "Device Id": 0}})).collect();
    let csv = (1..9).map(|n| format!("alloc,{},9,0\n", n * MIB)).collect::<String>();
    for whole in [
        text(json!({"device_traces": [rows]})),
        text(json!({"traceEvents": events})),
        format!("action,addr,size,stream\n{csv}").into_bytes(),
    ] {
        let entries = |bytes: &[u8]| parse(bytes).map(|history| history.devices[0].entries.clone());
        let all = entries(&whole).unwrap();
        let mut longest = 0;
        for end in 0..whole.len() {
            let Ok(found) = entries(&whole[..end]) else { continue };
            assert!(found.len() >= longest && all.starts_with(&found), "{end}: {found:?}");
            longest = found.len();
        }
        assert!(longest >= 7, "{longest}");
    }
}

#[test]
fn expandable_segments_late_versions_and_waiting_blocks() {
    let entry = |action: &str, addr: u64, size: u64, time: u64| {
        json!({
            "action": action, "addr": addr, "size": size, "stream": 5, "time_us": time,
            "frames": [
                {"name": "at::empty", "filename": "/x/libtorch_cuda.so", "line": 0},
                {"name": "run", "filename": "/x/train.py", "line": 9},
                {"name": "main", "filename": "main.cpp", "line": 7},
            ],
            "pool_id": [0, 3], "user_metadata": "", "compile_context": "N/A",
        })
    };
    let base = 1024 * MIB;
    let snapshot = text(json!({
        "segments": [{
            "device": 1, "address": base, "total_size": 20 * MIB, "stream": 5,
            "segment_type": "large", "segment_pool_id": [0, 3], "is_expandable": true,
            "frames": [], "blocks": [
                {"address": base, "size": 3 * MIB, "requested_size": 3 * MIB - 5,
                 "state": "active_awaiting_free", "frames": []},
                {"address": base + 3 * MIB, "size": 17 * MIB, "requested_size": 0,
                 "state": "inactive", "frames": []},
            ],
        }],
        "device_traces": [[], [
            entry("segment_map", base, 40 * MIB, 100),
            entry("alloc", base, 3 * MIB - 5, 101),
            entry("alloc", base + 3 * MIB, 30 * MIB, 102),
            entry("free_requested", base + 3 * MIB, 30 * MIB, 103),
            entry("free_completed", base + 3 * MIB, 30 * MIB, 104),
            entry("annotate", 0, 0, 104),
            entry("segment_unmap", base + 20 * MIB, 20 * MIB, 105),
            entry("free_requested", base, 3 * MIB - 5, 106),
            entry("snapshot", 0, 5, 107),
        ]],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": true,
            "max_split_size": -1, "roundup_power2_divisions": {"1": 0, "2": 4},
        },
    }));
    let history = parse(&snapshot).unwrap();
    let conf = "expandable_segments:True,roundup_power2_divisions:[2:4]";
    assert_eq!(history.conf.as_deref(), Some(conf), "set in the program");
    let (bytes, converted) = converted(&history, "x.pickle");
    assert_eq!((converted.devices, converted.before, converted.contradictions), (1, 0, 0));
    let found: Vec<String> = events(&bytes)
        .iter()
        .map(|(time, event)| match event {
            Event::Alloc(alloc) => format!("{time} alloc {:?} {}", alloc.space, alloc.size / MIB),
            Event::Map { size, object, .. } => format!("{time} map {object} {}", size / MIB),
            Event::Unmap { size, .. } => format!("{time} unmap {}", size / MIB),
            Event::Free { space, .. } => format!("{time} free {space:?}"),
            Event::BlockChange { change, .. } => format!("{time} {change:?}"),
            Event::CacheState { allocated, reserved, .. } => {
                format!("{time} totals {} {}", allocated / MIB, reserved / MIB)
            }
            other => format!("{time} {other:?}"),
        })
        .collect();
    let time = |us: u64| (us * 1_000) & !63;
    let expected = [
        "0 totals 0 0".to_string(),
        "0 alloc Vmm 20".into(),
        "0 map 1 20".into(),
        "0 alloc Vmm 20".into(),
        "0 map 2 20".into(),
        format!("{} alloc Block 3", time(1)),
        format!("{} Requested({})", time(1), 3 * MIB - 5),
        format!("{} alloc Block 30", time(2)),
        format!("{} free Block", time(3)),
        format!("{} unmap 20", time(5)),
        format!("{} free Vmm", time(5)),
        format!("{} free Block", time(6)),
        format!("{} Pending", time(6)),
        format!("{} totals 0 20", time(6)),
        format!("{} Ended", time(6)),
    ];
    assert_eq!(found, expected);
    let reader = TraceReader::new(&bytes).unwrap();
    let definitions = definitions(&reader);
    let block = definitions.sites().find(|site| site.kind == Some(Kind::Block)).unwrap();
    assert_eq!(
        (block.device, block.stream, definitions.pool(block.pool).unwrap().handle),
        (DeviceId(1), 5, 3)
    );
    let symbols = Symbols::of_all(&definitions, reader.header());
    let stack = symbols.stack(StackId(1)).map(|frame| {
        (frame.language, frame.function.to_string(), frame.line, frame.library_name())
    });
    let expected = [
        (Native, "at::empty".to_string(), None, Some("libtorch_cuda.so")),
        (Python, "run".to_string(), Some(9), None),
        (Native, "main".to_string(), Some(7), None),
    ];
    assert_eq!(stack.collect::<Vec<_>>(), expected, "in their order, as they were named");
}

#[test]
fn wrong_files_are_reported_what_is_wrong() {
    let block = |size: i64| {
        text(json!({"segments": [{
            "device": 0, "address": 4096, "total_size": 4096, "stream": 0,
            "blocks": [{"size": size, "state": "active_allocated"}]
        }]}))
    };
    let entry = |entry: serde_json::Value| text(json!({"device_traces": [[entry]]}));
    for (bytes, part) in [
        (b"hello".to_vec(), "text of no known form, which is not read: give"),
        (
            b"index, memory.used [MiB]\n0, 5 MiB\n".to_vec(),
            "a table of nvidia-smi, with sums, which",
        ),
        (
            b"torch.OutOfMemoryError: CUDA out of memory.".to_vec(),
            "the messages of a program, which",
        ),
        (b"1,10:00:00.001,allocate,0x7f00,16,0x0".to_vec(), "a log of RMM without its first line"),
        (text(json!({"allocated_bytes.all.current": 1})), "sums of torch.cuda.memory_stats, which"),
        (b"action,addr,size,stream\n\xff".to_vec(), "not text"),
        (b"\x80\x02}.".to_vec(), "neither segments nor device_traces"),
        (b"\x80\x02].".to_vec(), "neither segments nor device_traces"),
        (text(json!({"segments": 5})), "segments is no list"),
        (
            text(json!([{"device": 999, "address": 0, "total_size": 1, "blocks": []}])),
            "segments[0]: the device",
        ),
        (text(json!({"segments": [{"device": 0}]})), "segments[0]: it has no address"),
        (block(8192), "segments[0].blocks[0] overlaps"),
        (block(-1), "segments[0].blocks[0]: its size"),
        (entry(json!({})), "device_traces[0][0]: it has no action"),
        (entry(json!({"action": "alloc"})), "device_traces[0][0]: it has no addr"),
        (
            entry(json!({"action": "alloc", "addr": 1i64 << 60, "size": 1})),
            "device_traces[0][0]: it ends behind",
        ),
    ] {
        let error = parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn lists_that_are_named_a_thousand_times_are_no_bomb() {
    // One entry, in a list that is in itself a hundred times, and so on: 10^8 entries if believed.
    let mut bytes = b"\x80\x02}(X\x0d\x00\x00\x00device_traces](".to_vec();
    bytes.extend(b"](}X\x06\x00\x00\x00actionX\x03\x00\x00\x00oomsq\x01");
    bytes.extend(b"h\x01".repeat(20_000));
    bytes.extend(b"eq\x02");
    bytes.extend(b"h\x02".repeat(200));
    bytes.extend(b"eu.");
    let error = parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("more than it can hold") || error.contains("size"), "{error}");
}

fn real() -> Vec<u8> {
    unpack(&std::fs::read(data("torch_snapshot_2.11.pickle.gz")).unwrap()).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    /// A real snapshot with bytes changed, or cut: an error or a trace, never a panic.
    #[test]
    fn damaged_snapshots_end_in_an_error_or_a_trace(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::weighted(0.2, any::<proptest::sample::Index>()),
    ) {
        let mut bytes = real();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(history) = parse(&bytes) {
            let (trace, _) = converted(&history, "x");
            events(&trace);
        }
    }

    /// Entries in any order at any place: what cannot be is left out.
    #[test]
    fn any_history_becomes_a_trace(
        entries in proptest::collection::vec((0..7usize, 0..40u64, 1..30u64, 0..2u64), 1..80),
        left in proptest::collection::vec((0..40u64, 1..9u64, any::<bool>()), 0..4),
    ) {
        use history::*;
        let actions = [
            Action::Alloc, Action::FreeRequested, Action::FreeCompleted, Action::SegmentAlloc,
            Action::SegmentFree, Action::SegmentMap, Action::SegmentUnmap,
        ];
        let entry = |(at, (action, place, size, stream)): (usize, (usize, u64, u64, u64))| HistoryEntry {
            action: actions[action],
            address: (place + 1) * MIB,
            size: size * MIB / 2,
            stream,
            pool: 0,
            time_ns: at as u64,
            stack: StackId(0),
        };
        let segment = |(place, size, expandable): (u64, u64, bool)| HistorySegment {
            address: (place + 1) * MIB,
            size: size * MIB,
            ground: Ground { expandable, ..Ground::default() },
            blocks: vec![HistoryBlock {
                address: (place + 1) * MIB,
                size: MIB,
                requested: 5,
                pending: expandable,
                stack: StackId(0),
            }],
        };
        let mut history = History::new(Form::Snapshot);
        history.devices.push(HistoryDevice {
            ordinal: 0,
            entries: entries.into_iter().enumerate().map(entry).collect(),
            segments: left.into_iter().map(segment).collect(),
        });
        let (bytes, _) = converted(&history, "x");
        // Blocks never overlap, and what is freed was there.
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, event) in events(&bytes) {
            match event {
                Event::Alloc(alloc) if alloc.space == Space::Block => {
                    let before = live.range(..alloc.key + alloc.size).next_back();
                    prop_assert!(before.is_none_or(|(at, size)| at + size <= alloc.key));
                    live.insert(alloc.key, alloc.size);
                }
                Event::Free { key, space: Space::Block, .. } => {
                    prop_assert!(live.remove(&key).is_some());
                }
                _ => {}
            }
        }
    }
}
