//! Real clients from PyPI over the simulated driver: they end as without us, and the ledger saw
//! what they took. `tests/systems/test-clients.sh` makes the environment and runs these.

use std::time::Duration;
use testkit::{Program, Setup, repository};

#[test]
#[ignore = "needs PyPI packages: tests/systems/test-clients.sh"]
fn clients_run_as_without_us() {
    let python = std::env::var_os("VRAMTRACE_TEST_PYTHON").map(Into::into);
    let python = Program(python.expect("tests/systems/test-clients.sh sets VRAMTRACE_TEST_PYTHON"));
    for name in ["bindings_client.py", "core_client.py", "numba_client.py"] {
        let script = repository().join("tests/python").join(name);
        let setup = Setup::simulated().arg(script.display()).timeout(Duration::from_secs(180));
        let process = python.same_as_bare(setup).only_report();
        let device = &process["devices"][0];
        assert!(device["allocations"].as_u64().unwrap() > 0, "{name}: {device:#}");
        assert!(device["peak_bytes"].as_u64().unwrap() > 0, "{name}: {device:#}");
        assert_eq!(process["ended_in_order"], true, "{name}");
        assert!(name != "bindings_client.py" || device["live_bytes"] == 0, "{device:#}");
    }
}
