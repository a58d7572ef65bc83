//! Traces of a newer recorder: unknown records are skipped and counted, and every command prints their number.

use testkit::trace_builder::cached;
use testkit::{Scratch, make_newer};
use vramtrace_format::Event;

use super::READING;

#[test]
fn every_command_says_how_many_records_it_passed_over() {
    let scratch = Scratch::new();
    let mut bytes = cached().bytes();
    scratch.write("known.vtrace", &bytes);
    let kind = Event::KINDS.iter().find(|(_, name)| *name == "CacheState").unwrap().0;
    let changed = make_newer(&mut bytes, &[kind]);
    assert!(changed > 1, "{changed}");
    scratch.write("a.vtrace", &bytes);
    let mut other = cached();
    (other.header.uuid[0], other.header.pid) = (other.header.uuid[0] ^ 1, other.header.pid + 1);
    let mut bytes = other.bytes();
    assert_eq!(make_newer(&mut bytes, &[kind]), changed);
    scratch.write("b.vtrace", &bytes);
    let one = format!(
        "a.vtrace: {changed} records of kinds that this version does not know were skipped: \
         written by a newer recorder, format 2."
    );
    // Of several traces one line.
    let both = format!("and 1 trace more: {} records of kinds", 2 * changed);
    let of_one = READING.into_iter().chain(["diff known.vtrace"]).map(|line| (line, "", &one));
    let of_both = ["report", "report --json"].map(|line| (line, "b.vtrace", &both));
    for (line, more, wanted) in of_one.chain(of_both) {
        let output = scratch.run(&format!("{line} a.vtrace {more}"));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {output:?}");
        assert_eq!(printed.matches(wanted).count(), 1, "{line}: {printed}");
        assert!(!printed.contains("damaged"), "{line}: {printed}");
    }
    // All else is as it was.
    let [newer, known] =
        ["a.vtrace", "known.vtrace"].map(|trace| scratch.says(&["holders", trace]).ended(0));
    assert!(!known.err.contains("skipped"));
    assert_eq!(newer.out, known.out);
}
