//! What the driver takes past any allocation call: seen after the call that made it take it, named,
//! charged to the cap, and given back.

use serde_json::{Value, json};
use testkit::{Program, Run, Setup, has};

const MIB: i64 = 1 << 20;
/// Bytes of local memory that one byte a thread takes.
const THREADS: i64 = 132 * 2048;

fn run(steps: &str, setup: Setup) -> Run {
    let setup = steps.split_whitespace().fold(setup, |setup, step| setup.arg(step));
    Program::c("taken").run(setup).ok()
}

/// NVML is asked the less often the longer a reading took. Here it takes no time, so that what a reading sees does not
/// depend on what else the machine does.
fn paced() -> Setup {
    Setup::simulated().preload().env("VRAMTRACE_TEST_NVML_FREE", "1")
}

/// NVML's figure after the last step, in bytes.
fn nvml(run: &Run) -> u64 {
    let line = run.stdout.lines().rev().find(|line| line.ends_with(" KiB")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap()
}

/// The named causes in bytes; those that are 0 left out.
fn causes(device: &Value) -> Vec<(&str, i64)> {
    let all = device["driver_bytes"].as_object().unwrap().iter();
    let all = all.map(|(name, bytes)| (name.as_str(), number(bytes)));
    all.filter(|(_, bytes)| *bytes != 0).collect()
}

#[track_caller]
fn adds_up(device: &Value) {
    let driver: i64 = causes(device).iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(device["unattributed_bytes"], driver, "{device:#}");
    let live = number(&device["live_bytes"]) - number(&device["by_kind"]["managed"]["live_bytes"]);
    let sum = live + number(&device["context_bytes"]) + driver;
    assert_eq!(device["process_bytes"], sum, "{device:#}");
}

#[track_caller]
fn took(device: &Value, wanted: &[(&str, i64)]) {
    assert_eq!(causes(device), wanted, "{device:#}");
    adds_up(device);
}

#[test]
fn each_kind_of_call_is_named() {
    let run = run("launch deep deeper heap streams kernel graph", paced());
    let device = run.device();
    assert_eq!(device["process_bytes"], nvml(&run));
    let local = ("local_memory", THREADS * (16_384 - 1_024));
    let wanted = [("heap", 10 * MIB), local, ("modules", 4 * MIB), ("streams", 6 * MIB)];
    took(&device, &wanted);
}

#[test]
fn names_of_marks_without_end_leave_a_kernel_its_name() {
    let setup = Setup::simulated().preload().env("NVTX_INJECTION64_PATH", testkit::shim());
    let run = run("names deep", setup);
    let line = "more than 16384 names of ranges and marks: the trace has further ones as \
                \"(further names)\"";
    assert_eq!((&run.stderr, run.notes()), (&format!("vramtrace: {line}\n"), vec![line.into()]));
    let device = run.device();
    let by = device["driver_bytes_by"].as_array().unwrap();
    assert!(by.iter().any(|taken| taken["needed_for"] == "deep"), "{by:#?}");
}

#[test]
fn who_made_it_take_memory_is_reported() {
    let run = run("launch deep kernel streams", paced());
    let device = run.device();
    let by = device["driver_bytes_by"].as_array().unwrap();
    let deep = by.iter().find(|taken| taken["needed_for"] == "deep");
    let (bytes, cause) = (THREADS * 1_024, "local_memory");
    has(deep.unwrap(), json!({ "bytes": bytes, "api": "cuLaunchKernel", "cause": cause }));
    assert_eq!(by[0]["cause"], cause, "the largest comes first");
    for api in ["cuKernelGetFunction", "cuStreamCreateWithPriority"] {
        assert!(by.iter().any(|taken| taken["api"] == api), "{by:#?}");
    }
    let text = run.scratch.text("report . --full");
    assert!(text.contains("MiB  local memory\n"), "{text}");
    assert!(text.contains("taken by the driver"), "{text}");
    let is_deep = |line: &str| line.contains("264.00 MiB") && line.contains("deep");
    assert!(text.lines().any(is_deep), "{text}");
}

#[test]
fn a_larger_stack_is_local_memory_and_kernels_below_it_take_none() {
    let device = run("stack deep", paced()).device();
    took(&device, &[("local_memory", THREADS * 3_072), ("modules", 2 * MIB)]);
}

#[test]
fn what_is_given_back_leaves_by_the_same_name() {
    let local = ("local_memory", THREADS * 3_072);
    for (steps, left) in [
        ("launch streams unload", &[("streams", 6 * MIB)][..]),
        ("launch deeper stack", &[local, ("modules", 2 * MIB)]),
        // Unloaded and loaded again: handles that come again are looked at again.
        ("launch unload launch unload launch", &[("modules", 2 * MIB)]),
    ] {
        took(&run(steps, paced()).device(), left);
    }
    let reset = run("launch deep streams reset launch", paced());
    assert_eq!(reset.device()["process_bytes"], nvml(&reset), "{}", reset.stdout);
}

#[test]
fn each_device_has_its_own_driver_memory() {
    let setup = paced().devices("2x24GiB");
    let process = run("launch streams second deep", setup).only_report();
    let device = |ordinal: u64| {
        let mut devices = process["devices"].as_array().unwrap().iter();
        devices.find(|device| device["device"] == ordinal).unwrap()
    };
    took(device(0), &[("modules", 2 * MIB), ("streams", 6 * MIB)]);
    took(device(1), &[("local_memory", THREADS * 1_024), ("modules", 2 * MIB)]);
}

#[test]
fn the_cap_counts_driver_memory() {
    // The context, 64 MiB, and not the local memory.
    let setup = Setup::simulated().cap("700MiB");
    let refused = run("alloc launch deep alloc", setup.clone());
    let results: Vec<&str> = refused.stdout.lines().filter(|l| l.starts_with("alloc =")).collect();
    assert_eq!(results, ["alloc = 0", "alloc = 2"], "{}", refused.stdout);
    assert_eq!(refused.device()["refused_by_cap"], 1);
    let granted = run("alloc launch alloc", setup);
    assert_eq!(granted.stdout.matches("alloc = 0").count(), 2, "{}", granted.stdout);
}

#[test]
fn the_program_sees_no_difference() {
    let steps = "launch deep deeper heap streams kernel graph stack unload alloc reset launch fork";
    let setup = steps.split(' ').fold(Setup::simulated(), Setup::arg);
    Program::c("taken").as_bare(setup, Setup::preload).quiet().ok();
}

/// Readings of one thread show what others take too: nothing is counted twice or under a name that
/// is not its own, and at rest all of it has been recorded.
#[test]
fn threads_that_load_and_allocate_at_once_are_counted_once() {
    for _ in 0..3 {
        let run = run("threads launch rest", paced());
        let device = run.device();
        assert_eq!(device["process_bytes"], nvml(&run));
        adds_up(&device);
        // 40 modules of the threads, and the last one.
        let of = |name: &str| number(&device["driver_bytes"][name]);
        assert_eq!(of("modules") + of("other") + of("unknown"), 82 * MIB, "{device:#}");
        assert_eq!((of("streams"), of("local_memory"), of("heap")), (0, 0, 0), "{device:#}");
        assert!(of("unknown").abs() <= 8 * MIB, "{device:#}");
    }
}

/// Each reading is a wait. 600 of 5 ms would take three seconds: what is not read is recorded by a later reading. Under a cap
/// too: 1,000 readings of 15 ms would take 15 seconds. Between two readings the last figure counts.
#[test]
fn a_slow_nvml_does_not_slow_the_program_down() {
    let slow = |setup: Setup| setup.env("VRAMTRACE_SIM_NVML", "slow");
    let waits = |run: &Run| run.stderr.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    let many = run("many", slow(Setup::simulated().preload()));
    assert!((1..200).contains(&waits(&many)), "{}", many.stderr);
    let device = many.device();
    adds_up(&device);
    assert!(number(&device["driver_bytes"]["modules"]) >= 2 * MIB, "{device:#}");
    let pairs = run("pairs", slow(Setup::simulated().cap("8GiB")));
    assert!(waits(&pairs) < 200, "{}", pairs.stderr);
}

/// Without NVML, and where it knows our pid by another number, there is nothing to name it from
/// but what cuCtxSetLimit forecasts; the cap counts that, and the context.
#[test]
fn without_nvml_nothing_is_made_up() {
    // Strangers are measured by what all of the device's memory grew when the context came.
    for (how, cap) in [("absent", "900MiB"), ("strangers", "1400MiB")] {
        let env = |setup: Setup| setup.env("VRAMTRACE_SIM_NVML", how).env("NO_NVML", "1");
        let uncapped = run("launch deep streams stack", env(Setup::simulated().preload())).quiet();
        let device = uncapped.device();
        has(&device, json!({ "process_bytes": null, "driver_bytes": null }));
        let by = device["driver_bytes_by"].as_array().unwrap();
        assert!(by.iter().all(|taken| taken["api"] == "cuCtxSetLimit"), "{how}: {by:#?}");
        let capped = run("alloc stack alloc", env(Setup::simulated().cap(cap)));
        assert_eq!(capped.stdout.matches("alloc = 0").count(), 1, "{how}: {}", capped.stdout);
    }
}

/// Where no other process can use the card, its used bytes are this process's.
#[test]
fn a_card_of_its_own_tells_what_nvml_does_not() {
    let env = |how: &str, exclusive: &str| {
        let setup = paced().env("VRAMTRACE_SIM_NVML", how);
        run("launch deep streams stack alloc", setup.env("VRAMTRACE_EXCLUSIVE", exclusive))
    };
    let figures = |run: &Run| {
        let device = run.device();
        let [process, context] = ["process_bytes", "context_bytes"].map(|key| number(&device[key]));
        (process - context, device["driver_bytes"].clone(), context)
    };
    let (beside, driver, context) = figures(&run("launch deep streams stack alloc", paced()));
    assert!(beside > 100 << 20 && driver["local_memory"].as_i64() > Some(0), "{driver:#}");
    for (how, exclusive) in [("strangers", "1"), ("strangers-exclusive", "")] {
        let own = figures(&env(how, exclusive));
        assert_eq!((own.0, own.1), (beside, driver.clone()), "{how}");
        // The first context takes some of the card for no process.
        assert!((context..context + (16 << 20)).contains(&own.2), "{how}: {} {context}", own.2);
    }
    assert_eq!(env("strangers", "0").device()["process_bytes"], Value::Null);
}
