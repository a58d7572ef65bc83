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
    Some(python.same_as_bare(setup).only_report())
}

#[test]
#[ignore = "needs PyPI packages: tests/systems/test-clients.sh"]
fn clients_run_as_without_us() {
    for name in ["bindings_client.py", "core_client.py", "numba_client.py"] {
        let Some(process) = same_as_bare(name) else { return };
        let device = &process["devices"][0];
        assert!(device["allocations"].as_u64().unwrap() > 0, "{name}: {device:#}");
        assert!(device["peak_bytes"].as_u64().unwrap() > 0, "{name}: {device:#}");
        assert_eq!(process["ended_in_order"], true, "{name}");
        assert!(name != "bindings_client.py" || device["live_bytes"] == 0, "{device:#}");
    }
}
