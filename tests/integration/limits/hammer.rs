//! 16 threads near a cap: never a byte over in the ledger's count, nothing lost; and with no cap
//! nothing differs from the bare run.

use std::time::Duration;
use testkit::{Program, Setup};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// 100,000 calls a thread when asked for the whole test (`VRAMTRACE_TEST_FULL=1`), else 10,000.
fn calls() -> u32 {
    if std::env::var_os("VRAMTRACE_TEST_FULL").is_some() { 100_000 } else { 10_000 }
}

fn setup() -> Setup {
    Setup::simulated().arg(16).arg(calls()).timeout(Duration::from_secs(600))
}

/// (asked, granted) summed over the kinds.
fn sums(stdout: &str) -> (u64, u64) {
    stdout.lines().fold((0, 0), |(asked, granted), line| {
        let words: Vec<&str> = line.split(' ').collect();
        (asked + words[2].parse::<u64>().unwrap(), granted + words[4].parse::<u64>().unwrap())
    })
}

#[test]
fn never_past_the_cap_by_a_byte() {
    let run = Program::c("hammer").run(setup().cap("2GiB")).ok();
    let (asked, granted) = sums(&run.stdout);
    assert!(granted < asked, "the cap never bit: the test proves nothing\n{}", run.stdout);
    assert!(granted > asked / 10, "hardly anything was granted\n{}", run.stdout);
    let process = run.only_report();
    let device = &process["devices"][0];
    assert_eq!(device["cap_bytes"], 2 * GIB);
    assert_eq!(device["live_bytes"], 0, "a reservation was lost: {device:#}");
    assert_eq!(device["live_allocations"], 0);
    assert_eq!(device["refused_by_cap"].as_u64().unwrap(), asked - granted, "{device:#}");
    assert_eq!(device["refused_by_driver"], 0);
    let peak = device["peak_bytes"].as_u64().unwrap();
    assert!(peak <= 2 * GIB, "peak {peak}");
    // The simulated driver's own figure: at most one pool step over.
    if let Some(most) = device["peak_process_bytes"].as_u64() {
        assert!(most <= 2 * GIB + 32 * MIB, "NVML saw {most}");
    }
}

#[test]
fn without_a_cap_every_result_is_the_drivers() {
    let program = Program::c("hammer");
    let bare = program.run(setup()).ok();
    let ours = program.run(setup().preload()).ok();
    assert_eq!(ours.stdout, bare.stdout);
    let process = ours.only_report();
    let device = &process["devices"][0];
    assert_eq!(device["live_allocations"], 0, "{device:#}");
    let (_, granted) = sums(&ours.stdout);
    assert_eq!(device["allocations"].as_u64().unwrap(), granted);
}
