//! Servers of language models size their cache by what is free when they start. Two of them on one
//! card, each under its cap, take what each would take alone, in whatever order their steps come.

use serde_json::json;
use testkit::{InteractiveProgram, Scratch, Setup, has};

const MIB: u64 = 1 << 20;
const CAP: u64 = 10 << 10;
/// "go", and a line before each step: load, run, measure, take.
const STEPS: usize = 5;

/// A card that two caps fill to the byte. (The driver's figure for each context is a little above
/// NVML's, which counts.)
fn card(state: &Scratch) -> Setup {
    Setup::simulated()
        .devices(&format!("1x{}MiB", 2.0 * (CAP as f64 + 8.8125)))
        .env("VRAMTRACE_SIM_STATE", state.0.join("state"))
        .arg(90)
}

fn capped(state: &Scratch) -> Setup {
    card(state).cap(&format!("{CAP}MiB"))
}

fn start(setup: Setup) -> InteractiveProgram {
    InteractiveProgram::start_as("kv_service", setup)
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    blocks: u64,
    /// MiB that it takes for its own beside its allocations.
    growth: u64,
    failed: bool,
}

#[track_caller]
fn outcome(service: &mut InteractiveProgram) -> Outcome {
    let line = service.answer();
    let words: Vec<&str> = line.split(' ').collect();
    let number = |name: &str| -> u64 {
        let at = words.iter().position(|word| *word == name);
        let at = at.unwrap_or_else(|| panic!("no {name}: {line}; {}", service.stderr()));
        words[at + 1].parse().unwrap()
    };
    Outcome { blocks: number("blocks"), growth: number("growth"), failed: number("failed") == 1 }
}

fn alone() -> Outcome {
    let state = Scratch::new();
    let mut service = start(capped(&state));
    service.order("go");
    let alone = outcome(&mut service);
    // 90 % of the cap, less model, largest batch and kernels, in blocks of 16 MiB.
    let room = CAP * 9 / 10 - 24 * 64 - 1500 - alone.growth;
    assert!(!alone.failed && alone.blocks.abs_diff(room / 16) <= 1, "{alone:?}");
    alone
}

#[track_caller]
fn kept_its_cap(service: &mut InteractiveProgram) {
    let device = service.end()["devices"][0].clone();
    has(&device, json!({ "refused_by_driver": 0, "refused_by_cap": 0 }));
    assert!(device["peak_process_bytes"].as_u64().unwrap() <= CAP * MIB, "{device:#}");
}

fn full() -> bool {
    std::env::var_os("VRAMTRACE_TEST_FULL").is_some()
}

#[test]
fn two_that_start_at_once_take_what_each_takes_alone() {
    let alone = alone();
    for turn in 0..if full() { 60 } else { 6 } {
        let state = Scratch::new();
        let (mut a, mut b) = (start(capped(&state)), start(capped(&state)));
        a.order("go");
        b.order("go");
        for service in [&mut a, &mut b] {
            assert_eq!(outcome(service), alone, "turn {turn}");
        }
        kept_its_cap(&mut a);
        kept_its_cap(&mut b);
    }
}

/// All orders in which the steps of two services can come, as who is next.
fn orders() -> Vec<Vec<usize>> {
    let all = (0..1u32 << (2 * STEPS)).filter(|bits| bits.count_ones() as usize == STEPS);
    all.map(|bits| (0..2 * STEPS).map(|at| (bits >> at & 1) as usize).collect()).collect()
}

/// Takes two services through their steps in this order.
#[track_caller]
fn step_through(order: &[usize], setup: &Setup) -> [Outcome; 2] {
    let mut services = [0, 1].map(|_| start(setup.clone().arg("in steps")));
    let mut left = [STEPS; 2];
    let mut outcomes = [None, None];
    for &who in order {
        services[who].order("on");
        left[who] -= 1;
        if left[who] == 0 {
            outcomes[who] = Some(outcome(&mut services[who]));
        } else {
            services[who].answer();
        }
    }
    outcomes.map(Option::unwrap)
}

#[test]
fn no_order_of_their_steps_charges_one_with_the_others_memory() {
    let alone = alone();
    let orders = orders();
    assert_eq!(orders.len(), 252);
    let every = if full() { 1 } else { 23 };
    for order in orders.iter().step_by(every) {
        let state = Scratch::new();
        for outcome in step_through(order, &capped(&state)) {
            assert_eq!(outcome, alone, "{order:?}");
        }
    }
}

/// That the program is one which such things happen to.
#[test]
fn without_caps_one_is_charged_with_the_others_memory() {
    let state = Scratch::new();
    // The second loads its model between the two measurements of the first.
    let [a, b] = step_through(&[0, 1, 0, 1, 0, 1, 0, 1, 0, 1], &card(&state).preload());
    assert!(a.growth > 1000 && (b.failed || b.growth > 1000), "{a:?} {b:?}");
}
