//! Stacks are taken while threads fork, end, open libraries, allocate with a malloc of their own and
//! are interrupted: no crash, no hang, and no stack lost.

use std::path::PathBuf;
use std::time::Duration;

use crate::stacks::Stacks;
use testkit::{Program, Run, Scratch, Setup, shim};

/// `short`, or ten times as much when asked for the whole test (`VRAMTRACE_TEST_FULL=1`).
fn times(short: u32) -> u32 {
    if std::env::var_os("VRAMTRACE_TEST_FULL").is_some() { 10 * short } else { short }
}

fn hazard(mode: &str, count: u32) -> Run {
    let setup = Setup::simulated().preload().arg(mode).arg(count);
    Program::c("hazards").run(setup.timeout(Duration::from_secs(240))).ok().quiet()
}

/// Every stack of the program's `below_frames` leads from there to `main` or a thread's start.
fn stacks_are_whole(run: &Run) -> usize {
    let trace = run.traces().into_iter().max_by_key(|path| path.metadata().unwrap().len());
    let stacks = Stacks::of(&trace.unwrap());
    let mut whole = 0;
    for (raw, frames) in stacks.all() {
        let names: Vec<&str> = frames.iter().map(|frame| &*frame.function).collect();
        let Some(below) = names.iter().position(|name| *name == "below_frames") else { continue };
        let outside = names[below..].iter().find(|name| **name != "below_frames").unwrap();
        let starts = ["down", "stress", "until_stopped", "once", "main", "work", "fork_many"];
        assert!(below <= 2 && starts.contains(outside), "{names:?} {raw:x?}");
        whole += 1;
    }
    whole
}

#[test]
fn stacks_are_whole_while_libraries_come_and_go() {
    let run = hazard("stress", times(2000));
    assert_eq!(run.stdout, format!("{} pairs\n", 8 * times(2000)));
    assert_eq!(run.device()["allocations"], 8 * times(2000));
    assert!(stacks_are_whole(&run) > 1000);
}

#[test]
fn stacks_are_whole_while_threads_end() {
    let run = hazard("exits", times(300));
    assert_eq!(run.stdout, format!("{} threads\n", 4 * times(300)));
    assert!(stacks_are_whole(&run) > 500);
}

#[test]
fn children_forked_while_threads_allocate_run_on() {
    let run = hazard("forks", times(60));
    assert_eq!(run.stdout, "0 failed\n");
    assert!(stacks_are_whole(&run) > 500);
}

/// A thread of the parent holds the loader's locks; in the child it is not there to let go of them.
#[test]
fn children_forked_while_threads_are_in_the_loader_run_on() {
    let run = hazard("early", times(60));
    assert_eq!(run.stdout, "0 failed\n");
    assert_eq!(run.traces().len() as u32, times(60), "each child has its own");
    // Below glibc 2.35 such a child has no native stacks.
    let this = libloading::os::unix::Library::this();
    // SAFETY: the symbol is only looked for.
    if unsafe { this.get::<*const ()>(b"_dl_find_object") }.is_ok() {
        assert_eq!(stacks_are_whole(&run), 5);
    }
}

fn own_malloc(program: &Program, preload: &[PathBuf]) {
    let preload: Vec<_> = preload.iter().map(|path| path.display().to_string()).collect();
    let setup = Setup::simulated().env("LD_PRELOAD", preload.join(":"));
    let run = program.run_in(setup, Scratch::new()).ok();
    assert_eq!((&*run.stdout, &*run.stderr), ("end\n", ""));
    assert_eq!(run.device()["allocations"], 2000);
    assert!(stacks_are_whole(&run) > 200);
}

#[test]
fn a_malloc_of_the_programs_own_is_not_entered_again() {
    let flags = ["-O1", "-g", "-fno-builtin", "-ldl", "-lpthread"];
    let built =
        |more: [&str; 2]| Program::compiled("gcc", "own_malloc.c", &[&flags[..], &more].concat());
    let (inside, library) = (built(["-DMAIN", "-rdynamic"]), built(["-shared", "-fPIC"]));
    own_malloc(&inside, &[shim()]);
    own_malloc(&inside, &[library.0.clone(), shim()]);
    own_malloc(&inside, &[shim(), library.0]);
}
