//! PyTorch's blocks: its allocator's calls reach the recorder and PyTorch's own profiler, whatever
//! they say. Stand-ins of its libraries make them.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::torch_stand_ins::libraries;
use testkit::{MIB, Program, Run, Said, Setup, repository};
use vramtrace_format::{Alloc, DeviceId, Event, Kind, SiteId, Space, StackFlags};

use super::recorded::{Recorded, setup as over};

fn setup(mode: &str) -> Setup {
    over("libc10_cuda.so", mode)
}

const REPORT: &str = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";

/// Address -> device and size of what is live at the end.
fn live(recorded: &Recorded) -> HashMap<u64, (DeviceId, u64)> {
    let mut live = HashMap::new();
    for event in &recorded.events {
        match *event {
            Event::Alloc(Alloc { key, size, site, space: Space::Block, .. }) => {
                let site = &recorded.sites[&site];
                assert_eq!((site.kind, &*site.api), (Some(Kind::Block), REPORT));
                assert_eq!(live.insert(key, (site.device, size)), None, "{key:#x} twice");
            }
            Event::Free { key, site, space: Space::Block } => {
                assert_eq!(site, SiteId(0));
                assert!(live.remove(&key).is_some(), "{key:#x} is not there");
            }
            Event::Drift { .. } => panic!("{event:?}"),
            _ => {}
        }
    }
    live
}

/// The same calls reach PyTorch's own functions with and without us.
#[track_caller]
fn chained(mode: &str, count: &str) -> Run {
    let ours = Program::c("torch").same_as_bare(setup(mode).arg(count));
    // It may be out of memory, and get a message.
    let message = ours.stderr.lines().next();
    assert!(message.is_none_or(|line| line.contains("torch is out of memory:")), "{}", ours.stderr);
    ours
}

#[test]
fn every_sort_of_block_is_recorded_and_handed_on() {
    let run = chained("blocks", "");
    assert!(run.stdout.contains("refused: 14 blocks 1 refusals"), "{}", run.stdout);
    let recorded = Recorded::by(&run);
    let events = || recorded.events.iter();
    let segment = events().find_map(|event| match event {
        Event::Alloc(alloc) if alloc.size == 20 * MIB => Some(alloc.key),
        _ => None,
    });
    let live = live(&recorded).into_iter();
    let mut found: Vec<_> =
        live.map(|(key, (device, size))| (key - segment.unwrap(), device, size)).collect();
    found.sort();
    let zero = DeviceId(0);
    let expected = [
        (0, zero, 2048),
        (512, zero, 1024),
        (3 * MIB, DeviceId::UNKNOWN, 512 * 33),
        (5 * MIB, zero, 512 * 6),
        (6 * MIB + 4, zero, 100),
        (8 * MIB, zero, 4096),
    ];
    assert_eq!(found, expected);
    let states: Vec<_> = events().filter(|of| matches!(of, Event::CacheState { .. })).collect();
    let first = Event::CacheState { device: zero, allocated: 512, reserved: 20 * MIB };
    assert_eq!(*states[0], first);
    let oom = events().find_map(|event| match *event {
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
    let recorded = Recorded::by(&run);
    assert_eq!(live(&recorded).len(), 8);
    assert_eq!(recorded.blocks().count(), 8 * 20_000);
}

#[test]
fn a_forked_child_knows_its_own_blocks_only() {
    let run = chained("fork", "");
    let traces = run.traces();
    assert_eq!(traces.len(), 2);
    let sizes_of = |trace: &PathBuf| -> Vec<u64> {
        let mut sizes: Vec<u64> =
            live(&Recorded::of(trace)).values().map(|(_, size)| *size).collect();
        sizes.sort();
        sizes
    };
    let mut sizes: Vec<Vec<u64>> = traces.iter().map(sizes_of).collect();
    sizes.sort();
    assert_eq!(sizes, [vec![512, 2048], vec![1536]]);
}

#[test]
fn what_is_off_or_panics_hands_on_all() {
    let bare = Program::c("torch").run(setup("blocks")).ok();
    let under = |name: &str, value: &str| {
        let run = Program::c("torch").run(setup("blocks").preload().env(name, value));
        assert_eq!(run.stdout, bare.stdout);
        run
    };
    let off = Recorded::by(&under("VRAMTRACE_TENSORS", "off").ok());
    let of_cache =
        |event: &Event| matches!(event, Event::CacheState { .. } | Event::CacheOom { .. });
    assert!(off.blocks().count() == 0 && !off.events.iter().any(of_cache), "{:?}", off.events);
    let panicked = under("VRAMTRACE_TEST_PANIC", REPORT);
    assert!(panicked.stderr.contains("internal error in"), "{}", panicked.stderr);
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
    assert!(trace.metadata().unwrap().blocks() * 512 <= 4 * MIB * 11 / 10);
    let events = Recorded::of(&trace).events;
    let listed = |event: &Event| match (event, event.itself()) {
        (Event::StateEvent(_), Event::Alloc(alloc)) => {
            Some(alloc).filter(|alloc| alloc.space == Space::Block)
        }
        _ => None,
    };
    let first = events.iter().position(|event| listed(event).is_some()).unwrap();
    let blocks = events[first..].iter().filter_map(listed);
    let kept = blocks.filter(|alloc| alloc.size == 512).map(|alloc| alloc.key);
    assert_eq!(kept.collect::<HashSet<u64>>().len(), 50, "the blocks that stay");
    // The cache's own figures come again and again.
    let allocated = events.iter().filter_map(|event| match event {
        Event::CacheState { allocated, .. } => Some(*allocated),
        _ => None,
    });
    // But for those while the first ones were made.
    let allocated: Vec<u64> = allocated.filter(|allocated| *allocated >= 50 * 512).collect();
    assert!(allocated.len() > 3, "{allocated:?}");
    let is_one = |bytes: &u64| [50 * 512, 50 * 512 + 1024].contains(bytes);
    assert!(allocated.iter().all(is_one), "{allocated:?}");
}

/// Each PyTorch of a process hears of its own blocks, and of no others.
#[test]
fn two_torch_libraries_and_renamed_ones_are_distinguished() {
    for other in ["libc10_cuda-4711.so", "libtorch_static.so"] {
        let run = chained("two", libraries().join(other).to_str().unwrap());
        assert!(run.stdout.contains("other: 1 blocks"), "{}", run.stdout);
        assert_eq!(live(&Recorded::by(&run)).len(), 2, "{other}");
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
    let setup = setup("blocks").env("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64");
    let run = Program::c("torch").run(setup.preload().env("PYTORCH_SOMETHING", "else")).ok();
    let recorded = Recorded::by(&run);
    let expected = ("PYTORCH_CUDA_ALLOC_CONF".into(), "max_split_size_mb:64".into());
    assert!(recorded.settings.contains(&expected), "{:?}", recorded.settings);
    assert!(!recorded.has_setting("PYTORCH_SOMETHING"));
}

#[test]
fn blocks_carry_the_stacks_of_python() {
    let script = repository().join("tests/python/torch_blocks.py");
    for (minor, python) in testkit::pythons() {
        for tensors in ["python", "full"] {
            let setup = Setup::simulated().contradicts().preload();
            let setup = setup.env("VRAMTRACE_STACKS", "native,python");
            let setup = setup.env("VRAMTRACE_TENSORS", tensors).arg(script.display());
            let setup = setup.arg(libraries().join("libc10_cuda.so").display());
            let run = Program(python.clone()).run(setup).ok();
            let recorded = Recorded::by(&run);
            assert_eq!(run.stdout.lines().count(), 10);
            for line in run.stdout.lines() {
                let one: Value = serde_json::from_str(line).unwrap();
                let block = recorded.blocks().find(|block| block.size == one["size"]).unwrap();
                let stack = &recorded.stacks[&block.stack];
                assert_eq!(one["names"], Value::from(stack.python.clone()), "3.{minor} {tensors}");
                // Native frames: where nothing else is known, or where both are asked for.
                let has_native = !stack.native.is_empty();
                assert_eq!(has_native, stack.python.is_empty() || tensors == "full", "3.{minor}");
                assert_eq!(stack.flags.has(StackFlags::NATIVE_OFF), !has_native);
                assert!(!has_native || stack.native[0] == "libc10_cuda.so", "3.{minor}");
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
        run.text("export --format torch-snapshot -o pickle");
        let script = repository().join("tests/python/torch_snapshot.py");
        for what in ["opcodes", "rules"] {
            let mut python = Command::new("python3");
            python.arg(&script).arg(what).arg(run.scratch.0.join("pickle"));
            Said::by(&mut python).ended(0);
        }
    }
}
