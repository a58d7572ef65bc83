//! Calls in host functions of streams and graphs, which the driver refuses: none of them is counted.

use testkit::{MIB, Program, Setup};

#[test]
fn calls_that_the_driver_refuses_in_host_functions_change_no_figure() {
    let program = Program::c("callbacks");
    let bare = program.run(Setup::simulated()).ok();
    assert_eq!(bare.stdout.matches("free 800 ").count(), 3, "{}", bare.stdout);
    // With room for what there is, and not for a request of a host function.
    for cap in ["", "8GiB", "620MiB"] {
        let setup = Setup::simulated().preload();
        let ours = program.run(if cap.is_empty() { setup } else { setup.cap(cap) }).ok();
        let device = ours.device();
        assert_eq!(device["peak_bytes"], (96 + 518) * MIB, "{cap} {device:#}");
        assert_eq!(device["live_allocations"], 0, "{cap} {device:#}");
        if cap != "620MiB" {
            assert_eq!(ours.stdout, bare.stdout, "{cap}");
            assert_eq!(ours.stderr, "");
        }
    }
}
