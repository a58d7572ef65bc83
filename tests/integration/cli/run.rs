//! `vramtrace run` seen from outside: exit status, signals, what is set, what is refused.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testkit::{Scratch, bin_dir, shim, sim, vramtrace};

/// `vramtrace run ARGS...` in a directory of its own.
fn run(scratch: &Scratch, args: &[&str]) -> Output {
    command(scratch, args).output().unwrap()
}

fn command(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = vramtrace();
    command.arg("run").args(args).current_dir(&scratch.0);
    let ours =
        ["OUT", "CAP", "RUN", "STACKS", "STACK_DEPTH"].map(|name| format!("VRAMTRACE_{name}"));
    for name in ours.iter().map(String::as_str).chain(["LD_PRELOAD"]) {
        command.env_remove(name);
    }
    shim();
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn the_exit_status_is_the_commands() {
    let scratch = Scratch::new();
    for code in [0, 1, 2, 3, 77, 255] {
        let ended = run(&scratch, &["--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
    }
    assert!(entries(&scratch.0).is_empty(), "a run without a trace leaves no directory");
}

/// musl's loader ends a program whose preload it cannot link. The test's program names it, and gets glibc's.
#[test]
fn a_musl_program_runs_without_the_library() {
    let scratch = Scratch::new();
    let loader = scratch.0.join("ld-musl-x86_64.so.1");
    let real = match cfg!(target_arch = "x86_64") {
        true => "/lib64/ld-linux-x86-64.so.2",
        false => "/lib/ld-linux-aarch64.so.1",
    };
    std::os::unix::fs::symlink(real, &loader).unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { puts(getenv(\"LD_PRELOAD\") ? \"preloaded\" : \"bare\"); return 7; }\n";
    std::fs::write(scratch.0.join("p.c"), source).unwrap();
    let linked = Command::new("gcc")
        .args(["p.c", "-o", "p"])
        .arg(format!("-Wl,--dynamic-linker={}", loader.display()))
        .current_dir(&scratch.0)
        .status()
        .unwrap();
    assert!(linked.success());
    let ended = run(&scratch, &["--", "./p"]);
    assert_eq!((ended.status.code(), text(&ended.stdout).as_str()), (Some(7), "bare\n"));
    assert!(text(&ended.stderr).contains("is linked with musl"), "{}", text(&ended.stderr));
}

#[test]
fn what_cannot_be_run_has_the_codes_of_env() {
    let scratch = Scratch::new();
    let missing = run(&scratch, &["--", "no-such-command-here"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("no-such-command-here"));
    std::fs::write(scratch.0.join("plain"), "text").unwrap();
    let refused = run(&scratch, &["--", "./plain"]);
    assert_eq!(refused.status.code(), Some(126));
    assert_eq!(entries(&scratch.0), ["plain"]);
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("taken.vtrace")).unwrap();
    for (args, says) in [
        (&["--cap", "8"][..], "8GiB"),
        (&["--cap", "0=8GiB,0=4GiB"], "second time"),
        (&["--cap", ""], "empty"),
        (&["--simulate=24GiB"], "1x24GiB"),
        (&["--simulate=0x24GiB"], "count"),
        (&["--out", "taken.vtrace"], "is a directory"),
        (&["--out", "%x.vtrace"], "%h"),
        (&["--out", "/dev/zero"], "directory"),
        (
            &["--stacks", "java"],
            "--stacks `java`: is not a list of languages; write native, python, native,python or none",
        ),
        (&["--stacks", ""], "--stacks ``: is not a list"),
        (&["--stack-depth", "0"], "--stack-depth `0`: is not a number of frames from 1 to 1024"),
        (&["--stack-depth", "-3"], "1 to 1024"),
        (&["--tensors", "native"], "--tensors `native`: is not python, full or off"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        let ended = run(&scratch, &[args, &["--", "touch", "ran"]].concat());
        let printed = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {printed}");
        assert!(printed.contains(says), "{args:?}: {printed}");
    }
    assert_eq!(entries(&scratch.0), ["taken.vtrace"]);
    let by_variable =
        command(&scratch, &["--", "touch", "ran"]).env("VRAMTRACE_CAP", "8").output().unwrap();
    assert_eq!(by_variable.status.code(), Some(2));
    assert!(text(&by_variable.stderr).contains("VRAMTRACE_CAP"));
}

#[test]
fn a_missing_library_is_named() {
    let scratch = Scratch::new();
    let ended = command(&scratch, &["--", "touch", "ran"])
        .env("VRAMTRACE_LIB", "/nowhere/libvramtrace.so")
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(text(&ended.stderr).contains("VRAMTRACE_LIB=/nowhere"), "{}", text(&ended.stderr));
    std::fs::copy(bin_dir().join("vramtrace"), scratch.0.join("alone")).unwrap();
    let alone = Command::new(scratch.0.join("alone"))
        .args(["run", "--", "touch", "ran"])
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("VRAMTRACE_LIB"), "{}", text(&alone.stderr));
    assert!(!scratch.0.join("ran").exists());
}

/// A shell without job control has what it puts in the background ignore these.
fn heed_signals() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: nothing here handles them.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[test]
fn the_command_ends_us_as_it_ended() {
    heed_signals();
    let scratch = Scratch::new();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGUSR1] {
        let ended = run(&scratch, &["--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ended.status.signal(), Some(signal));
    }
}

#[test]
fn signals_reach_the_command() {
    heed_signals();
    let scratch = Scratch::new();
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGWINCH, "WINCH"),
        (libc::SIGCONT, "CONT"),
        (libc::SIGABRT, "ABRT"),
        (libc::SIGPIPE, "PIPE"),
        (libc::SIGRTMIN() + 3, "37"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; \
             n=0; while [ $n -lt 400 ]; do sleep 0.02; n=$((n+1)); done"
        );
        let mut child = command(&scratch, &["--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // SAFETY: our own child, not reaped yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(5), "{name}");
    }
}

#[test]
fn a_signal_keeps_its_value() {
    let scratch = Scratch::new();
    let script = "import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
print('ready', flush=True)
print(signal.sigwaitinfo([signal.SIGRTMIN]).si_code, flush=True)";
    let mut child = command(&scratch, &["--", "python3", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let value = libc::sigval { sival_ptr: std::ptr::null_mut() };
    // SAFETY: our own child, not reaped yet.
    assert_eq!(unsafe { libc::sigqueue(child.id() as i32, libc::SIGRTMIN(), value) }, 0);
    assert_eq!(lines.next().unwrap().unwrap(), libc::SI_QUEUE.to_string());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_signal_to_its_own_group_comes_once() {
    let scratch = Scratch::new();
    let script = "import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'term '))
os.kill(0, signal.SIGTERM)
os.system('trap : TERM; kill -TERM 0; sleep 0.2')
time.sleep(0.2)
os.write(1, b'end')";
    let mut run = command(&scratch, &["--", "python3", "-c", script]);
    run.process_group(0);
    let ended = run.output().unwrap();
    assert_eq!((text(&ended.stdout).as_str(), ended.status.code()), ("term term end", Some(0)));
}

#[test]
fn a_launcher_that_is_killed_takes_the_command_with_it() {
    let scratch = Scratch::new();
    let mut child = command(&scratch, &["--", "sh", "-c", "echo ready; exec sleep 100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    let started = std::time::Instant::now();
    assert!(lines.next().is_none(), "the command has closed its stdout");
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
}

#[test]
fn the_command_starts_with_the_signal_mask_that_we_got() {
    let scratch = Scratch::new();
    let ended = run(&scratch, &["--", "grep", "SigBlk", "/proc/self/status"]);
    assert_eq!(text(&ended.stdout).split_whitespace().last(), Some("0000000000000000"));
}

#[test]
fn stacks_and_their_depth_reach_the_command() {
    let scratch = Scratch::new();
    let script =
        "echo ${VRAMTRACE_STACKS-unset} ${VRAMTRACE_STACK_DEPTH-${VRAMTRACE_TENSORS-unset}}";
    let seen = |args: &[&str], variable: &str| {
        let mut command = command(&scratch, &[args, &["--", "sh", "-c", script]].concat());
        let ended = command.env("VRAMTRACE_STACKS", variable).output().unwrap();
        (text(&ended.stdout).trim().to_string(), text(&ended.stderr))
    };
    assert_eq!(seen(&["--stacks", "python", "--stack-depth", "7"], "none").0, "python 7");
    assert_eq!(seen(&[], "native").0, "native unset");
    assert_eq!(seen(&["--tensors", "off"], "native").0, "native off");
    assert_eq!(seen(&["--stacks", "none"], "no language").0, "none unset", "it is not looked at");
    let (ran, printed) = seen(&[], "no language");
    assert!(
        ran.is_empty() && printed.contains("VRAMTRACE_STACKS `no language`"),
        "{ran} {printed}"
    );
}

#[test]
fn the_preload_comes_first_and_what_was_there_stays() {
    let scratch = Scratch::new();
    let other = sim();
    let ended = command(&scratch, &["--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", &other)
        .output()
        .unwrap();
    let expected = format!("{}:{}", shim().canonicalize().unwrap().display(), other.display());
    assert_eq!(text(&ended.stdout).trim(), expected);
}

#[test]
fn an_installation_under_a_path_with_spaces_works() {
    let scratch = Scratch::new();
    let place = scratch.0.join("a b:c");
    std::fs::create_dir(&place).unwrap();
    for file in ["vramtrace", "libvramtrace.so"] {
        std::fs::copy(bin_dir().join(file), place.join(file)).unwrap();
    }
    let ended = Command::new(place.join("vramtrace"))
        .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD; readlink -f $LD_PRELOAD"])
        .env_remove("LD_PRELOAD")
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    let printed = text(&ended.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(Path::new(lines[1]), place.join("libvramtrace.so").canonicalize().unwrap());
    assert!(!text(&ended.stderr).contains("cannot be preloaded"), "{}", text(&ended.stderr));
    assert!(!Path::new(lines[0]).exists(), "the link is removed afterwards");
}

#[test]
fn the_simulated_driver_is_in_front_and_gone_afterwards() {
    let scratch = Scratch::new();
    sim();
    let script = "echo $VRAMTRACE_SIM; echo ${LD_LIBRARY_PATH%%:*}; ls ${LD_LIBRARY_PATH%%:*}";
    let ended = command(&scratch, &["--simulate=2x80GiB", "--", "sh", "-c", script])
        .env("LD_LIBRARY_PATH", "/opt/lib")
        .output()
        .unwrap();
    let printed = text(&ended.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "2x80GiB");
    assert_eq!(lines[2..], ["libcuda.so.1", "libnvidia-ml.so.1"]);
    assert!(!Path::new(lines[1]).exists());
}

fn python(lines: &str) -> Vec<String> {
    ["env", "-u", "LD_PRELOAD", "python3", "-c", lines].map(String::from).to_vec()
}

#[test]
fn a_process_that_lost_the_preload_is_reported_and_can_be_an_error() {
    let scratch = Scratch::new();
    sim();
    let script = python("import ctypes, time; ctypes.CDLL('libcuda.so.1'); time.sleep(1.5)");
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    for (option, code) in [(&["--simulate"][..], 0), (&["--simulate", "--require"], 1)] {
        let ended = run(&scratch, &[option, &["--"], &script].concat());
        let printed = text(&ended.stderr);
        assert!(printed.contains("without the recorder"), "{printed}");
        assert_eq!(ended.status.code(), Some(code), "{printed}");
    }
}

#[test]
fn an_orphan_that_left_the_session_is_still_of_this_run() {
    let scratch = Scratch::new();
    sim();
    let body = "import ctypes, time; ctypes.CDLL('libcuda.so.1'); time.sleep(2)";
    let script = format!("(setsid env -u LD_PRELOAD python3 -c \"{body}\" &) ; sleep 1.7");
    let ended = run(&scratch, &["--simulate", "--", "sh", "-c", &script]);
    assert!(text(&ended.stderr).contains("without the recorder"), "{}", text(&ended.stderr));
}

#[test]
fn a_cudart_over_the_simulated_driver_is_explained() {
    let scratch = Scratch::new();
    sim();
    let library = scratch.0.join("libcudart.so.12");
    let built = Command::new("gcc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .status()
        .unwrap();
    assert!(built.success());
    let script =
        format!("import ctypes, time; ctypes.CDLL('{}'); time.sleep(1)", library.display());
    let ended = run(&scratch, &["--simulate", "--", "python3", "-c", &script]);
    let printed = text(&ended.stderr);
    assert_eq!(printed.matches("error 103").count(), 1, "{printed}");
    assert!(printed.contains("numba-cuda"), "{printed}");
    let bare = run(&scratch, &["--", "python3", "-c", &script]);
    assert!(!text(&bare.stderr).contains("103"));
}

#[test]
fn a_static_program_cannot_be_required() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("s.c"), "int main(void) { return 0; }").unwrap();
    let built = Command::new("gcc")
        .args([OsStr::new("-static"), "-o".as_ref(), "s".as_ref(), "s.c".as_ref()])
        .current_dir(&scratch.0)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        testkit::skip("static programs: gcc links none");
        return;
    }
    let ended = run(&scratch, &["--", "./s"]);
    assert_eq!(ended.status.code(), Some(0));
    assert!(text(&ended.stderr).contains("static executable"), "{}", text(&ended.stderr));
    let required = run(&scratch, &["--require", "--", "./s"]);
    assert_eq!(required.status.code(), Some(1));
    let child = run(&scratch, &["--require", "--", "true"]);
    assert_eq!(child.status.code(), Some(0), "{}", text(&child.stderr));
}

#[test]
fn a_command_runs_where_proc_is_not_mounted() {
    let scratch = Scratch::new();
    let run = command(&scratch, &["--", "sh", "-c", "test ! -e /proc/self && exit 5"]);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount -t tmpfs none /proc && exec \"$@\"")
        .arg("sh")
        .args(words)
        .current_dir(&scratch.0);
    let ended = shell.output().unwrap();
    let printed = text(&ended.stderr);
    if printed.contains("unshare:") || printed.contains("mount:") {
        testkit::skip_here("unshare --mount and mount are not permitted");
        return;
    }
    assert_eq!(ended.status.code(), Some(5), "{printed}");
}

/// A limit on calls may forbid waitid, which is needed to follow stops only.
#[test]
fn a_command_that_cannot_be_followed_is_waited_for() {
    let scratch = Scratch::new();
    let program = testkit::Program::c("without_waitid");
    let run = command(&scratch, &["--", "sh", "-c", "sleep 0.1; exit 5"]);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    let ended = Command::new(&program.0).args(words).current_dir(&scratch.0).output().unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", text(&ended.stderr));
}
