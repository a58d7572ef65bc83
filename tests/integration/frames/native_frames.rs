//! The native stack that each allocation carries, against what the C library's backtrace() says at
//! the same place: C, C++ and Rust as compilers make them, libraries that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::stacks::Stacks;
use testkit::{Program, Run, Setup};
use vramtrace_format::StackFlags;

/// How frames are found: no frame pointers, as distributions build.
const PLAIN: [&str; 4] = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// What a program printed of one allocation.
struct Printed<'a> {
    size: u64,
    label: &'a str,
    addresses: Vec<u64>,
}

fn printed_allocations(run: &Run) -> Vec<Printed<'_>> {
    let lines = run.stdout.lines().filter(|line| !line.starts_with("at "));
    lines
        .map(|line| {
            let (size, rest) = line.split_once(' ').unwrap();
            let (label, addresses) = rest.rsplit_once(' ').unwrap();
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let addresses = addresses.split(',').map(hex).collect();
            Printed { size: size.parse().unwrap(), label, addresses }
        })
        .collect()
}

fn run(program: &Program, setup: Setup) -> (Run, Stacks) {
    let setup = setup.preload().env("VRAMTRACE_STACK_DEPTH", "1000");
    let run = program.run(setup).ok();
    assert_eq!(run.stderr, "");
    let stacks = Stacks::of(&run.only_trace());
    (run, stacks)
}

/// The first address is inside the function that asked both.
#[track_caller]
fn same(ours: &[u64], one: &Printed) {
    let Printed { size, label, addresses } = one;
    let is_near = !ours.is_empty() && ours[0].abs_diff(addresses[0]) < 2048;
    let is_right = is_near && ours[1..] == addresses[1..];
    assert!(is_right, "{size} {label}\nours   {ours:x?}\ntheirs {addresses:x?}");
}

/// Compares all, and returns how many of each label there were.
#[track_caller]
fn compare(run: &Run, stacks: &Stacks) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for one in printed_allocations(run) {
        let raw = stacks.raw(one.size);
        *counts.entry(one.label.to_string()).or_default() += 1;
        if !one.label.starts_with("apart:") {
            assert!(!raw.flags.has(StackFlags::NATIVE_CUT), "{}: cut", one.label);
            same(&raw.native, &one);
            continue;
        }
        // What is beyond a stack of its own, a signal's or a fiber's, is not looked for.
        let kept = raw.native.len();
        assert!(raw.flags.has(StackFlags::NATIVE_CUT) && kept >= 2, "{}: {kept}", one.label);
        let addresses = one.addresses[..kept].to_vec();
        same(&raw.native, &Printed { addresses, ..one });
    }
    counts
}

/// Without frame pointers, with them, and unoptimized.
#[test]
fn c_stacks_are_whole() {
    const SITUATIONS: &str = "recursive,qsort,large frame,aligned frame,handler,fiber,once";
    for flags in [&PLAIN[..], &["-O1", "-g", "-fno-omit-frame-pointer"], &["-O0"]] {
        let program = Program::compiled("gcc", "frames_c.c", &[flags, &["-lpthread"]].concat());
        let (run, stacks) = run(&program, Setup::simulated());
        let counts = compare(&run, &stacks);
        for label in SITUATIONS.split(',') {
            assert!(counts.keys().any(|found| found.contains(label)), "{label}: {counts:?}");
        }
        let all = printed_allocations(&run);
        let deep = all.iter().filter(|one| one.addresses.len() > 50).count();
        assert!(deep >= 10, "{deep} deep stacks");
    }
}

#[test]
fn cpp_stacks_with_exceptions_are_whole() {
    for flags in [&PLAIN[..], &["-O0"]] {
        let flags = [&["-std=c++17"], flags, &["-lpthread"]].concat();
        let program = Program::compiled("g++", "frames_cpp.cpp", &flags);
        let (run, stacks) = run(&program, Setup::simulated());
        let counts = compare(&run, &stacks);
        assert_eq!(counts["destructor"], 4 * (4 + 4), "{counts:?}");
        for label in ["catch again", "rethrown", "virtual", "constructor of a static"] {
            assert!(counts.contains_key(label), "{label}: {counts:?}");
        }
        let all = printed_allocations(&run);
        let called = stacks.named(all.iter().find(|one| one.label == "virtual").unwrap().size);
        assert!(called.iter().any(|frame| frame.function.contains("Derived::call")), "{called:?}");
    }
}

#[test]
fn rust_stacks_are_whole() {
    for flags in [&["-O"][..], &["-C", "opt-level=0", "-g"]] {
        let flags = [&["--edition=2021"], flags].concat();
        let program = Program::compiled("rustc", "frames_rust.rs", &flags);
        let (run, stacks) = run(&program, Setup::simulated());
        let counts = compare(&run, &stacks);
        assert_eq!(counts["drop"], 4 * (2 * 4 + 3), "{counts:?}");
        assert!(counts["sort"] > 4 && counts["closure"] == 4, "{counts:?}");
    }
}

/// Many libraries of one size, each opened where the one before was closed.
#[test]
fn stacks_name_the_library_that_was_there_at_the_time() {
    let directory = testkit::Scratch::new();
    let mut setup = Setup::simulated();
    for salt in 0..8 {
        let salt_flag = format!("-DSALT={salt}");
        let mut flags = vec![&salt_flag[..], "-shared", "-fPIC", "-g"];
        flags.extend(&PLAIN);
        // Without it, only the tables tell one from the other.
        if salt % 2 == 0 {
            flags.push("-Wl,--build-id=none");
        }
        let library = Program::compiled("gcc", "frames_library.c", &flags);
        let path = directory.0.join(format!("library_{salt}.so"));
        std::fs::copy(&library.0, &path).unwrap();
        setup = setup.arg(path.display());
    }
    let program = Program::compiled("gcc", "frames_libraries.c", &PLAIN);
    let (run, stacks) = run(&program, setup);

    let openings: Vec<_> = run.stdout.lines().filter_map(|line| line.strip_prefix("at ")).collect();
    let places: BTreeSet<_> = openings.iter().map(|one| one.split(' ').next().unwrap()).collect();
    assert!(openings.len() > 60 && places.len() < 8, "{} in {places:?}", openings.len());

    let mut compared = 0;
    let mut made = false;
    for one in printed_allocations(&run) {
        let raw = stacks.raw(one.size);
        if one.label == "made" {
            // Frame pointers lead through it; backtrace() ends at it.
            assert_eq!(raw.native[1], one.addresses[1]);
            let made_there = raw.library(raw.native[1]).unwrap();
            assert_eq!(made_there.path, "[made at run time]");
            let outer = raw.library(raw.native[2]).unwrap();
            assert_eq!(Path::new(&outer.path), program.0, "{:x?}", raw.native);
            made = true;
            continue;
        }
        same(&raw.native, &one);
        let salt = one.label.strip_prefix("library_").unwrap().strip_suffix(".so").unwrap();
        let frames = stacks.named(one.size);
        let names: Vec<&str> = frames.iter().map(|frame| &*frame.function).collect();
        let inner = format!("inner_{salt}");
        assert_eq!(names[1..3], [&inner[..], "enter"], "{}: {names:?}", one.label);
        assert!(frames[1].library.as_deref().unwrap().ends_with(one.label));
        compared += 1;
    }
    assert!(made && compared > 150, "{compared} stacks");
}
