//! `vramtrace doctor`, and the program of scripts/demo.sh, over the simulated driver.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::{Program, Scratch, shim, sim, sim_dir, vramtrace};

/// `vramtrace doctor ARGS...`, with the simulated driver as this machine's driver.
fn doctor(scratch: &Scratch, args: &[&str]) -> Output {
    shim();
    let mut command = vramtrace();
    command.arg("doctor").args(args).current_dir(&scratch.0);
    for name in ["VRAMTRACE_OUT", "VRAMTRACE_CAP", "VRAMTRACE_RUN", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "2x24GiB");
    command.output().unwrap()
}

fn json(output: &Output) -> Value {
    let printed = String::from_utf8_lossy(&output.stdout);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {printed}"))
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
    let output = doctor(&scratch, &["--json"]);
    let found = json(&output);
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    assert_eq!(found["schema"], "vramtrace.doctor/2");
    let ok = messages(&found, "ok");
    for part in ["entry points", ", 2 devices\n", "1: Simulated ", "24.00 GiB", "NVML "] {
        assert!(ok.contains(part), "{part}: {ok}");
    }
    let text = doctor(&scratch, &[]);
    let printed = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(printed.contains("entry points") && printed.contains("no problem found"), "{printed}");
    assert!(printed.lines().nth(1).unwrap().starts_with("first     record a program"), "{printed}");
    let none = vramtrace().args(["doctor", "nothing-of-this-name"]).output().unwrap();
    let printed = String::from_utf8_lossy(&none.stdout).into_owned();
    assert!(
        none.status.code() == Some(1) && printed.contains("first     give a command"),
        "{printed}"
    );
}

/// As on WSL2, and where a display has a part of the card.
#[test]
fn what_nvml_does_not_know_and_what_others_hold_is_said() {
    let scratch = Scratch::new();
    let notes = |nvml: &str| {
        shim();
        let mut command = vramtrace();
        command
            .args(["doctor", "--json"])
            .env("LD_LIBRARY_PATH", sim_dir())
            .env_remove("LD_PRELOAD");
        command.env("VRAMTRACE_SIM", "1x24GiB").env("VRAMTRACE_SIM_STATE", scratch.0.join("state"));
        let output =
            command.env("VRAMTRACE_SIM_NVML", nvml).env_remove("VRAMTRACE_CAP").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        messages(&json(&output), "note")
    };
    assert_eq!(notes(""), "");
    let card = testkit::Setup::simulated().env("VRAMTRACE_SIM_STATE", scratch.0.join("state"));
    let mut display = testkit::InteractiveProgram::start(card);
    assert_eq!(display.result("a 1000"), 0);
    let found = notes("");
    assert!(
        found.contains("1.49 GiB of GPU 0 are in use by 1 process: a program has the rest"),
        "{found}"
    );
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
    let output = doctor(&scratch, &["--json", "--cap", "0=50%,7=1GiB"]);
    let found = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(messages(&found, "ok").contains("device 0: 12.00 GiB"), "{found:#}");
    assert_eq!(messages(&found, "problem"), "the cap names device 7, which is not visible\n");
    let bad = doctor(&scratch, &["--json", "--cap", "8"]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(messages(&json(&bad), "problem").contains("8GiB"));
}

#[test]
fn a_command_is_run_and_what_it_used_is_printed() {
    let scratch = Scratch::new();
    let client = Program::c("families").0;
    let client = client.to_str().unwrap();
    let output = doctor(&scratch, &["--json", "--simulate", "--", client]);
    let found = json(&output);
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
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_command_that_cannot_be_reached_is_a_problem() {
    let scratch = Scratch::new();
    let missing = doctor(&scratch, &["--json", "--", "no-such-command-here"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(messages(&json(&missing), "problem").contains("no-such-command-here"));
    std::fs::write(scratch.0.join("s.c"), "int main(void) { return 0; }").unwrap();
    let mut gcc = Command::new("gcc");
    let built = gcc.args(["-static", "-o", "s", "s.c"]).current_dir(&scratch.0).status();
    if !built.is_ok_and(|status| status.success()) {
        testkit::skip("static programs: gcc links none");
        return;
    }
    let output = doctor(&scratch, &["--json", "--", "./s"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(messages(&json(&output), "problem").contains("is a static executable"));
}

/// The header of a 32-bit program, which this kernel does not start.
#[test]
fn the_line_of_the_loader_for_a_32_bit_program_is_explained() {
    let scratch = Scratch::new();
    let program = scratch.0.join("old");
    std::fs::write(&program, [&b"\x7fELF\x01\x01\x01"[..], &[0; 57]].concat()).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let output = doctor(&scratch, &["--json", "--", "./old"]);
    let text = messages(&json(&output), "problem");
    assert!(text.contains("(wrong ELF class): ignored"), "{text}");
}

/// What scripts/demo.sh runs.
#[test]
fn the_program_of_the_demo_leaks_and_is_refused() {
    sim();
    shim();
    // A leak is judged over time: where other work stops the program for a while, it looks as if it had ended.
    let found = (0..3).any(|_| demo_shows_its_leak());
    assert!(found, "no leak in three runs");
}

fn demo_shows_its_leak() -> bool {
    let scratch = Scratch::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/demo.c");
    let gcc = Command::new("gcc")
        .args(["-g", "-Wall", "-Werror", "-pthread", "-o", "demo", source, "-ldl"])
        .current_dir(&scratch.0)
        .status();
    assert!(gcc.unwrap().success());
    let run = ["run", "--cap", "4GiB", "--simulate", "--out", "demo.vtrace", "./demo"];
    let ran = vramtrace().args(run).current_dir(&scratch.0).output().unwrap();
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{printed}\n{}", String::from_utf8_lossy(&ran.stderr));
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
