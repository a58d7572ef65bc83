//! `vramtrace export --format torch-snapshot`: PyTorch's viewers take what we write. Python's own
//! pickle module and the viewers' rules judge it: tests/python/torch_snapshot.py.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Program, Said, Scratch, Setup, has, repository};
use vramtrace_format::{
    Alloc, BlockChange, Definition, DeviceId, Event, Kind, Listed, Purpose, Space, StackId,
};

fn data(name: &str) -> PathBuf {
    repository().join("tests/data").join(name)
}

fn judge(what: &str, files: &[&Path]) -> String {
    let script = repository().join("tests/python/torch_snapshot.py");
    Said::by(Command::new("python3").arg(script).arg(what).args(files)).ended(0).out
}

/// The snapshot of a trace, which follows all rules.
fn export(trace: &Path) -> PathBuf {
    let pickle = trace.with_extension("pickle");
    let (to, from) = (pickle.display(), trace.display());
    Scratch::new().text(&format!("export --format torch-snapshot -o {to} {from}"));
    judge("opcodes", &[&pickle]);
    judge("rules", &[&pickle]);
    if let Some(viz) = std::env::var_os("VRAMTRACE_TEST_MEMORY_VIZ") {
        judge("viewer", &[&pickle, Path::new(&viz)]);
    }
    pickle
}

fn facts(pickle: &Path) -> Value {
    serde_json::from_str(&judge("facts", &[pickle])).unwrap()
}

/// The facts of the snapshot of a trace that is made.
fn facts_of(trace: &TraceBuilder) -> Value {
    let scratch = Scratch::with(trace);
    // Some of their blocks lie in no memory.
    scratch.contradicts();
    facts(&export(&scratch.0.join("t.vtrace")))
}

fn import(scratch: &Scratch, file: &Path) -> PathBuf {
    scratch.text(&format!("import {} -o imported.vtrace --force", file.display()));
    scratch.0.join("imported.vtrace")
}

#[test]
fn a_snapshot_that_was_imported_comes_out_as_it_went_in() {
    let scratch = Scratch::new();
    let before = data("torch_snapshot_2.11.pickle.gz");
    let pickle = export(&import(&scratch, &before));
    judge("same", &[&before, &pickle]);
    // And once more: nothing is lost on the way.
    let first = pickle.with_file_name("first.pickle");
    std::fs::rename(&pickle, &first).unwrap();
    judge("same", &[&first, &export(&import(&scratch, &first))]);
}

#[test]
fn a_snapshot_of_a_training_run_has_every_block() {
    let scratch = Scratch::new();
    let facts = facts(&export(&import(&scratch, &data("varlen_s1.csv.gz"))));
    let expected = json!({
        "alloc": 41_169, "free_requested": 40_722, "free_completed": 40_722, "segment_alloc": 219
    });
    assert_eq!(facts["actions"], expected);
}

#[test]
fn driver_memory_without_torch_is_in_the_snapshot() {
    let setup = Setup::simulated().preload();
    for (name, setup) in [
        ("families", setup.clone()),
        ("vmm", setup.clone().arg("nccl")),
        ("vmm", setup.arg("ranges")),
    ] {
        let run = Program::c(name).run(setup).ok();
        let pickle = export(&run.only_trace());
        let facts = facts(&pickle);
        assert!(facts["actions"]["segment_alloc"].as_u64() > Some(0), "{name}: {facts}");
        assert_eq!(facts["actions"]["segment_map"], Value::Null, "{name}: not PyTorch's");
        let metadata = facts["metadata"].to_string();
        assert!(metadata.contains("library: "), "{name}: {metadata}");
    }
}

/// A block of PyTorch's, of this stack.
fn block(t: &mut TraceBuilder, at: u64, key: u64, size: u64, stack: u32) {
    let site = t.site(Kind::Block, 0);
    let alloc =
        Alloc { key, space: Space::Block, size, site, stack: StackId(stack), requested: None };
    t.event(at, Event::Alloc(alloc));
}

fn vmm(t: &mut TraceBuilder, at: u64, object: u64, address: u64, size: u64) {
    t.alloc_by(at, Kind::Vmm, object, size, 1);
    t.event(
        at,
        Event::Map {
            address,
            size,
            offset: 0,
            object,
            owner: StackId(0),
            stack: Default::default(),
        },
    );
}

/// PyTorch with a segment, with pages, and waiting; NCCL beside it.
fn mixed() -> TraceBuilder {
    let mut t = testkit::trace_builder::training();
    let (segment, pages) = (100 << 30, 200 << 30);
    t.alloc_by(10 * SECOND, Kind::Device, segment, 20 * MIB, 1);
    block(&mut t, 10 * SECOND, segment, 4 * MIB, 2);
    let change = BlockChange::Requested(4 * MIB - 100);
    t.event(10 * SECOND, Event::BlockChange { address: segment, change });
    block(&mut t, 11 * SECOND, segment + 8 * MIB, MIB, 1);
    for page in 0..3 {
        vmm(&mut t, 12 * SECOND, 50 + page, pages + page * 20 * MIB, 20 * MIB);
    }
    // Across two pages.
    block(&mut t, 12 * SECOND, pages + 10 * MIB, 25 * MIB, 2);
    t.free(13 * SECOND, Space::Block, segment + 8 * MIB);
    let change = BlockChange::Pending;
    t.event(13 * SECOND, Event::BlockChange { address: segment + 8 * MIB, change });
    // The same place again, for another.
    block(&mut t, 13 * SECOND, segment + 16 * MIB, MIB, 2);
    t.free(14 * SECOND, Space::Block, segment + 16 * MIB);
    block(&mut t, 14 * SECOND, segment + 16 * MIB, 2 * MIB, 2);
    // A page goes with a block in it that nobody freed.
    block(&mut t, 15 * SECOND, pages + 45 * MIB, MIB, 2);
    let (address, stack) = (pages + 40 * MIB, Default::default());
    t.event(16 * SECOND, Event::Unmap { address, size: 20 * MIB, stack });
    t.free(16 * SECOND, Space::Vmm, 52);
    // In no memory that is known; over another; in memory that somebody else uses whole.
    block(&mut t, 17 * SECOND, 900 << 30, MIB, 2);
    block(&mut t, 18 * SECOND, segment + 17 * MIB, 2 * MIB, 2);
    let (device, stack) = (DeviceId(0), StackId(2));
    let failed = Event::CacheOom { device, size: 5 << 30, allocated: 1, reserved: 2, stack };
    t.event(19 * SECOND, failed);
    t
}

#[test]
fn segments_pages_waiting_blocks_and_other_libraries_are_in_the_snapshot() {
    let facts = facts_of(&mixed());
    let actions = &facts["actions"];
    has(actions, json!({ "segment_map": 3, "segment_unmap": 1, "oom": 1 }));
    // Five of others and one of PyTorch's own; the objects that were never mapped are not there.
    assert_eq!(actions["segment_alloc"], 6);
    assert_eq!(facts["metadata"], json!(["", "library: PyTorch", "library: cuBLAS"]));
    let pages = facts["segments"].as_array().unwrap().iter().find(|s| s[4] == true).unwrap();
    assert_eq!((&pages[2], &pages[3]), (&json!(40 * MIB), &json!(25 * MIB)));
    let states = facts["states"].as_array().unwrap();
    let waiting: Vec<_> = states.iter().filter(|s| s[0] == "active_pending_free").collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0][1], MIB);
    let named = json!(["Linear.forward", "GPT2Attention._attn", "train", "<module>"]);
    let blocks: Vec<_> = states.iter().filter(|s| s[1] == 4 * MIB && s[0] != "inactive").collect();
    let frames: Vec<String> = blocks
        .iter()
        .map(|block| block[2].as_array().unwrap().iter().rev().take(4).rev().cloned().collect())
        .map(|frames: Vec<Value>| Value::from(frames).to_string())
        .collect();
    assert!(frames.contains(&named.to_string()), "{frames:?}");
}

#[test]
fn a_trace_that_lost_its_beginning_starts_from_its_checkpoint() {
    let mut t = TraceBuilder::new();
    let (device, vmm_site, of_block) =
        (t.site(Kind::Device, 0), t.site(Kind::Vmm, 0), t.site(Kind::Block, 0));
    let alloc = |key, space, size, site| {
        let stack = StackId(0);
        Alloc { key, space, size, site, stack, requested: None }
    };
    let (segment, page) = (100 << 30, 200 << 30);
    t.event(SECOND, Event::Alloc(alloc(segment, Space::Device, 20 * MIB, device)));
    t.lose();
    let at = 100 * SECOND;
    // Goes on before the checkpoint is complete: a free of what is not known yet.
    t.event(at, Event::StateBegin { id: 1, what: Purpose::Checkpoint, cache_ooms: 0 });
    let listed = |alloc| Event::StateEvent(Listed::new(1, SECOND, &Event::Alloc(alloc)));
    // Blocks before the memory that they lie in.
    t.event(at, listed(alloc(segment, Space::Block, MIB, of_block)));
    t.event(at, listed(alloc(page + MIB, Space::Block, MIB, of_block)));
    t.event(at, Event::Alloc(alloc(segment + 3 * MIB, Space::Block, MIB, of_block)));
    let (owner, stack) = Default::default();
    let (size, offset, object) = (20 * MIB, 0, 9);
    let map = Event::Map { address: page, size, offset, object, owner, stack };
    t.event(at, Event::StateEvent(Listed::new(1, 0, &map)));
    t.event(at, listed(alloc(segment, Space::Device, 20 * MIB, device)));
    t.event(at, listed(alloc(9, Space::Vmm, 20 * MIB, vmm_site)));
    t.event(at, Event::StateEnd { id: 1, cut: false });
    block(&mut t, at + SECOND, segment + 8 * MIB, MIB, 0);
    t.free(at + 2 * SECOND, Space::Block, segment);
    t.event(at + 3 * SECOND, Event::Ended);
    let facts = facts_of(&t);
    assert_eq!(facts["actions"], json!({"alloc": 1, "free_requested": 1, "free_completed": 1}));
    let segments = facts["segments"].as_array().unwrap().iter();
    let sizes = segments.map(|segment| segment[3].as_u64().unwrap() / MIB);
    assert_eq!(sizes.collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_snapshot_has_each_device_and_of_an_empty_trace_no_segment() {
    let mut t = TraceBuilder::new();
    t.alloc_on(SECOND, Kind::Device, 1, 5 << 30, 64 * MIB);
    let two = facts_of(&t);
    assert_eq!((&two["devices"], &two["segments"][0][0]), (&json!(2), &json!(1)));
    has(&facts_of(&TraceBuilder::new()), json!({ "devices": 1, "segments": [] }));
}

#[test]
fn options_that_a_snapshot_has_not_are_refused() {
    let scratch = Scratch::new();
    scratch.contradicts();
    let (one, two) = (scratch.0.join("one.vtrace"), scratch.0.join("two.vtrace"));
    mixed().write(&one);
    let mut other = mixed();
    other.define(Definition::Note { text: "another".into() });
    other.header.pid += 1;
    other.header.uuid[0] += 1;
    other.write(&two);
    let line = "export --format torch-snapshot one.vtrace";
    for (more, part) in [
        ("two.vtrace", "a snapshot is of one process: give one"),
        ("--at peak", "not for torch-snapshot"),
        ("-o two.vtrace", "two.vtrace exists"),
    ] {
        scratch.fails(2, &format!("{line} {more}"), part);
    }
    scratch.text(line);
    let written = std::fs::read(scratch.0.join("snapshot.pickle")).unwrap();
    assert_eq!(scratch.run(&format!("{line} -o -")).stdout, written, "stdout gets the same");
    scratch.fails(2, line, "snapshot.pickle");
}

#[test]
#[ignore = "needs torch's own viewer: tests/systems/test-clients.sh"]
fn the_viewer_of_torch_takes_every_snapshot() {
    assert!(
        std::env::var_os("VRAMTRACE_TEST_MEMORY_VIZ").is_some(),
        "VRAMTRACE_TEST_MEMORY_VIZ is not set (tests/systems/test-clients.sh sets it)"
    );
    a_snapshot_that_was_imported_comes_out_as_it_went_in();
    a_snapshot_of_a_training_run_has_every_block();
    segments_pages_waiting_blocks_and_other_libraries_are_in_the_snapshot();
    a_trace_that_lost_its_beginning_starts_from_its_checkpoint();
    a_snapshot_has_each_device_and_of_an_empty_trace_no_segment();
    driver_memory_without_torch_is_in_the_snapshot();
}
