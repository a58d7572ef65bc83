//! `vramtrace run --wait-for`: a run waits before its start, in the order of asking, and ends with 75 when its time is
//! up. All runs share one simulated card.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{Scratch, sim_dir, vramtrace};

const HOLDS: &str = r#"
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
pointer = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 30)) == 0
print("holds", sys.argv[1:], flush=True)
sys.stdin.readline()
"#;

struct Card {
    scratch: Scratch,
}

impl Card {
    fn on_it(&self, mut command: Command) -> Command {
        command
            .env("LD_LIBRARY_PATH", sim_dir())
            .env("VRAMTRACE_SIM", "1x16GiB")
            .env("VRAMTRACE_SIM_STATE", self.scratch.0.join("state"))
            .current_dir(&self.scratch.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A program that holds memory until it is told to end.
    fn holds(&self, gib: &str) -> Running {
        let mut python = Command::new("python3");
        python.args(["holds.py", gib]);
        let running = Running::start(self.on_it(python));
        running.says("holds");
        running
    }

    fn waits(&self, options: &[&str], gib: &str, name: &str) -> Running {
        let mut run = vramtrace();
        run.arg("run").args(options).args(["--out", name, "--", "python3", "holds.py", gib, name]);
        Running::start(self.on_it(run))
    }
}

struct Running {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    errors: std::sync::mpsc::Receiver<String>,
}

fn read_lines(from: impl Read + Send + 'static) -> std::sync::mpsc::Receiver<String> {
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    lines
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        let errors = read_lines(child.stderr.take().unwrap());
        Running { child, lines, errors }
    }

    #[track_caller]
    fn says(&self, wanted: &str) {
        let line = self.lines.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(line.contains(wanted), "{line}");
    }

    /// The next line of stderr that has this.
    #[track_caller]
    fn reports(&self, wanted: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        while let Ok(line) = self.errors.recv_timeout(until - Instant::now()) {
            if line.contains(wanted) {
                return line;
            }
        }
        panic!("no line with {wanted}");
    }

    #[track_caller]
    fn is_silent_for(&self, ms: u64) {
        assert!(self.lines.recv_timeout(Duration::from_millis(ms)).is_err());
    }

    fn end(mut self) -> Option<i32> {
        // One that has ended reads no more.
        let _ = self.child.stdin.take().unwrap().write_all(b"\n");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One test: the queue is that of the user.
#[test]
fn a_run_waits_for_its_memory_in_the_order_of_asking() {
    testkit::sim();
    testkit::shim();
    let card = Card { scratch: Scratch::new() };
    std::fs::write(card.scratch.0.join("holds.py"), HOLDS).unwrap();
    // Enough is free: nothing is said, and what it asked for counts as taken, though it holds less.
    let first = card.waits(&["--wait-for", "6GiB"], "1", "first");
    first.says("holds");
    // Its time is up.
    let late = card.waits(&["--wait-for", "0=12GiB", "--wait-max", "1s"], "1", "late");
    let line = late.reports("not enough memory within 1s");
    assert!(line.contains("GPU 0 has") && line.contains("of 12.00 GiB"), "{line}");
    assert_eq!(late.end(), Some(75));
    assert!(!card.scratch.0.join("late").exists());
    // One that waits is passed by none, and one that is killed is forgotten.
    let other = card.holds("8");
    let second = card.waits(&["--wait-for", "8GiB"], "2", "second");
    second.reports("waiting: GPU 0 has");
    let mut killed = card.waits(&["--wait-for", "1GiB"], "1", "killed");
    killed.reports("1 run asked before");
    let third = card.waits(&["--wait-for", "50%", "--wait-max", "1h"], "2", "third");
    third.reports("2 runs asked before");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    third.reports("1 run asked before");
    third.is_silent_for(1200);
    second.is_silent_for(1);
    assert_eq!(other.end(), Some(0));
    second.says("second");
    second.reports("the command starts");
    // The second has 2 GiB of its 8: the other 6 are its own all the same.
    third.is_silent_for(1200);
    assert_eq!(second.end(), Some(0));
    third.says("third");
    assert_eq!((third.end(), first.end()), (Some(0), Some(0)));
    // What can never be, and bad values.
    for (options, wanted) in [
        (&["--wait-for", "17GiB"][..], "16.00 GiB in all"),
        (&["--wait-for", "3=1GiB"], "none of the visible devices"),
        (&["--wait-for", "lots"], "--wait-for `lots`"),
        (&["--wait-for", "1GiB", "--wait-max", "0s"], "above zero"),
        (&["--wait-max", "5m"], "--wait-for"),
        (&["--simulate", "--wait-for", "1GiB"], "--simulate"),
    ] {
        let refused = card.waits(options, "1", "refused");
        refused.reports(wanted);
        assert_eq!(refused.end(), Some(2), "{options:?}");
        assert!(!card.scratch.0.join("refused").exists(), "{options:?}");
    }
    a_group_has_to_have_room(&card);
}

/// The memory that the cap of the group leaves counts, too.
fn a_group_has_to_have_room(card: &Card) {
    let group = format!("waiting-{}:3GiB", std::process::id());
    let in_group = |options: &[&str], gib: &str, name: &str| {
        let mut run = vramtrace();
        run.arg("run").args(options).args(["--out", name, "--", "python3", "holds.py", gib, name]);
        run.env("VRAMTRACE_CAP_GROUP", &group);
        Running::start(card.on_it(run))
    };
    let member = in_group(&[], "2", "member");
    member.says("member");
    let next = in_group(&["--wait-for", "2GiB"], "1", "next");
    next.reports("waiting: GPU 0 has");
    next.is_silent_for(1000);
    assert_eq!(member.end(), Some(0));
    next.says("next");
    assert_eq!(next.end(), Some(0));
    let never = in_group(&["--wait-for", "4GiB"], "1", "never");
    never.reports("the cap of group");
    assert_eq!(never.end(), Some(2));
}
