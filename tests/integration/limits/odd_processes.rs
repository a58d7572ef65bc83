//! Processes that look odd in /proc are known to run: by `ps`, by the report of a trace that is still
//! written, and by a group.

use testkit::{Group, InteractiveProgram, Scratch, SharedMemory, report};

use crate::groups::members;

const MIB: u64 = 1 << 20;

/// One whose name is no text, and one whose main thread has ended.
#[test]
fn odd_ones_are_known_to_run() {
    ["name", "thread"].into_iter().for_each(runs);
}

fn runs(argument: &str) {
    let (memory, state) = (SharedMemory::new(), Scratch::new());
    let group = Group::new(&format!("odd-{argument}"));
    let setup = members(&group, &state, "2GiB").env("XDG_RUNTIME_DIR", &memory.0);
    let mut odd = InteractiveProgram::start_as("odd_process", setup.clone().arg(argument));
    assert_eq!(odd.result("a 1000"), 0);
    let line = memory.shown(odd.pid());
    assert_eq!(line["devices"][0]["live_bytes"], 1000 * MIB, "{argument}");
    assert!(line["command"].as_str().unwrap().contains("odd"), "{argument}: {line}");
    let facts = report(&odd.traces());
    assert_eq!(facts["processes"][0]["running"], true, "{argument}: {facts:#}");
    // Its share is not given away.
    let mut other = InteractiveProgram::start(setup);
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(other.result("a 1000"), 2, "{argument}");
    memory.says(&[], &format!("cap --pid {} 1GiB", odd.pid()));
    assert_eq!(odd.result("a 1"), 2, "{argument}");
}
