//! No descriptor of the recorder exists in the program's table, not even during a call: whatever the
//! program does with its numbers, its files and locks stay its own, and every record is there.

use testkit::{InteractiveProgram, Program, Run, Setup};

const FULL: &str = "VRAMTRACE_TEST_FULL";

fn run(what: &str, seconds: u32, setup: Setup) -> Run {
    let setup = setup.arg(what).arg(seconds).timeout(std::time::Duration::from_secs(1200));
    Program::c("descriptors").run(setup).ok()
}

/// The pairs of calls, and that each was recorded. The limit of a trace keeps its totals.
#[track_caller]
fn check(run: &Run, expected: &str) {
    assert!(run.stdout.starts_with(expected), "{}", run.stdout);
    assert_eq!(run.stderr, "");
    let pairs = run.stdout.rsplit_once("pairs ").unwrap().1.trim().parse::<u64>().unwrap();
    let report = run.only_report();
    let number = |name: &str| report["devices"][0][name].as_u64().unwrap();
    assert_eq!(report["ended_in_order"], true);
    assert!(pairs > 1000 && number("frees") == pairs, "{pairs}: {}", number("frees"));
    // One block of each thread stays, and the first one of the program with locks.
    let kept = 8 + u64::from(run.stdout.contains("locked 250"));
    assert_eq!((number("allocations"), number("live_allocations")), (pairs + kept, kept));
}

#[test]
fn numbers_that_the_program_takes_are_its_own() {
    let seconds = if std::env::var_os(FULL).is_some() { 600 } else { 2 };
    let expected = "foreign 0 failed 0 marker 6 locked 0\n";
    check(&run("taken", seconds, Setup::simulated().preload()), expected);
    // A checkpoint may list a block of another thread before its event, which `verify` reports.
    let limited = Setup::simulated().preload().env("VRAMTRACE_MAX", "4MiB").contradicts();
    check(&run("taken", seconds, limited), expected);
    // The other way to a separate table.
    let setup = Setup::simulated().preload().env("VRAMTRACE_TEST_NO_TASKS", "1");
    check(&run("taken", 1, setup), expected);
}

#[test]
fn a_lock_of_the_program_is_kept() {
    let setup = Setup::simulated().preload();
    check(&run("locked", 2, setup), "foreign 0 failed 0 marker 6 locked 250\n");
}

#[test]
fn a_stopped_program_has_the_descriptors_of_the_bare_one() {
    let numbers = |setup: Setup| {
        let mut program = InteractiveProgram::start(setup);
        assert_eq!(program.results("a 2, c 20000"), [0, 0]);
        let entries = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
        let mut numbers: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        numbers.sort();
        numbers
    };
    let bare = numbers(Setup::simulated());
    assert_eq!(numbers(Setup::simulated().preload()), bare);
}

/// At a limit on threads (RLIMIT_NPROC, which root does not have) nothing is recorded.
#[test]
fn where_no_thread_can_be_made_the_program_runs_as_without_us() {
    let program = Program::c("descriptors");
    let setup = |setup: Setup| {
        let setup = setup.through(&["prlimit", "--nproc=1"]).arg("alone").arg(0);
        if testkit::user() == 0 { setup.user(65_534) } else { setup }
    };
    let bare = program.run(setup(Setup::simulated())).ok();
    for cap in [false, true] {
        let preloaded = Setup::simulated().preload();
        let preloaded = if cap { preloaded.cap("64MiB") } else { preloaded };
        let ours = program.run(setup(preloaded.env("VRAMTRACE_OOM_REPORT", "off"))).ok();
        assert_eq!(ours.traces(), [""; 0].map(std::path::PathBuf::from));
        let lines: Vec<_> = ours.stderr.lines().collect();
        assert!(lines.iter().all(|line| line.starts_with("vramtrace: ")), "{lines:?}");
        let of_trace = lines.iter().filter(|line| line.contains("cannot record into"));
        assert_eq!(of_trace.count(), 1, "{lines:?}");
        assert_eq!(bare.stdout, "granted 100 of 100\n");
        let granted = ours.stdout.split(' ').nth(1).unwrap().parse::<u32>().unwrap();
        assert!(if cap { (32..=64).contains(&granted) } else { granted == 100 }, "{granted}");
    }
}
