//! Interpreters of Python that are not CPython: native frames alone, one line that says so, and never a
//! Python frame.

use std::path::PathBuf;

use testkit::{Program, Run, Setup, repository, skip};
use vramtrace_format::StackFlags;

use crate::stacks::Stacks;

fn setup() -> Setup {
    Setup::simulated().preload()
}

/// Only native frames, and the reason once.
fn native_alone(run: &Run, name: &str) {
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(lines.len() == 1, "{}", run.stderr);
    let reason = format!("Python stacks are off: this is {name}; only CPython is supported");
    assert!(lines[0].ends_with(&reason), "{}", lines[0]);
    let stacks = Stacks::of(&run.only_trace());
    assert!(stacks.all().count() > 0);
    for (raw, named) in stacks.all() {
        let is_native = !named.is_empty() && !raw.flags.has(StackFlags::NATIVE_OFF);
        assert!(raw.python == 0 && is_native, "{raw:x?}");
    }
}

#[test]
fn pypy_has_native_frames_and_says_why() {
    let path = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&path).map(|folder| folder.join("pypy3"));
    let Some(pypy) = found.find(|file| file.is_file()) else {
        skip("frames: no pypy3 in PATH (package pypy3)");
        return;
    };
    let script = repository().join("docs/programs/train.py");
    let program = Program(pypy);
    let bare = Setup::simulated().arg(script.display());
    native_alone(&program.as_bare(bare, Setup::preload).ok(), "PyPy");
    // One that only lacks what it does not have: no line without Python stacks.
    let native = setup().env("VRAMTRACE_STACKS", "native").arg(script.display());
    program.run(native).ok().quiet();
}

/// A program that exports what PyPy does, beside names of CPython with other things behind them.
#[test]
fn an_interpreter_with_cpythons_names_is_not_taken_for_it() {
    let mut flags = vec!["-O1", "-lpthread", "-rdynamic", "-Wl,--defsym=pypy_execute_source=main"];
    let names = ["PyGILState_GetThisThreadState", "_PyRuntime", "PyCode_Type", "Py_Version"];
    let names = names.map(|name| format!("-Wl,--defsym={name}=main"));
    flags.extend(names.iter().map(String::as_str));
    native_alone(&Program::compiled("gcc", "frames_c.c", &flags).run(setup()).ok(), "PyPy");
}

#[test]
fn graalpy_is_known_by_its_library() {
    let flags = ["-O1", "-DSALT=1", "-shared", "-fPIC", "-Wl,-soname,libpythonvm.so"];
    let library: PathBuf = Program::compiled("gcc", "frames_library.c", &flags).0;
    let program = Program::compiled("gcc", "frames_libraries.c", &["-O1", "-ldl", "-lpthread"]);
    native_alone(&program.run(setup().arg(library.display())).ok(), "GraalPy");
}
