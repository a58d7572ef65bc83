//! What a command gets from the process that started it is the same under `vramtrace run`.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use testkit::{Program, Scratch, eventually, shim};

/// The command by itself, and under `vramtrace run`.
fn both(scratch: &Scratch, words: &[&str]) -> [Command; 2] {
    shim();
    let mut bare = Command::new(words[0]);
    bare.args(&words[1..]).current_dir(&scratch.0).env_remove("LD_PRELOAD");
    let under_run = scratch.command(&[&["run", "--out", "off", "--"], words].concat());
    [bare, under_run].map(|mut command| {
        command.env_remove("NO_COLOR").stdin(Stdio::null()).stderr(Stdio::null());
        command
    })
}

/// Has the command start after `prepare`, which makes only async-signal-safe calls.
fn prepared(command: &mut Command, prepare: fn()) {
    // SAFETY: the caller's `prepare` makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            prepare();
            Ok(())
        })
    };
}

fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: sets a disposition of the child between fork and exec.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

fn block(signals: &[i32]) {
    // SAFETY: the set is the function's own; only the child's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Panics if the process does not end.
#[track_caller]
fn end_of(child: &mut Child) -> std::process::ExitStatus {
    eventually(|| child.try_wait().unwrap(), Option::is_some).unwrap()
}

/// What a process prepared like this prints, bare and under run.
#[track_caller]
fn same_state(prepare: fn()) -> String {
    let scratch = Scratch::new();
    let program = Program::c("inherited");
    let [bare, ours] =
        both(&scratch, &[program.0.to_str().unwrap(), "state"]).map(|mut command| {
            prepared(&mut command, prepare);
            let status = end_of(&mut command.spawn().unwrap());
            assert!(status.success(), "{status}");
            std::fs::read_to_string(scratch.0.join("state")).unwrap()
        });
    assert_eq!(bare, ours);
    bare
}

#[test]
fn ignored_signals_stay_ignored() {
    let every = || {
        for signal in 1..=64 {
            ignore(&[signal]);
        }
    };
    let state = same_state(every);
    // All but SIGKILL and SIGSTOP. The C library sets none of its own two.
    assert!(state.contains("fffbfeff\n"), "{state}");
    for one in [|| ignore(&[libc::SIGPIPE]), || ignore(&[libc::SIGCHLD])] {
        same_state(one);
    }
    same_state(|| ());
}

#[test]
fn blocked_signals_stay() {
    let state = same_state(|| {
        block(&[libc::SIGTERM, libc::SIGCHLD, libc::SIGTSTP, libc::SIGUSR1, 40]);
    });
    assert!(state.contains("SigBlk:\t0000008000094200"), "{state}");
}

#[test]
fn closed_descriptors_stay_closed() {
    for closed in [|| closed(&[0]), || closed(&[1, 2]), || closed(&[0, 1, 2])] {
        same_state(closed);
    }
}

fn closed(descriptors: &[i32]) {
    for descriptor in descriptors {
        // SAFETY: a descriptor of the child, which uses it no more.
        unsafe { libc::close(*descriptor) };
    }
}

/// Exit status, as a shell has it.
fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

#[test]
fn the_status_is_known_whatever_was_ignored() {
    let scratch = Scratch::new();
    for (prepare, script, expected) in [
        ((|| ignore(&[libc::SIGCHLD])) as fn(), "exit 7", 7),
        (|| ignore(&[libc::SIGCHLD]), "kill -9 $$", 137),
        (|| ignore(&[libc::SIGPIPE]), "sleep 0.1; /bin/echo text || exit 5", 5),
        (|| (), "sleep 0.1; exec /bin/echo text", 141),
    ] {
        for mut command in both(&scratch, &["sh", "-c", script]) {
            prepared(&mut command, prepare);
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take());
            assert_eq!(code(end_of(&mut child)), expected, "{script}");
        }
    }
}

/// A shell that executes `vramtrace` in its place leaves it children that are not the command.
#[test]
fn children_of_an_earlier_program_are_not_the_command() {
    let scratch = Scratch::new();
    let [_, run] = both(&scratch, &["sh", "-c", "sleep 0.3; exit 4"]);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    let script = format!("(exit 9) & sleep 0.1 & exec {}", words.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(&scratch.0).stderr(Stdio::null());
    assert_eq!(code(end_of(&mut command.spawn().unwrap())), 4);
}
