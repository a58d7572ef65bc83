//! Processes of several pid and ipc namespaces on one /dev/shm, as with `docker run --ipc=host`.

use testkit::{Group, InteractiveProgram, Program, SharedMemory, eventually, permitted};

const MIB: u64 = 1 << 20;
const PID: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];
const IPC: [&str; 2] = ["unshare", "--ipc"];
/// An ipc namespace in which no segment can be made, and what runs in it.
const NO_SEGMENTS: [&str; 6] =
    ["unshare", "--ipc", "sh", "-c", "echo 0 > /proc/sys/kernel/shmmni && exec \"$@\"", "sh"];

/// The pid, here, of what `unshare --fork` started.
pub fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[test]
fn processes_of_several_pid_namespaces_leave_each_other_alone() {
    if !permitted(&PID) {
        return;
    }
    let memory = SharedMemory::new();
    let mut first = InteractiveProgram::start(memory.setup().through(&PID));
    assert_eq!(first.result("a 100"), 0);
    // Both are pid 1 where they are. A third is here.
    let mut second = InteractiveProgram::start(memory.setup().through(&PID));
    assert_eq!(second.result("a 200"), 0);
    let mut here = InteractiveProgram::start(memory.setup());
    assert_eq!(here.result("a 300"), 0);

    let inside = |program: &InteractiveProgram| child_of(program.pid()).to_string();
    let (a, b) = (inside(&first), inside(&second));
    let enter = |pid| ["nsenter", "--target", pid, "--pid", "--mount", "--"];
    for (pid, bytes) in [(&*a, 100), (&*b, 200)] {
        let found = memory.ps(&enter(pid));
        assert_eq!(SharedMemory::live_bytes(&found, 1), Some(bytes * MIB));
        memory.says(&enter(pid), "cap --pid 1 1GiB");
    }
    assert_eq!((first.result("a 2000"), second.result("a 2000")), (2, 2));
    assert_eq!(here.result("a 2000"), 0);
    // From here all are seen, by the pids that they have here.
    let found = memory.ps(&[]);
    let bytes = |pid: &str| SharedMemory::live_bytes(&found, pid.parse().unwrap());
    assert_eq!((bytes(&a), bytes(&b)), (Some(100 * MIB), Some(200 * MIB)), "{found:?}");
    assert_eq!(SharedMemory::live_bytes(&found, here.pid()), Some(2300 * MIB));
    memory.says(&[], &format!("cap --pid {a} none"));
    assert_eq!(first.result("a 2000"), 0);

    // The next process removes the files of processes that have exited, and only those.
    assert_eq!(memory.pages().len(), 3);
    let killed = a.parse().unwrap();
    // SAFETY: a process of the test's own.
    assert_eq!(unsafe { libc::kill(killed, libc::SIGKILL) }, 0);
    first.child.wait().unwrap();
    here.kill();
    let _last = InteractiveProgram::start(memory.setup());
    assert_eq!(memory.pages().len(), 2);
    assert_eq!(SharedMemory::live_bytes(&memory.ps(&enter(&b)), 1), Some(200 * MIB));
}

#[test]
fn a_group_of_another_pid_namespace_is_refused_while_it_lives() {
    if !permitted(&PID) {
        return;
    }
    let memory = SharedMemory::new();
    let group = Group::new("namespace");
    let setup = memory.setup().env("VRAMTRACE_CAP_GROUP", format!("{}:4GiB", group.0));
    let inside = InteractiveProgram::start(setup.clone().through(&PID));
    let refused = Program::c("interactive").run(setup.clone());
    assert_eq!(refused.status, 98, "{}", refused.stderr);
    assert!(refused.stderr.contains("another container"), "{}", refused.stderr);
    // SAFETY: a process of the test's own.
    unsafe { libc::kill(child_of(inside.pid()) as i32, libc::SIGKILL) };
    drop(inside);
    let mut after = InteractiveProgram::start(setup);
    assert_eq!(after.results("a 4000, a 1000"), [2, 0]);
}

#[test]
fn a_process_of_another_ipc_namespace_is_seen_by_its_copy() {
    if !permitted(&IPC) {
        return;
    }
    let memory = SharedMemory::new();
    let mut process = InteractiveProgram::start(memory.setup().through(&IPC));
    assert_eq!(process.result("a 100"), 0);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(process.result("c 1"), 0);
    assert_eq!(SharedMemory::live_bytes(&memory.ps(&[]), process.pid()), Some(100 * MIB));
    // It looks for orders there too, once a second.
    is_capped_by_file(&memory, &mut process);
    // In its namespace it is done at once.
    let pid = process.pid().to_string();
    let enter = ["nsenter", "--target", &pid, "--ipc", "--"];
    memory.says(&enter, &format!("cap --pid {pid} none"));
    assert_eq!(process.result("a 1000"), 0);
}

/// Has 1 GiB for a limit, some calls after the command.
fn is_capped_by_file(memory: &SharedMemory, process: &mut InteractiveProgram) {
    assert_eq!((process.result("a 1000"), process.result("f")), (0, 0));
    let out = memory.says(&[], &format!("cap --pid {} 1GiB", process.pid()));
    assert!(out.contains("in a second or later"), "{out}");
    let asks = || process.result("a 1000") == 0 && process.result("f") == 0;
    eventually(asks, |granted| !granted);
}

#[test]
fn without_shared_memory_figures_are_seen_and_a_group_is_refused() {
    if !permitted(&NO_SEGMENTS) {
        return;
    }
    let memory = SharedMemory::new();
    let mut process = InteractiveProgram::start(memory.setup().cap("2GiB").through(&NO_SEGMENTS));
    assert_eq!((process.result("a 100"), process.result("a 4000")), (0, 2));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(process.result("c 1"), 0);
    assert_eq!(SharedMemory::live_bytes(&memory.ps(&[]), process.pid()), Some(100 * MIB));
    is_capped_by_file(&memory, &mut process);

    let group = memory.setup().env("VRAMTRACE_CAP_GROUP", "job:4GiB").through(&NO_SEGMENTS);
    let refused = Program::c("interactive").run(group);
    assert_eq!(refused.status, 98, "{}", refused.stderr);
    assert!(refused.stderr.contains("a group needs System V shared memory"), "{}", refused.stderr);
    let job = ["run", "--simulate", "--job-cap", "4GiB", "--out", "off", "--", "echo", "ran"];
    let (status, out, err) = memory.command(&NO_SEGMENTS, &job);
    assert_eq!((status, &*out), (2, ""), "{err}");
    assert!(err.contains("--job-cap: a group needs System V shared memory"), "{err}");
}
