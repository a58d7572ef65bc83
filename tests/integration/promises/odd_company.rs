//! Programs that use the system in uncommon ways: io_uring, an auditor of the loader.

use testkit::{Program, Setup};

/// A ring has registered files and buffers, and a thread of the kernel: none of them is disturbed. Where the
/// system has no io_uring, the program says so in both runs.
#[test]
fn rings_read_what_they_read_without_us() {
    let program = Program::c("rings");
    let bare = program.run(Setup::simulated()).ok();
    let ours = program.run(Setup::simulated().preload()).ok();
    assert_eq!(bare.stdout.lines().count(), 2, "{}", bare.stdout);
    assert_eq!(ours.stdout, bare.stdout);
    assert_eq!(ours.stderr, "");
    assert_eq!(ours.only_report()["devices"][0]["live_bytes"], 0);
}

/// The auditor has a C library of its own in another namespace.
#[test]
fn programs_below_an_auditor_run_as_without_us_and_are_recorded() {
    let auditor = Program::compiled("gcc", "auditor.c", &["-O1", "-shared", "-fPIC"]).0;
    for (name, how) in [("families", "all"), ("graphs", "all")] {
        let program = Program::c(name);
        let setup = Setup::simulated().arg(how).env("LD_AUDIT", auditor.as_os_str());
        let bare = program.run(setup.clone()).ok();
        let ours = program.run(setup.preload()).ok();
        assert_eq!((&ours.stdout, &ours.stderr), (&bare.stdout, &bare.stderr), "{name}");
        let report = ours.only_report();
        assert_ne!(report["devices"][0]["peak_bytes"], 0, "{name} {report:#}");
    }
}
