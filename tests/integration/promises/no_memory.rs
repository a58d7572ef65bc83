//! Where the system gives no memory to us, the program does as it does without us: same output,
//! same end. Recording ends, with one line. Under a cap it may be refused, cleanly.

use std::time::Duration;
use testkit::{Program, Run, Setup};

/// The environment's variable that lets requests of ours fail, in builds with assertions.
const FAIL: &str = "VRAMTRACE_TEST_NO_PAGES";

fn families(setup: Setup) -> Run {
    // Where a sum got no memory, it lacks what it should have counted.
    let setup = setup.env("VRAMTRACE_OOM_REPORT", "off").contradicts();
    Program::c("families").run(setup.arg("all"))
}

#[track_caller]
fn same_as_bare(bare: &Run, ours: &Run, what: &str) {
    assert_eq!(ours.status, bare.status, "{what}: {}", ours.stderr);
    assert_eq!(ours.stdout, bare.stdout, "{what}");
    let other = |line: &&str| !line.starts_with("vramtrace: ");
    assert_eq!(ours.stderr.lines().find(other), None, "{what}");
    assert!(ours.stderr.lines().count() <= 2, "{what}: {}", ours.stderr);
}

/// Whether the library has the switches that let requests fail.
fn has_switches() -> bool {
    if !cfg!(debug_assertions) {
        testkit::skip("no memory: built without assertions");
    }
    cfg!(debug_assertions)
}

#[test]
fn each_request_of_ours_may_fail() {
    if !has_switches() {
        return;
    }
    let bare = families(Setup::simulated());
    let stopped = |run: &Run| run.stderr.contains("recording ends here");
    let mut ends = 0;
    for n in (1..40).chain((40..400).step_by(23)) {
        for all_later in ["", "-"] {
            let which = format!("{n}{all_later}");
            let ours = families(Setup::simulated().preload().env(FAIL, &which));
            same_as_bare(&bare, &ours, &which);
            ends += u32::from(stopped(&ours));
        }
    }
    assert!(ends > 40, "the requests were ours: {ends}");
}

/// No request is granted that cannot be counted; what is given back is.
#[test]
fn each_request_of_ours_may_fail_under_a_cap() {
    for n in (1..40).chain((40..400).step_by(41)) {
        let ours = families(Setup::simulated().cap("20GiB").env(FAIL, format!("{n}-")));
        assert_eq!(ours.status, 0, "{n}: {}", ours.stderr);
        assert!(ours.stdout.contains("-- context"), "{n}: {}", ours.stdout);
        assert!(ours.stderr.lines().all(|line| line.starts_with("vramtrace: ")), "{}", ours.stderr);
    }
}

/// Every number of a small program, failing alone and with all later ones. `STEP` of the heap's blocks:
/// there are thousands; VRAMTRACE_EXHAUSTION=1 takes each.
#[track_caller]
fn exhausted(setup: Setup, variable: &str, step: u32, over: &str) {
    let setup = setup.env("VRAMTRACE_OOM_REPORT", "off").contradicts().arg("sites").arg(variable);
    let setup = setup.arg(1).arg(100_000).arg(step).timeout(Duration::from_secs(600));
    let run = Program::c("exhausted").run(if over.is_empty() { setup } else { setup.arg(over) });
    assert_eq!(run.status, 0, "{}", run.stderr);
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
    let [tried, noticed] = Vec::from_iter(run.stdout.lines().map(value))[..] else {
        panic!("{variable} {over}: {}", run.stdout)
    };
    assert!(noticed > 0 && tried > noticed, "the requests were ours: {}", run.stdout);
}

fn step(of: u32) -> u32 {
    if std::env::var_os("VRAMTRACE_EXHAUSTION").is_some() { 1 } else { of }
}

/// A cap holds, whatever fails.
#[test]
fn each_block_and_each_mapping_may_fail() {
    if !has_switches() {
        return;
    }
    let ways =
        [(Setup::simulated().preload(), 7, ""), (Setup::simulated().cap("2GiB"), 11, "2048")];
    for (setup, blocks, over) in ways {
        exhausted(setup.clone(), "VRAMTRACE_TEST_NO_PAGES", 1, over);
        exhausted(setup, "VRAMTRACE_TEST_NO_MEMORY", step(blocks), over);
    }
}

/// Each place that asks the kernel for pages, failing alone whenever it asks.
#[test]
fn each_place_that_maps_may_fail() {
    if !has_switches() {
        return;
    }
    let bare = families(Setup::simulated());
    for site in ["state", "tail", "live", "segment", "pages"] {
        let ours = families(Setup::simulated().preload().env(FAIL, site));
        same_as_bare(&bare, &ours, site);
        let capped = families(Setup::simulated().cap("20GiB").env(FAIL, site));
        assert_eq!(capped.status, 0, "{site}: {}", capped.stderr);
        if ["state", "tail", "live", "segment"].contains(&site) {
            // None of these is needed to count: the cap holds, and what fits is given.
            assert_eq!(capped.stdout, families(Setup::simulated().cap("20GiB")).stdout, "{site}");
        }
    }
    // A trace is recorded without a tail, and where the state's page is a word.
    for site in ["state", "tail", "segment"] {
        let run = families(Setup::simulated().preload().env(FAIL, site)).ok();
        assert!(run.report()["processes"][0]["ended_in_order"].as_bool().unwrap(), "{site}");
    }
    // Without shared memory there is no group budget: every request is refused, and a message gives the reason.
    let group = Setup::simulated().preload().env("VRAMTRACE_CAP_GROUP", "no-segments");
    let group = families(group.env("VRAMTRACE_CAP", "20GiB").env(FAIL, "segment"));
    assert!(group.stderr.contains("a group needs System V shared memory"), "{}", group.stderr);
    assert!(!group.stdout.contains("range"), "nothing was given: {}", group.stdout);
}

/// What has grown large when the memory ends: no table of ours ends the program. Without a cap all
/// that is asked for is given, under a cap what cannot be counted is refused and the cap holds.
#[test]
fn nothing_that_has_grown_ends_the_program() {
    if !has_switches() {
        return;
    }
    const MANY: u32 = 6000;
    let grown = |setup: Setup, over: &[&str]| {
        let setup = setup.env("VRAMTRACE_OOM_REPORT", "off").contradicts();
        let setup = setup.arg("growth").arg(MANY);
        Program::c("exhausted").run(over.iter().fold(setup, Setup::arg))
    };
    let bare = grown(Setup::simulated(), &[]).ok();
    same_as_bare(&bare, &grown(Setup::simulated().preload(), &[]), "growth");
    let off = grown(Setup::simulated().preload().env("VRAMTRACE_OUT", "off"), &[]).ok();
    assert_eq!(off.stdout, bare.stdout);

    let capped = grown(Setup::simulated().cap("20GiB"), &["20480"]).ok();
    // What cannot be counted is not given.
    for part in ["of result 2", "TAKE(&none, over) = 2", "ended, 0 not"] {
        assert!(capped.stdout.contains(part), "{part}: {}", capped.stdout);
    }
}

/// Over a driver that needs no memory. `maps` takes seconds where a process may have very many.
fn limited(setup: Setup, when: &str, what: &str) -> Run {
    let setup = setup.env("LD_LIBRARY_PATH", crate::sanitizers::plain_driver());
    Program::c("limited").run(setup.contradicts().arg(when).arg(what))
}

#[test]
fn limits_of_the_system_do_not_end_the_program() {
    for when in ["start", "later"] {
        for what in ["as", "data", "maps"] {
            let bare = limited(Setup::simulated(), when, what).ok();
            let ours = limited(Setup::simulated().preload(), when, what);
            same_as_bare(&bare, &ours, &format!("{when} {what}"));
            assert!(ours.stderr.contains("recording ends here"), "{when} {what}: {}", ours.stderr);

            let capped = limited(Setup::simulated().cap("100GiB"), when, what);
            assert_eq!(capped.status, 0, "{when} {what}: {}", capped.stderr);
            let refused = |line: &str| line.starts_with("all came back") && !line.ends_with(" 1");
            assert!(!capped.stdout.lines().any(refused), "{when} {what}: {}", capped.stdout);
        }
    }
}
