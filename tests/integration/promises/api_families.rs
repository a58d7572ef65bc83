//! Each way to ask the driver for memory answers under the preload as the bare driver does, also below a wide cap, and the
//! ledger has each allocation once, with its kind. The programs print results and sizes, no addresses.

use serde_json::{Value, json};
use testkit::{MIB, Program, Run, Setup, has};

/// The size of one in `vmm.c`.
const OBJECT: u64 = 20 * MIB;

/// An argument; how often the driver refused; of each kind the allocations, the peak and what is left, in MiB.
type Way = (&'static str, u64, &'static [(&'static str, u64, u64, u64)]);

#[track_caller]
fn answers(program: &str, how: &str) -> Run {
    let program = Program::c(program);
    // Some end with a refused request.
    let setup = Setup::simulated().arg(how).env("VRAMTRACE_OOM_REPORT", "off");
    let ours = program.as_bare(setup.clone(), Setup::preload).quiet().ok();
    let capped = program.run(setup.cap("20GiB")).quiet().ok();
    let as_ours = capped.stdout.replace("total 20480 MiB", "total 24576 MiB");
    assert_eq!(as_ours, ours.stdout, "{how}: a wide cap changes no answer");
    ours
}

/// What a process had of each kind of memory.
fn kinds(process: &Value) -> Vec<(&str, u64, u64, u64)> {
    let of_device = process["devices"][0]["by_kind"].as_object().unwrap().iter();
    let host = ("host", &process["host_pinned"]);
    let all = of_device.map(|(kind, of)| (kind.as_str(), of)).chain([host]);
    let row = |(kind, of): (_, &Value)| {
        let number = |figure: &str| of[figure].as_u64().unwrap();
        let [peak, live] = ["peak_bytes", "live_bytes"].map(|figure| number(figure) / MIB);
        (kind, number("allocations"), peak, live)
    };
    all.map(row).filter(|(_, allocations, ..)| *allocations > 0).collect()
}

#[track_caller]
fn each(program: &str, ways: &[Way]) {
    for (how, refused, wanted) in ways {
        let process = answers(program, how).only_report();
        assert_eq!(kinds(&process), *wanted, "{how}");
        let left: u64 = wanted.iter().map(|(.., live)| live * MIB).sum();
        let device = &process["devices"][0];
        let refused = json!({ "refused_by_driver": refused, "refused_by_cap": 0 });
        has(device, refused);
        has(device, json!({ "live_bytes": left }));
        assert!(left > 0 || device["allocations"] == device["frees"], "{how}: {device:#}");
        assert_eq!(process["ended_in_order"], true, "{how}");
    }
}

#[test]
fn each_family_is_recorded_in_pages_and_freed() {
    const ALL: &[(&str, u64, u64, u64)] = &[
        ("array", 2, 256, 0),
        ("device", 3, 10, 0),
        ("graph", 1, 224, 0),
        ("managed", 1, 6, 0),
        ("mipmapped", 1, 86, 0),
        ("pitched", 1, 2, 0),
        ("pool", 3, 128, 0),
        ("vmm", 1, 64, 0),
        ("host", 2, 2, 0),
    ];
    let ways: [Way; 10] = [
        // 1,000 B take a page of 2 MiB, 3 MiB take two; refused: 2^45 bytes.
        ("device", 1, &[("device", 2, 6, 0)]),
        ("pitched", 0, &[("pitched", 1, 2, 0)]),
        ("managed", 0, &[("managed", 1, 6, 0)]),
        // 1,000 B reserve 32 MiB and 100 MiB reserve 128.
        ("pool", 1, &[("pool", 3, 128, 0)]),
        ("vmm", 1, &[("vmm", 1, 64, 0)]),
        ("array", 0, &[("array", 2, 256, 0), ("mipmapped", 1, 86, 0)]),
        ("host", 0, &[("host", 2, 2, 0)]),
        ("graph", 0, &[("graph", 1, 224, 0)]),
        ("context", 0, &[("device", 1, 10, 0)]),
        ("all", 3, ALL),
    ];
    each("families", &ways);
}

/// Contexts are counted as the driver counts them, and what ends with one leaves the ledger.
#[test]
fn what_ends_with_a_context_leaves_the_ledger() {
    const LEFT: &[(&str, u64, u64, u64)] = &[
        ("array", 1, 4, 0),
        ("device", 1, 10, 0),
        ("managed", 1, 6, 0),
        ("pool", 1, 32, 0),
        ("vmm", 1, 4, 0),
        ("host", 1, 1, 0),
    ];
    let ways: [Way; 6] = [
        // The last release of the primary context frees its memory. A reset does, and the count stays.
        ("primary", 0, &[("device", 3, 20, 0)]),
        ("reset", 0, &[("device", 3, 20, 0)]),
        // Work after a reset goes on in the same primary context.
        ("reset_on", 0, &[("device", 25, 1024, 0)]),
        // A capture ends with its stream or its context.
        ("captures", 0, &[("device", 7, 12288, 0), ("pool", 7, 12288, 0)]),
        // A destroyed context takes its own, and leaves what outlives it.
        ("destroy", 0, LEFT),
        // Handles that come again are other contexts.
        ("many", 0, &[("device", 20, 2, 0)]),
    ];
    each("contexts", &ways);
    // A thread without a context gets the driver's answers.
    for change in [Setup::preload, |setup: Setup| setup.cap("1GiB")] {
        Program::c("contexts").as_bare(Setup::simulated().arg("nowhere"), change).ok();
    }
}

/// Physical objects end when handles, mappings and binds are all gone, in whatever order.
#[test]
fn objects_live_until_their_last_reference() {
    let ways: [Way; 8] = [
        ("nccl", 0, &[("vmm", 1, 20, 0)]),
        // Looking at live memory does not free it; released first it lives until the last unmap.
        ("inspect", 0, &[("vmm", 1, 20, 0)]),
        ("release_first", 0, &[("vmm", 1, 20, 0)]),
        // One unmap ends several whole and partial maps.
        ("ranges", 0, &[("vmm", 3, 60, 0)]),
        ("leave", 0, &[("vmm", 2, 40, 40)]),
        // Handles that are used again are other objects.
        ("reuse", 0, &[("vmm", 50, 20, 0)]),
        ("host", 0, &[("host", 1, 20, 0)]),
        ("import", 0, &[("imported", 1, 20, 0), ("vmm", 1, 20, 0)]),
    ];
    each("vmm", &ways);
    let threads = answers("vmm", "threads").device();
    let vmm = &threads["by_kind"]["vmm"];
    has(vmm, json!({ "allocations": 8 * 300 + 1, "live_bytes": 0 }));
    assert_eq!(threads["allocations"], threads["frees"], "no reference was lost: {threads:#}");
    assert!(vmm["peak_bytes"].as_u64().unwrap() <= 9 * OBJECT, "{threads:#}");
}

#[test]
fn objects_fill_a_cap_and_not_a_byte_more() {
    let run = Program::c("vmm").run(Setup::simulated().cap("1GiB").arg("fill")).ok();
    assert!(run.stdout.contains("refused with 2, untouched 1"), "{}", run.stdout);
    assert!(run.stdout.contains("total 1024 MiB, free below one object 1"), "{}", run.stdout);
    let device = run.device();
    let peak = device["peak_bytes"].as_u64().unwrap();
    assert!(peak <= 1 << 30 && peak + OBJECT > 1 << 30, "{device:#}");
    has(&device, json!({ "refused_by_cap": 1, "live_bytes": 0 }));
}

/// However a program looks up the driver: original versions as cudart asks, the newest through the pointer that it gives for
/// itself, legacy and per-thread default streams.
#[test]
fn each_way_to_look_up_the_driver_records_each_allocation_once() {
    const WAYS: &str =
        "dlsym default dlsym-of-dlsym next proc1-0 proc1-1 proc1-2 proc2-0 proc2-1 proc2-2";
    for how in WAYS.split(' ') {
        let device = answers("lookups", how).device();
        has(&device, json!({ "allocations": 2, "frees": 2 }));
        let of_device = json!({ "allocations": 1, "peak_bytes": 4 * MIB, "live_bytes": 0 });
        has(&device["by_kind"]["device"], of_device);
        has(&device["by_kind"]["pool"], json!({ "allocations": 1 }));
    }
}
