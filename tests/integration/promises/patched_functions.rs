//! A library that writes a jump over the beginning of our functions, as comfy-aimdo does: memory belongs to what called
//! them, as without it. The stand-in is that of the page about ComfyUI.
#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;

use serde_json::Value;
use testkit::{MIB, Program, Run, Scratch, Setup, repository};

/// The stand-in, under the name by which its functions are known.
fn library(scratch: &Scratch) -> PathBuf {
    let flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"];
    let built = Program::compiled("gcc", "../../docs/programs/aimdo.c", &flags);
    let path = scratch.0.join("aimdo.so");
    std::fs::copy(&built.0, &path).unwrap();
    path
}

fn run(scratch: &Scratch, mode: &str, setup: impl FnOnce(Setup) -> Setup) -> Run {
    let script = repository().join("tests/python/patched.py");
    let first = Setup::simulated().arg(script.display()).arg(library(scratch).display()).arg(mode);
    Program("python3".into()).run(setup(first))
}

/// Of each holder: library, line, bytes, allocations.
fn holders(run: &Run) -> Vec<(String, String, u64, u64)> {
    let all = run.scratch.json("holders . --at end");
    let holder = |holder: &Value| {
        let number = |name: &str| holder[name].as_u64().unwrap();
        let frame = |name: &str| {
            let frame = &holder["frames"][number(name) as usize];
            format!("{}:{}", frame["function"], frame["line"])
        };
        let library = holder["library"].as_str().unwrap().to_string();
        (library, frame("lead") + &frame("caller"), number("bytes"), number("count"))
    };
    all["holders"].as_array().unwrap().iter().map(holder).collect()
}

/// What the driver was asked for, by function.
fn requested(run: &Run) -> Value {
    let bytes = testkit::trace_bytes(&run.only_trace());
    let reader = vramtrace_format::TraceReader::new(&bytes).unwrap();
    let sizes = reader.events().filter_map(|stamped| match stamped.event {
        vramtrace_format::Event::Alloc(alloc) => Some(alloc.size),
        _ => None,
    });
    sizes.collect()
}

#[test]
fn owners_and_bytes_are_those_of_the_run_without_the_library() {
    let scratch = Scratch::new();
    let plain = run(&scratch, "none", Setup::preload).ok();
    let patched = run(&scratch, "hooks", Setup::preload).ok();
    assert_eq!(patched.stdout, plain.stdout);
    let expected = holders(&plain);
    assert_eq!(expected.len(), 3, "{expected:?}");
    assert!(expected.iter().all(|(library, ..)| library == "patched.py"), "{expected:?}");
    assert_eq!(holders(&patched), expected);
    assert_eq!(requested(&patched), requested(&plain));
    let notes = patched.notes();
    let note = "aimdo.so replaced the beginning of cuMemAlloc_v2: ";
    assert_eq!(notes.iter().filter(|text| text.contains(note)).count(), 1, "{notes:?}");
    assert!(!plain.notes().iter().any(|text| text.contains("replaced")), "{:?}", plain.notes());
}

#[test]
fn doctor_says_which_library_stands_before_the_recorder() {
    let scratch = Scratch::new();
    let script = repository().join("tests/python/patched.py");
    let (script, library) = (script.display(), library(&scratch));
    let line = format!("doctor --simulate -- python3 {script} {} hooks", library.display());
    let output = scratch.run(&line);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("replaced") && printed.contains("aimdo.so"), "{printed}");
    assert_eq!(output.status.code(), Some(0), "it is no problem: {printed}");
}

/// It is known before the end: at the call sites of the live page, which are summed every 100 ms.
#[test]
fn the_library_is_known_of_a_program_that_was_killed() {
    let killed = run(&Scratch::new(), "killed", Setup::preload);
    assert_eq!(killed.status, -9, "{}", killed.stderr);
    let found = holders(&killed);
    assert!(found.iter().all(|(library, ..)| library == "patched.py"), "{found:?}");
}

#[test]
fn a_message_of_an_out_of_memory_names_the_callers() {
    let run = run(&Scratch::new(), "capped", |setup| setup.cap("1GiB"));
    assert_eq!(run.status, 1, "{}", run.stderr);
    assert!(run.stderr.contains("patched.py:"), "{}", run.stderr);
    assert!(!run.stderr.contains("aimdo"), "{}", run.stderr);
}

/// Functions that are not called are overwritten by jumps to nowhere and by a breakpoint.
#[test]
fn code_that_leads_nowhere_is_read_without_a_fault() {
    let run = run(&Scratch::new(), "broken", Setup::preload).ok();
    let notes = run.notes();
    let replaced: Vec<&String> = notes.iter().filter(|text| text.contains("replaced")).collect();
    assert_eq!(replaced.len(), 1, "{notes:?}");
    assert!(replaced[0].starts_with("generated code replaced the beginning of cuMemAllocManaged:"));
    assert!(holders(&run).iter().all(|(library, ..)| library == "patched.py"));
}

/// The program of the page: weights in pages, of which 20 are evicted by the library's own count.
#[test]
fn paged_weights_have_a_role_and_their_evictions_are_counted() {
    let scratch = Scratch::new();
    library(&scratch);
    for name in ["gpu.py", "images.py"] {
        std::fs::copy(repository().join("docs/programs").join(name), scratch.0.join(name)).unwrap();
    }
    let script = scratch.0.join("images.py");
    let setup = Setup::simulated().preload().arg(script.display());
    let run = Program("python3".into()).run(setup).ok();
    assert_eq!(run.stdout, "2 images, 20 pages evicted\n");
    let roles = run.scratch.json("holders . --by role");
    let row = |role: &Value| (role["role"].clone(), role["bytes"].as_u64().unwrap() / MIB);
    let roles: Vec<_> = roles["holders"].as_array().unwrap().iter().map(row).collect();
    let context = ("context and modules".into(), 518);
    assert_eq!(roles, [("weights (paged)".into(), 640), context, ("unknown".into(), 472)]);
    let device = run.device();
    let sleeps = device["sleeps"]["sleeps"].as_array();
    let calls = sleeps.unwrap().iter().flat_map(|sleep| sleep["unmapped_by"].as_array().unwrap());
    let unmapped: u64 = calls.map(|call| call["bytes"].as_u64().unwrap()).sum();
    assert_eq!(unmapped, 20 * 32 * MIB, "{device:#}");
}
