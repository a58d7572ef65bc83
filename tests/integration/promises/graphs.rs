//! Memory of CUDA graphs: captured nodes are no memory until their graph runs, and a cap refuses
//! them there.

use serde_json::json;
use testkit::{MIB, Program, Setup, has};

#[test]
fn every_launch_takes_and_every_way_of_freeing_gives_back() {
    let program = Program::c("graphs");
    let device = program.as_bare(Setup::simulated(), Setup::preload).ok().device();
    let graph = &device["by_kind"]["graph"];
    // Two launches, two that the driver let through, three that free what the last one left, one of a graph that was recaptured.
    has(graph, json!({ "allocations": 8, "peak_bytes": 64 * MIB }));
    assert_eq!(device["allocations"], device["frees"], "{device:#}");
    assert_eq!(device["live_bytes"], 0, "{device:#}");
    assert_eq!(device["by_kind"]["device"]["allocations"], 1, "cuMemAlloc beside a capture");
    assert_eq!(device["by_kind"]["pool"]["allocations"], 2, "cuMemAllocAsync after the captures");
}

#[test]
fn a_cap_refuses_at_upload_and_launch_not_at_capture() {
    let program = Program::c("graphs");
    // The context takes 518 MiB; 64 MiB more do not fit.
    let run = program.run(Setup::simulated().cap("560MiB")).ok();
    let refused =
        |call: &str| run.stdout.lines().filter(|l| l.contains(call) && l.ends_with("= 2")).count();
    assert_eq!((refused("cuGraphUpload"), refused("cuGraphLaunch")), (1, 9), "{}", run.stdout);
    assert_eq!((refused("cuMemAllocAsync"), refused("cuGraphInstantiate")), (0, 0));
    assert!(!run.stdout.contains("reserved 67108864"), "{}", run.stdout);
    let device = run.device();
    assert_eq!(device["refused_by_cap"], 10, "{device:#}");
    assert_eq!(device["by_kind"]["graph"]["allocations"], 0, "{device:#}");
}
