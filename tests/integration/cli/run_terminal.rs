//! Job control: what a shell and the user of a terminal see of a command is the same under `vramtrace run`.

use std::process::{Command, Stdio};

use testkit::{Said, Scratch, repository, shim};

/// Prints each line that it reads, until `end`.
const ECHO: &str =
    "echo ready; while read line; do [ $line = end ] && exit 5; echo got $line; done";

/// What the shell of tests/python/job_control.py sees of a command by itself and under run.
#[track_caller]
fn same(scenario: &str, command: &[&str]) -> String {
    let scratch = Scratch::new();
    shim();
    let ours = testkit::bin_dir().join("vramtrace");
    let run = [ours.to_str().unwrap(), "run", "--out", "off", "--"];
    let [bare, under_run] = [&[][..], &run].map(|launcher| {
        let mut python = Command::new("python3");
        python
            .arg(repository().join("tests/python/job_control.py"))
            .arg(scenario)
            .args(launcher)
            .args(command)
            .env_remove("LD_PRELOAD")
            .current_dir(&scratch.0)
            .stdin(Stdio::null());
        Said::by(&mut python).ended(0).out
    });
    assert_eq!(bare, under_run);
    bare
}

#[test]
fn keys_that_end_a_command() {
    assert!(same("interrupt", &["sh", "-c", ECHO]).ends_with("ended by 2\n"));
    assert!(same("quit_key", &["sh", "-c", ECHO]).ends_with("ended by 3\n"));
    let trap = format!("trap 'exit 4' INT; {ECHO}");
    assert!(same("interrupt", &["sh", "-c", &trap]).ends_with("exited with 4\n"));
    let kept = "trap 'exit 6' HUP; echo ready; while :; do sleep 0.02; done";
    assert_eq!(same("close_terminal", &["sh", "-c", kept]), format!("ended with {}\n", 6 << 8));
}

#[test]
fn a_stopped_command_stops_the_launcher_and_goes_on_with_it() {
    for (scenario, stops) in [
        ("suspend", "stopped by 20"),
        ("suspend_by_signal", "stopped by 19"),
        ("read_in_background", "stopped by 21"),
    ] {
        let seen = same(scenario, &["sh", "-c", ECHO]);
        assert!(seen.contains(stops) && seen.ends_with("exited with 5\n"), "{seen}");
    }
    same("stop_itself", &["sh", "-c", &ECHO.replacen(';', "; kill -STOP $$;", 1)]);
    // One that stops itself after its own work, as editors do, and sees one signal each time. Its
    // handler also wakes select: a shell's trap would wait for the line when the key comes before read.
    let script = "import os, select, signal, sys
stops = []
def stop(*_):
    stops.append(os.kill(os.getpid(), signal.SIGSTOP))
woken, wake = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGTSTP, stop)
print('ready', flush=True)
line = ''
while line != 'end':
    ready = select.select([0, woken], [], [])[0]
    woken in ready and os.read(woken, 1)
    line = os.read(0, 100).decode().strip() if 0 in ready else ''
    line and print('got', line, flush=True)
sys.exit(len(stops))";
    assert!(same("suspend", &["python3", "-c", script]).ends_with("exited with 2\n"));
}

#[test]
fn a_shell_within_may_have_the_terminal_for_its_groups() {
    same("interactive_shell", &["bash", "--norc", "--noprofile", "-i"]);
}

#[test]
fn a_command_sees_the_size_of_the_terminal() {
    let script = "import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: print('size', *os.get_terminal_size()[::-1], flush=True))
print('ready', flush=True)
sys.stdin.readline()";
    same("resize", &["python3", "-c", script]);
}
