//! A stack of this very program, as the C library unwinds it, named by `vramtrace holders`.

use std::collections::BTreeMap;
use std::hint::black_box;

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Scratch};
use vramtrace_format::{Definition, Kind};

#[inline(never)]
fn innermost(depth: u64) -> Vec<u64> {
    let mut addresses = [std::ptr::null_mut(); 64];
    // SAFETY: room for as many as we say.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), 64) };
    assert!(count > 3 && depth == 7, "{count}");
    addresses[..count as usize].iter().map(|address| *address as u64).collect()
}

#[inline(never)]
fn middle(depth: u64) -> Vec<u64> {
    let stack = innermost(black_box(depth + 1));
    black_box(stack)
}

#[inline(never)]
fn outer(depth: u64) -> (Vec<u64>, u32) {
    let line = line!() + 1;
    let stack = middle(black_box(depth + 1));
    (black_box(stack), line)
}

/// The files that are mapped here, each from its first to its last byte.
fn modules() -> BTreeMap<String, (u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in maps.lines() {
        let Some(at) = line.find('/') else { continue };
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let range = found.entry(line[at..].to_string()).or_insert((number(start), number(end)));
        range.1 = range.1.max(number(end));
    }
    found
}

#[test]
fn a_stack_of_this_program_has_its_functions_files_and_lines() {
    let (native, line) = outer(black_box(5));
    let mut t = TraceBuilder::new();
    let own = std::env::current_exe().unwrap().to_string_lossy().into_owned();
    t.header.executable = own.clone();
    t.header.working_directory = env!("CARGO_MANIFEST_DIR").into();
    t.header.command = vec![own.clone()];
    for (id, (path, (start, end))) in modules().into_iter().enumerate() {
        let (id, build_id) = (id as u32, Vec::new());
        t.define(Definition::Module { id, path, build_id, base: start, start, end });
    }
    t.stack(1, &native, &[], &[]);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, MIB, 1);
    let scratch = Scratch::with(&t);
    let json = scratch.json("holders t.vtrace");
    let holder = &json["holders"][0];
    let frames = holder["frames"].as_array().unwrap();
    let names: Vec<&str> = frames.iter().map(|frame| frame["function"].as_str().unwrap()).collect();
    let place = |name: &str| {
        let function = format!("{}::{name}", module_path!());
        let at = names.iter().position(|found| *found == function);
        at.unwrap_or_else(|| panic!("{name}: {names:?}"))
    };
    let (first, second, third) = (place("innermost"), place("middle"), place("outer"));
    assert!(first < second && second < third, "{names:?}");
    let file = frames[third]["file"].as_str().unwrap();
    assert!(file.ends_with("tests/integration/frames/native_names.rs"), "{file}");
    assert_eq!(frames[third]["line"], line, "the line of the call");
    assert_eq!(frames[third]["library"], own.as_str());
    // What starts threads and programs is left out.
    for start in ["start_thread", "clone", "lang_start", "_start"] {
        assert!(!names.iter().any(|name| name.contains(start)), "{names:?}");
    }
    assert_eq!(holder["lead"], first, "the innermost frame of the program itself");
    let shown = scratch.text("holders t.vtrace");
    for part in ["native_names.rs:", "native_names::innermost"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains('!'), "every file is there and has names: {shown}");
}
