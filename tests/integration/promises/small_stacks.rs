//! Threads and fibers with little stack make their first call and all others as without us.

use testkit::{Program, Setup};

#[test]
fn calls_on_small_stacks_are_as_without_us() {
    let program = Program::c("small_stacks");
    for (kind, sizes) in [("thread", &[16, 20, 32, 48][..]), ("fiber", &[16, 32])] {
        for kib in sizes {
            let setup = || {
                let driver = crate::sanitizers::plain_driver();
                Setup::simulated().env("LD_LIBRARY_PATH", driver).arg(kind).arg(kib)
            };
            for stacks in ["native,python", "native", "none"] {
                let with = |setup: Setup| setup.preload().env("VRAMTRACE_STACKS", stacks);
                let ours = program.as_bare(setup(), with).quiet().ok();
                assert_eq!(ours.device()["allocations"], 5000, "{kind} {kib} {stacks}");
            }
            program.as_bare(setup(), |setup| setup.cap("1GiB")).ok();
        }
    }
}

/// So many threads at the same time that each separate stack is in use, and where no more can be mapped: nothing is counted
/// wrong, and no call faults.
#[test]
fn calls_of_many_threads_on_small_stacks_are_as_without_us() {
    const THREADS: u64 = 64;
    let program = Program::c("small_stacks");
    let setup = |preload: fn(Setup) -> Setup| {
        let driver = crate::sanitizers::plain_driver();
        let setup = Setup::simulated().env("LD_LIBRARY_PATH", driver).arg("thread").arg(16);
        preload(setup.arg(THREADS).timeout(std::time::Duration::from_secs(120)))
    };
    let ours = program.as_bare(setup(|setup| setup), Setup::preload).quiet().ok();
    assert_eq!(ours.device()["allocations"], 5000 * THREADS + 100);
    // Without the context, which is measured in time.
    let none = |setup: Setup| {
        let setup = setup.cap("1GiB").env("VRAMTRACE_SIM_NVML", "absent");
        setup.env("VRAMTRACE_TEST_NO_PAGES", "stack")
    };
    let without = program.run(setup(none)).ok();
    assert_eq!(without.stdout, ours.stdout.replace("pieces 100", "pieces 64"));
    assert!(without.stderr.matches("host memory").count() <= 1, "{}", without.stderr);
}

/// A main thread's stack grows as it is touched. How far it reaches is asked once for a stretch of it, not
/// at each call: no call costs a call of the system.
#[test]
fn deep_in_the_main_thread_a_call_asks_the_system_nothing() {
    let program = Program::compiled("gcc", "deep.c", &["-std=gnu11", "-O1", "-rdynamic", "-ldl"]);
    for kib in [4, 60, 300, 2000] {
        let run = program.run(Setup::simulated().preload().arg(kib).arg(2000)).ok();
        let asked: u32 = run.stdout.trim().strip_prefix("asked ").unwrap().parse().unwrap();
        assert!(asked < 40, "{kib} KiB deep: {asked} times in 4000 calls");
        assert_eq!(run.device()["allocations"], 2000);
    }
}
