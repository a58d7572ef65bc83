//! Members of a group that cannot look at each other, or who are removed: the group's limit holds, and nobody is taken for
//! dead who is not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::{InteractiveProgram, Scratch, Setup, SharedMemory, eventually, permitted, skip_here};
use vramtrace_format::member::Member;
use vramtrace_format::proc::{Life, Stat};

use crate::namespaces::child_of;

const MIB: u64 = 1 << 20;
/// Of two members with a context each, under 4 GiB: what one of them can still have if the other has [`HALF`].
const HALF: &str = "a 1500";

struct Group {
    of: testkit::Group,
    memory: SharedMemory,
    state: Scratch,
}

impl Group {
    /// In an IPC namespace of this test, if the system allows it: a command of another test would remove the dead.
    fn new(what: &str) -> Group {
        // SAFETY: a call of this thread; the programs that it starts inherit the namespace.
        unsafe { libc::unshare(libc::CLONE_NEWIPC) };
        let of = testkit::Group::new(&format!("blind-{what}"));
        Group { of, memory: SharedMemory::new(), state: Scratch::reachable() }
    }

    fn setup(&self) -> Setup {
        let setup = self.memory.setup().env("VRAMTRACE_CAP_GROUP", format!("{}:4GiB", self.of.0));
        setup.env("VRAMTRACE_SIM_STATE", self.state.0.join("state"))
    }

    fn start(&self) -> InteractiveProgram {
        InteractiveProgram::start(self.setup())
    }

    /// A member says this of the group once.
    #[track_caller]
    fn is_said(&self, member: &InteractiveProgram, what: &str) {
        let line = format!("VRAMTRACE_CAP_GROUP={}: {what}", self.of.0);
        assert_eq!(member.stderr().matches(&line).count(), 1, "{}", member.stderr());
    }
}

/// Does this to itself. False: the system does not let it.
fn becomes_blind(program: &mut InteractiveProgram, what: u32) -> bool {
    let errno = program.result(&format!("x {what}"));
    if errno != 0 {
        skip_here(&format!("situation {what} of interactive.c: errno {errno}"));
    }
    errno == 0
}

/// chroot, no descriptors, /proc unmounted, hidepid, Landlock.
#[test]
fn who_cannot_read_proc_takes_nobody_for_dead_and_finds_who_is() {
    for what in 1..=5 {
        let group = Group::new(&format!("proc-{what}"));
        let (mut seen, mut blind) = (group.start(), group.start());
        assert_eq!((seen.result(HALF), blind.result("a 100")), (0, 0));
        if !becomes_blind(&mut blind, what) {
            continue;
        }
        for _ in 0..3 {
            assert_eq!((blind.result("a 3000"), seen.result("a 3000")), (2, 2), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(group.of.page().members().count(), 2, "{what}");
        // It has ended, and nobody has waited for it: only /proc could tell that.
        seen.child.kill().unwrap();
        eventually(|| Stat::of(seen.pid()).is_some_and(|stat| !stat.is_alive()), |ended| *ended);
        std::thread::sleep(Duration::from_millis(2));
        let result = blind.result("a 3000");
        let looks = what == 4;
        assert_eq!(result, if looks { 0 } else { 2 }, "{what}");
        let named = blind.stderr().contains(&format!("still run: [{}];", seen.pid()));
        assert_eq!(named, !looks, "{what}: {}", blind.stderr());
        if !looks {
            // The command removes it for all.
            group.memory.ps(&[]);
            assert_eq!(group.of.page().members().count(), 1, "{what}");
            assert_eq!(blind.result("a 3000"), 0, "{what}");
        }
        seen.child.wait().unwrap();
        // One of which nothing is left is found by all.
        assert_eq!(blind.result("f"), 0);
        let mut other = group.start();
        assert_eq!(other.result(HALF), 0);
        assert_eq!(blind.result("a 3000"), 2, "{what}");
        other.kill();
        assert_eq!(blind.result("a 3000"), 0, "{what}");
    }
}

#[test]
fn who_has_another_ipc_namespace_or_user_names_whom_it_cannot_check() {
    for what in [6, 7] {
        let group = Group::new(&format!("apart-{what}"));
        let (mut seen, mut blind) = (group.start(), group.start());
        assert_eq!((seen.result(HALF), blind.result("a 100")), (0, 0));
        if !becomes_blind(&mut blind, what) {
            continue;
        }
        assert_eq!((blind.result("a 3000"), seen.result("a 3000")), (2, 2), "{what}");
        let pid = seen.pid();
        seen.kill();
        assert_eq!(blind.result("a 3000"), 2, "{what}");
        let line = "from here it cannot be told whether these members still run";
        group.is_said(&blind, &format!("{line}: [{pid}];"));
        // One that can look removes it.
        let mut looks = group.start();
        assert_eq!((looks.result("a 100"), blind.result("a 2000")), (0, 0), "{what}");
        assert_eq!(looks.result("a 2000"), 2, "{what}: it still counts");
    }
}

#[test]
fn two_time_namespaces_agree_about_a_process() {
    const TIME: [&str; 6] = ["unshare", "--time", "--boottime", "100000", "--fork", "--"];
    if !permitted(&TIME) {
        return;
    }
    let group = Group::new("time");
    let mut here = group.start();
    let mut there = InteractiveProgram::start(group.setup().through(&TIME));
    let pid = child_of(there.pid());
    assert_eq!((here.result("a 1400"), there.result("a 100")), (0, 0));
    for _ in 0..3 {
        assert_eq!((here.result("a 3000"), there.result("a 3000")), (2, 2));
        std::thread::sleep(Duration::from_millis(2));
    }
    let launchers: [&[&str]; 2] = [&[], &TIME];
    for launcher in launchers {
        // What starts in one removes no page of the other.
        let _new = InteractiveProgram::start(group.memory.setup().through(launcher));
        let found = group.memory.ps(launcher);
        let live = |pid| SharedMemory::live_bytes(&found, pid);
        assert_eq!((live(here.pid()), live(pid)), (Some(1400 * MIB), Some(100 * MIB)));
        for pid in [here.pid(), pid] {
            group.memory.says(launcher, &format!("cap --pid {pid} 3GiB"));
        }
    }
    let trace = testkit::report(&there.traces());
    assert_eq!(trace["processes"][0]["running"], true, "{trace:#}");
    // SAFETY: a process of the test's own.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    there.child.wait().unwrap();
    assert_eq!(here.result("a 1000"), 0);
}

#[test]
fn who_is_removed_while_it_lives_joins_again_with_what_it_holds() {
    let group = Group::new("again");
    let (mut removed, mut other) = (group.start(), group.start());
    assert_eq!(removed.result("a 1500"), 0);
    let page = group.of.page();
    let counted = page.sum(0);
    let me = Member { pid: std::process::id(), segment: 0, made: 0 };
    let dead = |member: Member| if member.pid == removed.pid() { Life::Dead } else { Life::Alive };
    assert!(page.remove_dead_members(me, dead));
    assert!(page.sum(0) < counted - 1500 * MIB);
    // Another takes what seems to be free: then there is more than the limit.
    assert_eq!(other.result("a 3000"), 0);
    assert_eq!(removed.result("a 100"), 2);
    assert_eq!((page.members().count(), page.sum(0)), (2, counted + 3000 * MIB));
    group.is_said(&removed, "this process was removed while it lives");
    assert_eq!(other.result("a 1"), 2);
    assert_eq!((removed.result("f"), other.result("f")), (0, 0));
    assert_eq!((removed.result("a 1500"), other.result("a 1500")), (0, 0));
    assert_eq!(page.sum(0), counted + 1500 * MIB);
}

#[test]
fn a_child_that_lives_on_keeps_no_share_and_an_exec_gives_it_up() {
    let group = Group::new("child");
    let (mut forks, mut other) = (group.start(), group.start());
    assert_eq!((forks.result("a 1500"), other.result("a 3000")), (0, 2));
    let child = forks.result("x 9");
    assert!(child > 1);
    forks.kill();
    assert_eq!(other.result("a 3000"), 0);
    // SAFETY: a process that a process of the test's own has forked.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(other.result("f"), 0);
    let mut replaced = group.start();
    assert_eq!((replaced.result("a 1500"), other.result("a 2000")), (0, 2));
    assert_eq!(replaced.ask("x 10"), "ready");
    std::thread::sleep(Duration::from_millis(2));
    // The simulated driver does not take back what it had; the group does not count it any more.
    other.result("a 3500");
    let page = group.of.page();
    let pids: Vec<u32> = page.members().map(|member| member.pid).collect();
    let counts = (0..2).map(|slot| page.count(slot, 0).load(Ordering::SeqCst));
    assert_eq!((pids.len(), counts.sum::<u64>()), (2, page.sum(0)), "{pids:?}");
    assert!(pids.contains(&replaced.pid()) && pids.contains(&other.pid()));
}
