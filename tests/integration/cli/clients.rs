//! Real clients from PyPI over the simulated driver: they end as without us, and the ledger saw
//! what they took. `tests/systems/test-clients.sh` makes the environment and runs these.

use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::{Program, Setup};

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("VRAMTRACE_TEST_PYTHON").map(PathBuf::from);
    if python.is_none() {
        testkit::skip(
            "clients: VRAMTRACE_TEST_PYTHON is not set (tests/systems/test-clients.sh sets it)",
        );
    }
    python
}

/// Runs tests/python/NAME bare and preloaded; the preloaded run's report.
fn same_as_bare(name: &str) -> Option<serde_json::Value> {
    let python = Program(python()?);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name);
    let setup = Setup::simulated().arg(script.display()).timeout(Duration::from_secs(180));
    let bare = python.run(setup.clone()).ok();
    let ours = python.run(setup.preload()).ok();
    assert_eq!(ours.stdout, bare.stdout);
    Some(ours.only_report())
}

#[track_caller]
fn saw_memory(process: &serde_json::Value) {
    let device = &process["devices"][0];
    assert!(device["allocations"].as_u64().unwrap() > 0, "{device:#}");
    assert!(device["peak_bytes"].as_u64().unwrap() > 0, "{device:#}");
    assert_eq!(process["ended_in_order"], true);
}

#[test]
#[ignore = "needs PyPI packages: tests/systems/test-clients.sh"]
fn cuda_bindings_runs_as_without_us() {
    if let Some(process) = same_as_bare("bindings_client.py") {
        saw_memory(&process);
        assert_eq!(process["devices"][0]["live_bytes"], 0, "{process:#}");
    }
}

#[test]
#[ignore = "needs PyPI packages: tests/systems/test-clients.sh"]
fn cuda_core_runs_as_without_us() {
    if let Some(process) = same_as_bare("core_client.py") {
        saw_memory(&process);
    }
}

#[test]
#[ignore = "needs PyPI packages: tests/systems/test-clients.sh"]
fn numba_cuda_runs_as_without_us() {
    if let Some(process) = same_as_bare("numba_client.py") {
        saw_memory(&process);
    }
}
