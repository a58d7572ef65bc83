//! Programs that use the system in uncommon ways: io_uring, an auditor of the loader.

use testkit::{Program, Setup};

/// A ring has registered files and buffers, and a thread of the kernel: none of them is disturbed. Where the
/// system has no io_uring, the program says so in both runs.
#[test]
fn rings_read_what_they_read_without_us() {
    let ours = Program::c("rings").as_bare(Setup::simulated(), Setup::preload).quiet().ok();
    assert_eq!(ours.stdout.lines().count(), 2, "{}", ours.stdout);
    assert_eq!(ours.device()["live_bytes"], 0);
}

/// The auditor has a C library of its own in another namespace.
#[test]
fn programs_below_an_auditor_run_as_without_us_and_are_recorded() {
    let auditor = Program::compiled("gcc", "auditor.c", &["-O1", "-shared", "-fPIC"]).0;
    for name in ["families", "graphs"] {
        let setup = Setup::simulated().arg("all").env("LD_AUDIT", auditor.as_os_str());
        let ours = Program::c(name).as_bare(setup, Setup::preload).quiet().ok();
        assert_ne!(ours.device()["peak_bytes"], 0, "{name}");
    }
}
