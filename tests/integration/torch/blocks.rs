//! PyTorch's blocks: its allocator's calls reach the recorder and PyTorch's own profiler, whatever
//! they say. Stand-ins of its libraries make them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup};
use vramtrace_format::{
    Alloc, Definition, DeviceId, Event, Kind, SiteId, Space, StackFlags, TraceReader,
};

fn setup(mode: &str) -> Setup {
    let library = libraries().join("libc10_cuda.so");
    // Its blocks overlap, or lie where no memory is, and its totals are made up.
    Setup::simulated().devices("2x24GiB").arg(library.display()).arg(mode).contradicts()
}

/// What a trace says of blocks, in order; and where its sites are.
#[derive(Default)]
struct Blocks {
    events: Vec<Event>,
    sites: HashMap<SiteId, (Option<Kind>, DeviceId, String)>,
    settings: Vec<(String, String)>,
}

fn read(trace: &Path) -> Blocks {
    let bytes = testkit::trace_bytes(trace);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut all = Blocks::default();
    let mut names = HashMap::new();
    for definition in reader.definitions() {
        match definition {
            Definition::Api { id, name } => drop(names.insert(id, name)),
            Definition::Site { id, api, kind, device, .. } => {
                all.sites.insert(id, (kind, device, names[&api].clone()));
            }
            Definition::Setting { name, value } => all.settings.push((name, value)),
            _ => {}
        }
    }
    for stamped in reader.events() {
        let wanted = match &stamped.event {
            Event::Alloc(alloc) => alloc.space == Space::Block,
            Event::Free { space, .. } => *space == Space::Block,
            Event::CheckpointAlloc { alloc, .. } => alloc.space == Space::Block,
            Event::CacheState { .. } | Event::CacheOom { .. } | Event::Shared { .. } => true,
            Event::Drift { .. } => panic!("{:?}", stamped.event),
            _ => false,
        };
        if wanted {
            all.events.push(stamped.event);
        }
    }
    all
}

impl Blocks {
    /// Replays it: address -> size of what is live at the end. Every figure that PyTorch gave must
    /// be the sum of what is live there.
    fn live(&self) -> HashMap<u64, (DeviceId, u64)> {
        let mut live = HashMap::new();
        for event in &self.events {
            match *event {
                Event::Alloc(Alloc { key, size, site, .. }) => {
                    let (kind, device, api) = &self.sites[&site];
                    assert_eq!(*kind, Some(Kind::Block));
                    assert_eq!(api, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
                    assert_eq!(live.insert(key, (*device, size)), None, "{key:#x} twice");
                }
                Event::Free { key, site, .. } => {
                    assert_eq!(site, SiteId(0));
                    assert!(live.remove(&key).is_some(), "{key:#x} is not there");
                }
                _ => {}
            }
        }
        live
    }
}

/// The same calls reach PyTorch's own functions with and without us.
#[track_caller]
fn chained(mode: &str, count: &str) -> Run {
    let program = Program::c("torch");
    let bare = program.run(setup(mode).arg(count)).ok();
    let ours = program.run(setup(mode).arg(count).preload()).ok();
    assert_eq!(bare.stdout, ours.stdout);
    // It may be out of memory, and get a message.
    let message = ours.stderr.lines().next();
    assert!(message.is_none_or(|line| line.contains("torch is out of memory:")), "{}", ours.stderr);
    ours
}

/// Address of the segment, sizes by offset in it.
fn in_segment(trace: &Path, live: &HashMap<u64, (DeviceId, u64)>) -> Vec<(u64, DeviceId, u64)> {
    let bytes = testkit::trace_bytes(trace);
    let segment =
        TraceReader::new(&bytes).unwrap().events().find_map(|stamped| match stamped.event {
            Event::Alloc(alloc) if alloc.size == 20 << 20 => Some(alloc.key),
            _ => None,
        });
    let mut all: Vec<_> =
        live.iter().map(|(key, (device, size))| (key - segment.unwrap(), *device, *size)).collect();
    all.sort();
    all
}

const MIB: u64 = 1 << 20;

#[test]
fn every_sort_of_block_is_recorded_and_handed_on() {
    let run = chained("blocks", "");
    assert!(run.stdout.contains("refused: 14 blocks 1 refusals"), "{}", run.stdout);
    let trace = run.only_trace();
    let blocks = read(&trace);
    let zero = DeviceId(0);
    let expected = [
        (0, zero, 2048),
        (512, zero, 1024),
        (3 * MIB, DeviceId::UNKNOWN, 512 * 33),
        (5 * MIB, zero, 512 * 6),
        (6 * MIB + 4, zero, 100),
        (8 * MIB, zero, 4096),
    ];
    assert_eq!(in_segment(&trace, &blocks.live()), expected);
    let states: Vec<_> =
        blocks.events.iter().filter(|event| matches!(event, Event::CacheState { .. })).collect();
    let first = Event::CacheState { device: zero, allocated: 512, reserved: 20 * MIB };
    assert_eq!(*states[0], first);
    let oom = blocks.events.iter().find_map(|event| match *event {
        Event::CacheOom { device, size, allocated, reserved, .. } => {
            Some((device, size, allocated, reserved))
        }
        _ => None,
    });
    let allocated = 2048 + 1024 + 512 * 11 + 100;
    assert_eq!(oom, Some((zero, 1 << 40, allocated, 20 * MIB)));
    // At the end each device's last word is written.
    let last = Event::CacheState { device: zero, allocated, reserved: 20 * MIB };
    assert!(states.contains(&&last), "{states:?}");
}

/// Plugins with the allocator inside or beside them are loaded at the addresses of others that were unloaded.
#[test]
fn calls_of_a_library_in_the_place_of_another_reach_their_own_functions() {
    let program = Program::c("torch");
    for (one, other, are_at_one_place) in [
        ("plugin-one.so", "plugin-other.so", true),
        ("libc10_cuda.so", "libc10_cuda-4711.so", false),
        ("plugin-one.so", "libc10_cuda.so", false),
    ] {
        let library = |name: &str| libraries().join(name).display().to_string();
        let setup = || {
            let setup = Setup::simulated().arg(library(one)).arg("turns").arg(60);
            setup.arg(library(other)).contradicts()
        };
        let bare = program.run(setup()).ok();
        assert!(!are_at_one_place || bare.stdout.contains("same place"), "{}", bare.stdout);
        for recording in ["full", "sampled"] {
            let setup = setup().preload().env("VRAMTRACE_OOM_REPORT", "off");
            let ours = program.run(setup.env("VRAMTRACE_RECORD", recording)).ok();
            assert_eq!((&*ours.stdout, &*ours.stderr), (&*bare.stdout, ""), "{one} {recording}");
        }
    }
}

#[test]
fn blocks_before_any_driver_call_open_no_trace() {
    let run = chained("first", "");
    assert_eq!(run.traces(), [] as [PathBuf; 0]);
}

#[test]
fn blocks_of_many_threads_are_recorded() {
    let run = chained("threads", "20000");
    let blocks = read(&run.only_trace());
    let live = blocks.live();
    assert_eq!(live.len(), 8);
    let count = |wanted: fn(&Event) -> bool| blocks.events.iter().filter(|e| wanted(e)).count();
    assert_eq!(count(|event| matches!(event, Event::Alloc(_))), 8 * 20_000);
    // What was made twice ended in between.
    assert_eq!(count(|event| matches!(event, Event::Free { .. })), 8 * 20_000 - 8);
}

#[test]
fn a_forked_child_knows_its_own_blocks_only() {
    let run = chained("fork", "");
    let traces = run.traces();
    assert_eq!(traces.len(), 2);
    let mut sizes: Vec<Vec<u64>> = traces
        .iter()
        .map(|trace| read(trace).live().values().map(|(_, size)| *size).collect())
        .map(|mut sizes: Vec<u64>| {
            sizes.sort();
            sizes
        })
        .collect();
    sizes.sort();
    assert_eq!(sizes, [vec![512, 2048], vec![1536]]);
}

#[test]
fn off_writes_none_and_hands_on_all() {
    let bare = Program::c("torch").run(setup("blocks")).ok();
    let off = setup("blocks").preload().env("VRAMTRACE_TENSORS", "off");
    let run = Program::c("torch").run(off).ok();
    assert_eq!(run.stdout, bare.stdout);
    assert!(read(&run.only_trace()).events.is_empty());
}

#[test]
fn a_panic_of_ours_hands_on_all() {
    let bare = Program::c("torch").run(setup("blocks")).ok();
    let name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
    let run = Program::c("torch").run(setup("blocks").preload().env("VRAMTRACE_TEST_PANIC", name));
    assert_eq!(run.stdout, bare.stdout);
    assert!(run.stderr.contains("internal error in"), "{}", run.stderr);
}

/// The kernel refuses memory for the tables, so that calls of the recorder's own fail.
#[test]
fn errno_stays() {
    let run = Program::c("torch").run(setup("errno").arg(10_000).preload());
    assert_eq!(run.stdout, "errno changed 0 times\n");
    assert!(run.stderr.contains("recording ends here"), "{}", run.stderr);
}

/// With a punched beginning, what is live comes from checkpoints.
#[test]
fn checkpoints_carry_blocks() {
    let program = Program::c("torch");
    let run = program.run(setup("churn").arg(300_000).preload().env("VRAMTRACE_MAX", "4MiB")).ok();
    assert_eq!(run.stderr, "");
    let trace = run.only_trace();
    assert!(std::fs::metadata(&trace).unwrap().blocks() * 512 <= 4 * MIB * 11 / 10);
    let blocks = read(&trace);
    let starts = |event: &Event| matches!(event, Event::CheckpointAlloc { .. });
    let first = blocks.events.iter().position(starts).unwrap();
    let kept: std::collections::HashSet<u64> = blocks.events[first..]
        .iter()
        .filter_map(|event| match event {
            Event::CheckpointAlloc { alloc, .. } if alloc.size == 512 => Some(alloc.key),
            _ => None,
        })
        .collect();
    assert_eq!(kept.len(), 50, "the blocks that stay");
    // The cache's own figures come again and again.
    let states = blocks.events.iter().filter(|event| matches!(event, Event::CacheState { .. }));
    let allocated: Vec<u64> = states
        .map(|state| match state {
            Event::CacheState { allocated, .. } => *allocated,
            _ => 0,
        })
        // While the first ones were made.
        .filter(|allocated| *allocated >= 50 * 512)
        .collect();
    assert!(allocated.len() > 3, "{allocated:?}");
    assert!(
        allocated.iter().all(|bytes| [50 * 512, 50 * 512 + 1024].contains(bytes)),
        "{allocated:?}"
    );
}

/// Each PyTorch of a process hears of its own blocks, and of no others.
#[test]
fn two_torch_libraries_and_renamed_ones_are_distinguished() {
    for other in ["libc10_cuda-4711.so", "libtorch_static.so"] {
        let path = libraries().join(other);
        let run = chained("two", path.to_str().unwrap());
        assert!(run.stdout.contains("other: 1 blocks"), "{}", run.stdout);
        assert_eq!(read(&run.only_trace()).live().len(), 2, "{other}");
    }
}

#[test]
fn blocks_are_handed_on_while_a_library_is_being_loaded() {
    let slow = libraries().join("libslow.so");
    let run = chained("loading", slow.to_str().unwrap());
    assert!(run.stdout.contains("loading: 2 blocks 1 refusals"), "{}", run.stdout);
}

#[test]
fn allocator_settings_of_the_environment_are_recorded() {
    let run = Program::c("torch").run(
        setup("blocks")
            .preload()
            .env("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
            .env("PYTORCH_SOMETHING", "else"),
    );
    let settings = read(&run.ok().only_trace()).settings;
    let expected = ("PYTORCH_CUDA_ALLOC_CONF".into(), "max_split_size_mb:64".into());
    assert!(settings.contains(&expected), "{settings:?}");
    assert!(settings.iter().all(|(name, _)| name != "PYTORCH_SOMETHING"));
}

/// The stack of each block, by its size: native addresses and the names of Python functions.
fn stacks(trace: &Path) -> HashMap<u64, (StackFlags, Vec<String>, Vec<String>)> {
    let bytes = testkit::trace_bytes(trace);
    let reader = TraceReader::new(&bytes).unwrap();
    let (mut codes, mut modules, mut stacks) = (HashMap::new(), Vec::new(), HashMap::new());
    for definition in reader.definitions() {
        match definition {
            Definition::Code { id, name, .. } => drop(codes.insert(id, name)),
            Definition::Module { start, end, path, .. } => modules.push((start..end, path)),
            Definition::Stack { id, flags, native, python, .. } => {
                let file = |at: &u64| {
                    let module = modules.iter().find(|(range, _)| range.contains(at));
                    module.map_or(String::new(), |(_, path)| {
                        path.rsplit('/').next().unwrap_or_default().to_string()
                    })
                };
                let native = native.iter().map(file).collect();
                let python = python.iter().map(|frame| codes[&frame.code].clone()).collect();
                stacks.insert(id, (flags, native, python));
            }
            _ => {}
        }
    }
    let blocks = reader.events().filter_map(|stamped| match stamped.event {
        Event::Alloc(alloc) if alloc.space == Space::Block => Some(alloc),
        _ => None,
    });
    blocks.map(|alloc| (alloc.size, stacks[&alloc.stack].clone())).collect()
}

fn python_blocks(python: &Path, tensors: &str) -> (Vec<serde_json::Value>, PathBuf, Run) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_blocks.py");
    let setup = Setup::simulated()
        .contradicts()
        .preload()
        .env("VRAMTRACE_STACKS", "native,python")
        .env("VRAMTRACE_TENSORS", tensors)
        .arg(script.display())
        .arg(libraries().join("libc10_cuda.so").display());
    let run = Program(python.to_path_buf()).run(setup).ok();
    let reported = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (reported, run.only_trace(), run)
}

#[test]
fn blocks_carry_the_stacks_of_python() {
    let pythons = testkit::pythons();
    if pythons.is_empty() {
        testkit::skip("stacks of blocks: no Python from 3.8 on");
    }
    for (minor, python) in pythons {
        for tensors in ["python", "full"] {
            let (reported, trace, _run) = python_blocks(&python, tensors);
            let stacks = stacks(&trace);
            assert_eq!(reported.len(), 10);
            for one in &reported {
                let (flags, native, names) = &stacks[&one["size"].as_u64().unwrap()];
                let expected: Vec<&str> =
                    one["names"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
                assert_eq!(*names, expected, "3.{minor} {tensors}");
                let backward = names.is_empty();
                // Native frames: where nothing else is known, or where both are asked for.
                assert_eq!(!native.is_empty(), backward || tensors == "full", "3.{minor}");
                assert_eq!(flags.has(StackFlags::NATIVE_OFF), native.is_empty());
                if !native.is_empty() {
                    assert_eq!(native[0], "libc10_cuda.so", "3.{minor} {native:?}");
                }
            }
        }
    }
}

/// What PyTorch's viewers need holds also where the beginning was punched out, and on a trace in
/// which blocks are freed that nobody made.
#[test]
fn traces_export_as_snapshots_that_torchs_viewers_take() {
    let program = Program::c("torch");
    for setup in [setup("blocks"), setup("churn").arg(100_000).env("VRAMTRACE_MAX", "4MiB")] {
        let run = program.run(setup.preload()).ok();
        let trace = run.only_trace();
        let pickle = trace.with_extension("pickle");
        let mut export = testkit::vramtrace();
        export.args(["export", "--format", "torch-snapshot", "-o"]).args([&pickle, &trace]);
        assert!(export.status().unwrap().success());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_snapshot.py");
        for what in ["opcodes", "rules"] {
            let judged =
                Command::new("python3").arg(&script).arg(what).arg(&pickle).output().unwrap();
            assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
        }
    }
}
