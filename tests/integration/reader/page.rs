//! `vramtrace report --html` as a command: its file and its options. What the page shows is tested in a
//! browser (`web/tests/`).

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use testkit::trace_builder::{cached, training};
use testkit::{Scratch, vramtrace};

fn run(scratch: &Scratch, args: &str) -> Output {
    let args: Vec<&str> = args.split(' ').collect();
    vramtrace().args(args).current_dir(&scratch.0).output().unwrap()
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("a.vtrace"));
    let mut other = cached();
    other.header.uuid[0] ^= 1;
    other.write(&scratch.0.join("b.vtrace"));
    scratch
}

#[test]
fn one_file_that_only_its_owner_reads() {
    let scratch = scratch();
    let output = run(&scratch, "report --html a.vtrace");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let file = scratch.0.join("vramtrace.html");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("application/vnd.vramtrace\" id=\"stream-").count(), 1);
    let again = run(&scratch, "report --html a.vtrace");
    assert_eq!(again.status.code(), Some(2), "it is not replaced");
    let force = run(&scratch, "report --html a.vtrace b.vtrace --force");
    assert_eq!(force.status.code(), Some(0));
    let page = std::fs::read_to_string(&file).unwrap();
    assert_eq!(page.matches("application/vnd.vramtrace\" id=\"stream-").count(), 2);
}

#[test]
fn options_that_say_nothing_here_are_refused() {
    let scratch = scratch();
    for args in [
        "report a.vtrace -o x.html",
        "report a.vtrace --html --json",
        "report a.vtrace --html --at peak",
    ] {
        let output = run(&scratch, args);
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert!(!scratch.0.join("vramtrace.html").exists(), "{args}");
    }
}
