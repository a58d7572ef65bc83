//! Where the system gives no memory to us, the program does as it does without us: same output,
//! same end. Recording ends, with one line. Under a cap it may be refused, cleanly.

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

#[test]
fn each_request_of_ours_may_fail() {
    if !cfg!(debug_assertions) {
        println!("SKIP: built without assertions");
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

/// Over a driver that needs no memory. `maps` takes seconds where a process may have very many.
fn limited(setup: Setup, when: &str, what: &str) -> Run {
    let setup = setup.env("LD_LIBRARY_PATH", crate::sanitizers::plain_driver());
    Program::c("limited").run(setup.arg(when).arg(what))
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
