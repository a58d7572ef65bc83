//! A library that is refused and does not report it: the post-mortem and the reader name it, whose
//! limit it met, and the error that came next.

use std::path::PathBuf;

use serde_json::json;
use testkit::{Group, Program, Run, Setup, has, permitted};

/// The stand-in, under the name of the library that it stands for. Built once.
fn library() -> PathBuf {
    let flags = ["-std=gnu11", "-O1", "-g", "-shared", "-fPIC"];
    let built = Program::compiled("gcc", "nvshmem_stand_in.c", &flags).0;
    let directory = built.with_extension("d");
    std::fs::create_dir_all(&directory).unwrap();
    let library = directory.join("libnvshmem_host.so");
    // Another thread of this test process may be first.
    let _ = std::fs::hard_link(built, &library);
    library
}

#[track_caller]
fn run(setup: Setup, mib: u64) -> Run {
    let run = Program::c("swallowed").run(setup.arg(library().display()).arg(mib));
    assert_eq!(run.stdout, "heap: 0\nown: 0\nmapped: failed\n", "{}", run.stderr);
    assert_eq!(run.status, 3);
    run
}

#[track_caller]
fn fact(run: &Run) -> serde_json::Value {
    let all = run.scratch.json("oom .");
    let [found] = &all["not_reported"].as_array().unwrap()[..] else { panic!("{all:#}") };
    found.clone()
}

/// The message says `live`; of the trace, `oom` and `report` say these.
#[track_caller]
fn is_said(run: &Run, live: &[&str], parts: &[&str]) {
    assert!(live.iter().all(|part| run.stderr.contains(part)), "{live:?}: {}", run.stderr);
    for command in ["oom .", "report ."] {
        let text = run.scratch.text(command);
        assert!(parts.iter().all(|part| text.contains(part)), "{command}: {parts:?}: {text}");
    }
}

#[test]
fn a_refusal_by_our_cap_is_named_with_the_error_that_followed() {
    let run = run(Setup::simulated().cap("2GiB"), 4096);
    let live = "NVSHMEM was refused 4.00 GiB on cuda:0 by the cap and went on; the next error \
                was cuMemMap";
    let line = "NVSHMEM was refused 4.00 GiB (cuMemCreate) and went on; limit: 2.00 GiB by the cap";
    is_said(&run, &[live], &[line, "cuMemMap returned", "the process ended with status 3"]);
    let found = fact(&run);
    has(&found, json!({ "library": "NVSHMEM", "cause": "cap", "refused_by": "cap" }));
    has(&found, json!({ "size_bytes": 4u64 << 30, "limit_bytes": 2u64 << 30, "exit_status": 3 }));
    has(&found, json!({ "api": "cuMemCreate", "next_api": "cuMemMap" }));
    assert_ne!(found["next_result"], 0);
}

/// Destructors that run when the driver has ended get an error, whatever was refused before.
#[test]
fn an_error_of_the_drivers_end_is_not_the_one_that_followed() {
    let setup = |code: &str| {
        let fault = format!("once-{code}@cuMemMap:1");
        run(Setup::simulated().cap("2GiB").env("VRAMTRACE_SIM_FAULT", fault), 4096)
    };
    let followed = |run: Run| run.stderr.contains("the next error was cuMemMap");
    assert!(followed(setup("1")));
    assert!(!followed(setup("4")));
}

#[test]
fn the_card_and_mps_are_distinguished() {
    // More than the simulated card has.
    let card = run(Setup::simulated().devices("1x8GiB").preload(), 64 << 10);
    has(&fact(&card), json!({ "cause": "card", "refused_by": "driver" }));
    assert!(card.stderr.contains("on cuda:0 by the driver and went on"), "{}", card.stderr);
    // The same where MPS limits the process: the card had too little all the same.
    let setup = Setup::simulated().devices("1x8GiB").preload();
    let mps = run(setup.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G"), 64 << 10);
    assert_eq!(fact(&mps)["cause"], "card");
}

/// The driver refuses what the card has: it is somebody else's limit, as far as the surroundings of the
/// process show whose.
#[test]
fn limits_of_mps_and_of_the_kernel_are_named_where_the_card_had_room() {
    let refuses = || {
        let setup = Setup::simulated().devices("1x8GiB").preload();
        setup.env("VRAMTRACE_SIM_FAULT", "once-2@cuMemCreate:1")
    };
    let mps = run(refuses().env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"), 1024);
    check(&mps, "mps", "what MPS allows");
    // No limit that explains it is known.
    assert_eq!(fact(&run(refuses(), 1024))["cause"], "unknown");
    let cgroup = "mount -t tmpfs tmpfs /sys/fs/cgroup && \
                  echo 'drm/0000:03:00.0/vram0 1073741824' > /sys/fs/cgroup/dmem.max && \
                  exec \"$0\" \"$@\"";
    let launcher = ["unshare", "--mount", "--propagation", "private", "sh", "-c", cgroup];
    if !permitted(&launcher) {
        return;
    }
    let cgroup = run(refuses().through(&launcher), 1024);
    check(&cgroup, "cgroup", "what the kernel's cgroup allows");
    // Where the card itself had too little memory, the trace names the card.
    let card = run(Setup::simulated().devices("1x8GiB").preload().through(&launcher), 64 << 10);
    assert_eq!(fact(&card)["cause"], "card");
}

#[track_caller]
fn check(run: &Run, cause: &str, word: &str) {
    is_said(run, &["by the driver and went on"], &["NVSHMEM was refused 1.00 GiB", word]);
    has(&fact(run), json!({ "cause": cause, "refused_by": "driver" }));
}

#[test]
fn a_group_is_named() {
    let group = Group::new("swallowed");
    let run = run(Setup::simulated().cap("2GiB").env("VRAMTRACE_CAP_GROUP", &group.0), 4096);
    assert_eq!(fact(&run)["refused_by"], "group");
    let of_trace = "and went on; limit: 2.00 GiB by the group's cap";
    is_said(&run, &["by the group's cap and went on"], &[of_trace]);
}

#[test]
fn nothing_is_said_with_the_report_off_and_nothing_without_a_refusal() {
    let quiet = run(Setup::simulated().cap("2GiB").env("VRAMTRACE_OOM_REPORT", "off"), 4096);
    assert_eq!(fact(&quiet.quiet())["exit_status"], 3);
    let setup = Setup::simulated().cap("8GiB").arg(library().display()).arg(64);
    let fits = Program::c("swallowed").run(setup).ok().quiet();
    assert_eq!(fits.stdout, "heap: 0\nown: 0\nmapped: done\n");
}
