//! Processes that look odd in /proc are known to run: by `ps`, by the report of a trace that is still
//! written, and by a group.

use testkit::{InteractiveProgram, Scratch, SharedMemory, report};

const MIB: u64 = 1 << 20;

fn runs(program: &str, argument: &str) {
    let (memory, state) = (SharedMemory::new(), Scratch::new());
    let name = format!("test-odd-{argument}-{}", std::process::id());
    let setup = memory
        .setup()
        .env("VRAMTRACE_CAP_GROUP", format!("{name}:2GiB"))
        .env("VRAMTRACE_SIM_STATE", state.0.join("state"));
    let mut odd = InteractiveProgram::start_as(program, setup.clone().arg(argument));
    assert_eq!(odd.result("a 1000"), 0);
    let live = SharedMemory::live_bytes(&memory.ps(&[]), odd.pid());
    assert_eq!(live, Some(1000 * MIB), "{argument}");
    let listed = memory.ps(&[]);
    let line = listed.iter().find(|process| process["pid"] == odd.pid()).unwrap();
    assert!(line["command"].as_str().unwrap().contains("odd"), "{argument}: {line}");
    let facts = report(&odd.traces());
    assert_eq!(facts["processes"][0]["running"], true, "{argument}: {facts:#}");
    // Its share is not given away.
    let mut other = InteractiveProgram::start(setup);
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(other.result("a 1000"), 2, "{argument}");
    let pid = odd.pid().to_string();
    let (status, _, err) = memory.command(&[], &["cap", "--pid", &pid, "1GiB"]);
    assert_eq!(status, 0, "{argument}: {err}");
    assert_eq!(odd.result("a 1"), 2, "{argument}");
    drop((odd, other));
    let user = testkit::user();
    let _ = std::fs::remove_dir_all(format!("/dev/shm/vramtrace-{user}/group.{name}"));
}

#[test]
fn one_whose_name_is_no_text() {
    runs("odd_process", "name");
}

#[test]
fn one_whose_main_thread_has_ended() {
    runs("odd_process", "thread");
}
