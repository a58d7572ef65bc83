//! A library that is refused and does not report it: the post-mortem and the reader name it, whose
//! limit it met, and the error that came next.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;
use testkit::{Program, Run, Setup, has, repository, vramtrace};

/// The stand-in, under the name of the library that it stands for. Built once.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = testkit::temporary().join(format!("nvshmem-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let library = directory.join("libnvshmem_host.so");
        let built = Command::new("gcc")
            .args(["-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(repository().join("tests/programs/nvshmem_stand_in.c"))
            .arg("-ldl")
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        library
    })
}

#[track_caller]
fn run(setup: Setup, mib: u64) -> Run {
    let run = Program::c("swallowed").run(setup.arg(library().display()).arg(mib));
    assert_eq!(run.stdout, "heap: 0\nown: 0\nmapped: failed\n", "{}", run.stderr);
    assert_eq!(run.status, 3);
    run
}

fn reader(run: &Run, arguments: &[&str]) -> String {
    let trace = run.only_trace();
    let output = vramtrace().args(arguments).arg(&trace).env("NO_COLOR", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fact(run: &Run) -> serde_json::Value {
    let text = reader(run, &["oom", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = all["not_reported"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{all:#}");
    found[0].clone()
}

#[test]
fn a_refusal_by_our_cap_is_named_with_the_error_that_followed() {
    let run = run(Setup::simulated().cap("2GiB"), 4096);
    let line = "NVSHMEM was refused 4.00 GiB on cuda:0 by VRAMTRACE_CAP and went on; the next error \
                was cuMemMap";
    assert!(run.stderr.contains(line), "{}", run.stderr);
    assert!(run.stderr.contains("the process ended with status 3"), "{}", run.stderr);
    let found = fact(&run);
    has(
        &found,
        json!({
            "library": "NVSHMEM", "cause": "cap", "refused_by": "cap", "size_bytes": 4u64 << 30,
            "limit_bytes": 2u64 << 30, "api": "cuMemCreate", "next_api": "cuMemMap"
        }),
    );
    assert_ne!(found["next_result"], 0);
    assert_eq!(found["exit_status"], 3);
    for command in ["oom", "report"] {
        let text = reader(&run, &[command]);
        let line = "NVSHMEM was refused 4.00 GiB (cuMemCreate) by the cap of 2.00 GiB, and went on";
        assert!(text.contains(line), "{command}: {text}");
        assert!(text.contains("cuMemMap returned"), "{command}: {text}");
        assert!(text.contains("the process ended with status 3"), "{command}: {text}");
    }
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
    let found = fact(&card);
    has(&found, json!({ "cause": "card", "refused_by": "driver" }));
    assert!(card.stderr.contains("on cuda:0 by the card and went on"), "{}", card.stderr);
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
    check(&mps, "mps", "by MPS (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) and went on", "by MPS");
    // No limit but the card's own is known.
    assert_eq!(fact(&run(refuses(), 1024))["cause"], "card");
    let cgroup = "mount -t tmpfs tmpfs /sys/fs/cgroup && \
                  echo 'drm/0000:03:00.0/vram0 1073741824' > /sys/fs/cgroup/dmem.max && \
                  exec \"$0\" \"$@\"";
    let launcher = ["unshare", "--mount", "--propagation", "private", "sh", "-c", cgroup];
    let may = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
    if !may.is_ok_and(|ran| ran.status.success()) {
        testkit::skip_here("unshare --mount and mount are not permitted");
        return;
    }
    let cgroup = run(refuses().through(&launcher), 1024);
    check(
        &cgroup,
        "cgroup",
        "by the kernel's cgroup (dmem.max) and went on",
        "by the kernel's cgroup",
    );
    // Where the card itself had too little memory, the message names the card.
    let card = run(Setup::simulated().devices("1x8GiB").preload().through(&launcher), 64 << 10);
    assert_eq!(fact(&card)["cause"], "card");
}

#[track_caller]
fn check(run: &Run, cause: &str, live: &str, word: &str) {
    assert!(run.stderr.contains(live), "{}", run.stderr);
    let found = fact(run);
    has(&found, json!({ "cause": cause, "refused_by": "driver" }));
    for command in ["oom", "report"] {
        let text = reader(run, &[command]);
        let line = text.lines().find(|line| line.contains("NVSHMEM was refused 1.00 GiB"));
        assert!(line.is_some_and(|line| line.contains(word)), "{command}: {text}");
    }
}

#[test]
fn a_group_is_named() {
    let name = format!("swallowed-{}", std::process::id());
    let setup = Setup::simulated().cap("2GiB").env("VRAMTRACE_CAP_GROUP", name);
    let group = run(setup, 4096);
    assert_eq!(fact(&group)["refused_by"], "group");
    assert!(group.stderr.contains("by the group's cap and went on"), "{}", group.stderr);
    for command in ["oom", "report"] {
        let text = reader(&group, &[command]);
        assert!(text.contains("by the group's cap of 2.00 GiB, and went on"), "{command}: {text}");
    }
}

#[test]
fn nothing_is_said_with_the_report_off_and_nothing_without_a_refusal() {
    let quiet = run(Setup::simulated().cap("2GiB").env("VRAMTRACE_OOM_REPORT", "off"), 4096);
    assert_eq!(quiet.stderr, "");
    assert_eq!(fact(&quiet)["exit_status"], 3);
    let fits = Program::c("swallowed")
        .run(Setup::simulated().cap("8GiB").arg(library().display()).arg(64))
        .ok();
    assert_eq!(
        (fits.stdout.as_str(), fits.stderr.as_str()),
        ("heap: 0\nown: 0\nmapped: done\n", "")
    );
}
