//! A driver call never reaches the program's malloc through us, on any thread: a malloc that uses
//! the driver, or a signal's handler that came in the middle of one, would wait for itself.

use testkit::{Program, Run, Setup, shim};

#[track_caller]
fn witnessed(program: &Program, setup: Setup) -> Run {
    let flags = ["-O1", "-g", "-shared", "-fPIC", "-fno-builtin", "-lgcc_s"];
    let witness = Program::compiled("gcc", "malloc_witness.c", &flags);
    let both = format!("{}:{}", shim().display(), witness.0.display());
    program.run(setup.env("LD_PRELOAD", both).env("VRAMTRACE_OOM_REPORT", "off")).ok()
}

#[test]
fn no_family_of_hooks_allocates_by_malloc() {
    let program = Program::c("families");
    for thread in [None, Some("thread")] {
        let setup = || thread.iter().fold(Setup::simulated().arg("all"), |setup, t| setup.arg(t));
        let bare = program.run(setup()).ok();
        for stacks in ["native,python", "none"] {
            let ours = witnessed(&program, setup().env("VRAMTRACE_STACKS", stacks));
            assert_eq!(ours.stdout, bare.stdout);
            ours.only_report();
        }
        witnessed(&program, setup().cap("20GiB"));
    }
}

#[test]
fn no_other_program_is_served_by_malloc() {
    for name in ["corners", "graphs", "taken", "phases", "lending", "first_call"] {
        let program = Program::c(name);
        let bare = program.run(Setup::simulated()).ok();
        let ours = witnessed(&program, Setup::simulated());
        if name == "first_call" {
            assert!(bare.stdout.contains("/nowhere/nothing.so"), "{}", bare.stdout);
            assert_eq!(ours.stdout, bare.stdout, "the program's dlerror is its own");
        }
    }
}

#[test]
fn no_thread_and_no_post_mortem_allocates_by_malloc() {
    witnessed(&Program::c("hammer"), Setup::simulated().arg(4).arg(200));
    let setup = Setup::simulated().cap("1GiB").env("VRAMTRACE_OOM_REPORT", "on");
    witnessed(&Program::c("families"), setup.arg("device"));
}
