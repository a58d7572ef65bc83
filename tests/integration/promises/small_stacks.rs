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
            let bare = program.run(setup()).ok();
            for stacks in ["native,python", "native", "none"] {
                let ours = program.run(setup().preload().env("VRAMTRACE_STACKS", stacks));
                assert_eq!(ours.status, 0, "{kind} {kib} {stacks}: {}", ours.stderr);
                assert_eq!((&*ours.stdout, &*ours.stderr), (&*bare.stdout, ""), "{kind} {kib}");
                let process = ours.only_report();
                assert_eq!(process["devices"][0]["allocations"], 40000, "{kind} {kib} {stacks}");
            }
            let capped = program.run(setup().cap("1GiB")).ok();
            assert_eq!(capped.stdout, bare.stdout, "{kind} {kib}");
        }
    }
}
