//! `vramtrace doctor`, and the program of scripts/demo.sh, over the simulated driver.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use testkit::{InteractiveProgram, Program, Said, Scratch, Setup, shim, sim_dir};

/// `vramtrace doctor ARGS...`, with the simulated driver as this machine's driver.
fn doctor(scratch: &Scratch, args: &[&str]) -> Command {
    shim();
    let mut command = scratch.command(&[&["doctor"], args].concat());
    command.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "2x24GiB");
    command
}

/// Its document, after it ended with this status.
#[track_caller]
fn found(scratch: &Scratch, code: i32, args: &[&str]) -> Value {
    Said::by(&mut doctor(scratch, &[&["--json"], args].concat())).ended(code).json()
}

/// The messages of the checks with this status, a line each.
fn messages(found: &Value, status: &str) -> String {
    let of_status = |check: &&Value| check["status"] == status;
    let checks = found["checks"].as_array().unwrap().iter().filter(of_status);
    checks.map(|check| check["message"].as_str().unwrap().to_string() + "\n").collect()
}

#[test]
fn what_is_there_is_found() {
    let scratch = Scratch::new();
    let ok = messages(&found(&scratch, 0, &[]), "ok");
    for part in ["entry points", ", 2 devices\n", "1: Simulated ", "24.00 GiB", "NVML "] {
        assert!(ok.contains(part), "{part}: {ok}");
    }
    let printed = Said::by(&mut doctor(&scratch, &[])).out;
    assert!(printed.contains("entry points") && printed.contains("no problem found"), "{printed}");
    assert!(printed.lines().nth(1).unwrap().starts_with("first     record a program"), "{printed}");
    let none = scratch.says(&["doctor", "nothing-of-this-name"]).ended(1);
    assert!(none.out.contains("first     give a command"), "{}", none.out);
}

/// As on WSL2, and where a display has a part of the card.
#[test]
fn what_nvml_does_not_know_and_what_others_hold_is_said() {
    let scratch = Scratch::new();
    let notes = |nvml: &str| {
        let mut command = doctor(&scratch, &["--json"]);
        command.env("VRAMTRACE_SIM", "1x24GiB").env("VRAMTRACE_SIM_STATE", scratch.0.join("state"));
        let found = Said::by(command.env("VRAMTRACE_SIM_NVML", nvml)).ended(0).json();
        messages(&found, "note")
    };
    assert_eq!(notes(""), "");
    let card = Setup::simulated().env("VRAMTRACE_SIM_STATE", scratch.0.join("state"));
    let mut display = InteractiveProgram::start(card);
    assert_eq!(display.result("a 1000"), 0);
    let found = notes("");
    let used = "1.49 GiB of GPU 0 are in use by 1 process: a program has the rest";
    assert!(found.contains(used), "{found}");
    assert!(!found.contains("no memory by process"), "{found}");
    for (nvml, begin) in
        [("absent", "without NVML ("), ("no-figures", "NVML has no memory by process here")]
    {
        let found = notes(nvml);
        assert!(found.contains(begin), "{nvml}: {found}");
        assert!(found.contains("the headline is what was recorded"), "{nvml}: {found}");
    }
}

#[test]
fn a_cap_is_judged_by_the_devices_that_are_there() {
    let scratch = Scratch::new();
    let named = found(&scratch, 1, &["--cap", "0=50%,7=1GiB"]);
    assert!(messages(&named, "ok").contains("device 0: 12.00 GiB"), "{named:#}");
    assert_eq!(messages(&named, "problem"), "the cap names device 7, which is not visible\n");
    let bad = found(&scratch, 1, &["--cap", "8"]);
    assert!(messages(&bad, "problem").contains("8GiB"));
}

#[test]
fn a_command_is_run_and_what_it_used_is_printed() {
    let scratch = Scratch::new();
    let client = Program::c("families").0;
    let client = client.to_str().unwrap();
    let found = found(&scratch, 0, &["--simulate", "--", client]);
    let used = messages(&found, "ok");
    assert!(used.contains("exit 0; 1 process with a trace\n"), "{used}");
    for (api, least) in [
        ("cuMemAlloc_v2", 3),
        ("cuMemAllocPitch_v2", 1),
        ("cuMemAllocManaged", 1),
        ("cuMemAllocAsync", 1),
        ("cuMemAllocFromPoolAsync", 1),
        ("cuMemCreate", 1),
        ("cuArrayCreate_v2", 1),
        ("cuMipmappedArrayCreate", 1),
        ("cuMemHostAlloc", 1),
    ] {
        let at = used.find(&format!("{api}: ")).unwrap_or_else(|| panic!("{api}: {used}"));
        let calls = used[at..].split(' ').nth(1).unwrap().parse::<u64>().unwrap();
        assert!(calls >= least, "{api}: {calls} in {used}");
    }
    assert_eq!(messages(&found, "problem"), "");
}

#[test]
fn a_command_that_cannot_be_reached_is_a_problem() {
    let scratch = Scratch::new();
    let problem = |command| messages(&found(&scratch, 1, &["--", command]), "problem");
    assert!(problem("no-such-command-here").contains("no-such-command-here"));
    // The header of a 32-bit program, which this kernel does not start: the loader's line is explained.
    scratch.write("old", [&b"\x7fELF\x01\x01\x01"[..], &[0; 57]].concat());
    let mode = PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(scratch.0.join("old"), mode).unwrap();
    assert!(problem("./old").contains("(wrong ELF class): ignored"));
    scratch.shell("echo 'int main(void) { return 0; }' > s.c; gcc -static -o s s.c 2> why || true");
    if !scratch.0.join("s").exists() {
        testkit::skip("static programs: gcc links none");
        return;
    }
    assert!(problem("./s").contains("is a static executable"));
}

/// What scripts/demo.sh runs.
#[test]
fn the_program_of_the_demo_leaks_and_is_refused() {
    // A leak is judged over time: where other work stops the program for a while, it looks as if it had ended.
    let found = (0..3).any(|_| demo_shows_its_leak());
    assert!(found, "no leak in three runs");
}

fn demo_shows_its_leak() -> bool {
    let scratch = Scratch::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/demo.c");
    scratch.shell(&format!("gcc -g -Wall -Werror -pthread -o demo {source} -ldl"));
    let run = "run --cap 4GiB --simulate --out demo.vtrace ./demo";
    let printed = scratch.text(run);
    assert!(printed.contains("4096 MiB refused"), "{printed}");
    let report = testkit::report(&[scratch.0.join("demo.vtrace")]);
    let device = &report["processes"][0]["devices"][0];
    assert_eq!(device["refused_by_cap"], 2, "{device:#}");
    assert_eq!(device["cap_bytes"].as_u64(), Some(4 << 30));
    // 375 blocks that keep a page each, and the leak's pieces of 2 MiB.
    let live = device["live_allocations"].as_u64().unwrap();
    assert!(live > 375 + 12, "{device:#}");
    assert_eq!(device["live_bytes"].as_u64(), Some(live << 21), "{device:#}");
    let leaks = scratch.json("leaks demo.vtrace");
    let [leak] = &leaks["leaks"].as_array().unwrap()[..] else {
        eprintln!("{leaks:#}");
        return false;
    };
    assert_eq!(leak["verdict"], "growing");
    assert!(leak["frames"].to_string().contains("keep_history"), "{leak:#}");
    true
}
