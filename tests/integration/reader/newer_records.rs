//! Traces of a newer recorder: unknown records are skipped and counted, and every command prints their number.

use std::process::Output;

use testkit::trace_builder::cached;
use testkit::{Scratch, make_newer};
use vramtrace_format::Event;

/// The number of a kind of event.
fn kind(name: &str) -> u8 {
    Event::KINDS.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind).unwrap()
}

fn run(scratch: &Scratch, line: &str) -> Output {
    let output = scratch.run(line);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {output:?}");
    output
}

#[test]
fn every_command_says_how_many_records_it_passed_over() {
    let scratch = Scratch::new();
    let mut bytes = cached().bytes();
    std::fs::write(scratch.0.join("known.vtrace"), &bytes).unwrap();
    let changed = make_newer(&mut bytes, &[kind("CacheState")]);
    assert!(changed > 1, "{changed}");
    std::fs::write(scratch.0.join("a.vtrace"), &bytes).unwrap();
    let mut other = cached();
    (other.header.uuid[0], other.header.pid) = (other.header.uuid[0] ^ 1, other.header.pid + 1);
    let mut bytes = other.bytes();
    assert_eq!(make_newer(&mut bytes, &[kind("CacheState")]), changed);
    std::fs::write(scratch.0.join("b.vtrace"), &bytes).unwrap();
    for words in [
        "report a.vtrace",
        "report --json a.vtrace",
        "report --by phase a.vtrace",
        "report --by step a.vtrace",
        "report --html -o page.html a.vtrace",
        "holders a.vtrace",
        "tree a.vtrace",
        "leaks a.vtrace",
        "oom a.vtrace",
        "frag a.vtrace",
        "whatif a.vtrace",
        "flame -o flame.svg a.vtrace",
        "diff a.vtrace known.vtrace",
        "export --format csv -o - a.vtrace",
        "export --format perfetto -o - a.vtrace",
        "export --format pprof -o - a.vtrace",
        "export --format torch-snapshot -o - a.vtrace",
        "pack -o packed a.vtrace",
    ] {
        let printed = String::from_utf8_lossy(&run(&scratch, words).stderr).into_owned();
        let line = format!(
            "a.vtrace: {changed} records of kinds that this version does not know were skipped: \
             written by a newer recorder, format 1."
        );
        assert_eq!(printed.matches(&line).count(), 1, "{words}: {printed}");
        assert!(!printed.contains("damaged"), "{words}: {printed}");
    }
    // Of several traces one line.
    for words in ["report a.vtrace b.vtrace", "report --json a.vtrace b.vtrace"] {
        let printed = String::from_utf8_lossy(&run(&scratch, words).stderr).into_owned();
        let line = format!("and 1 trace more: {} records of kinds", 2 * changed);
        assert_eq!(printed.matches(&line).count(), 1, "{words}: {printed}");
    }
    let of_known = run(&scratch, "holders known.vtrace");
    assert!(!String::from_utf8_lossy(&of_known.stderr).contains("skipped"));
    // All else is as it was.
    assert_eq!(
        run(&scratch, "holders a.vtrace").stdout,
        run(&scratch, "holders known.vtrace").stdout
    );
}
