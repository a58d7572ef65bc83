//! `vramtrace run` seen from outside: exit status, signals, what is set, what is refused.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use testkit::{Said, Scratch, bin_dir, shim, sim};

/// `vramtrace run ARGS...` in a test's directory.
fn command(scratch: &Scratch, args: &[&str]) -> Command {
    shim();
    scratch.command(&[&["run"], args].concat())
}

fn run(scratch: &Scratch, args: &[&str]) -> Said {
    Said::by(&mut command(scratch, args))
}

/// A command that prints `ready` first, and the lines after it.
fn ready(command: &mut Command) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    (child, lines)
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn the_exit_status_is_the_commands() {
    let scratch = Scratch::new();
    for code in [0, 1, 2, 3, 77, 255] {
        run(&scratch, &["--", "sh", "-c", &format!("exit {code}")]).ended(code);
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
    scratch.write("p.c", source);
    scratch.shell(&format!("gcc p.c -o p -Wl,--dynamic-linker={}", loader.display()));
    let said = run(&scratch, &["--", "./p"]).ended(7);
    assert!(said.out == "bare\n" && said.err.contains("is linked with musl"), "{said:?}");
}

#[test]
fn what_cannot_be_run_has_the_codes_of_env() {
    let scratch = Scratch::new();
    let missing = run(&scratch, &["--", "no-such-command-here"]).ended(127);
    assert!(missing.err.contains("no-such-command-here"));
    scratch.write("plain", "text");
    run(&scratch, &["--", "./plain"]).ended(126);
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
        let said = run(&scratch, &[args, &["--", "touch", "ran"]].concat()).ended(2);
        assert!(said.err.contains(says), "{args:?}: {}", said.err);
    }
    // And a library that is missing.
    std::fs::copy(bin_dir().join("vramtrace"), scratch.0.join("alone")).unwrap();
    let mut alone = Command::new(scratch.0.join("alone"));
    alone.args(["run", "--", "touch", "ran"]).current_dir(&scratch.0);
    let with = |name: &str, value: &str| {
        let mut command = command(&scratch, &["--", "touch", "ran"]);
        command.env(name, value);
        command
    };
    for (mut command, says) in [
        (with("VRAMTRACE_CAP", "8"), "VRAMTRACE_CAP"),
        (with("VRAMTRACE_LIB", "/nowhere/libvramtrace.so"), "VRAMTRACE_LIB=/nowhere"),
        (alone, "VRAMTRACE_LIB"),
    ] {
        let said = Said::by(&mut command).ended(2);
        assert!(said.err.contains(says), "{}", said.err);
    }
    let mut left = entries(&scratch.0);
    left.sort();
    assert_eq!(left, ["alone", "taken.vtrace"]);
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
        let kill = format!("kill -{signal} $$");
        let status = command(&scratch, &["--", "sh", "-c", &kill]).status().unwrap();
        assert_eq!(status.signal(), Some(signal));
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
        let (mut child, mut lines) = ready(&mut command(&scratch, &["--", "sh", "-c", &script]));
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
    let (mut child, mut lines) = ready(&mut command(&scratch, &["--", "python3", "-c", script]));
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
    assert_eq!(Said::by(&mut run).ended(0).out, "term term end");
}

#[test]
fn a_launcher_that_is_killed_takes_the_command_with_it() {
    let scratch = Scratch::new();
    let script = "echo ready; n=0; while [ $n -lt 1000 ]; do sleep 0.05; n=$((n+1)); done; echo on";
    let (mut child, mut lines) = ready(&mut command(&scratch, &["--", "sh", "-c", script]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(lines.next().is_none(), "the command has closed its stdout");
}

#[test]
fn stacks_and_their_depth_reach_the_command() {
    let scratch = Scratch::new();
    let script =
        "echo ${VRAMTRACE_STACKS-unset} ${VRAMTRACE_STACK_DEPTH-${VRAMTRACE_TENSORS-unset}}";
    let seen = |args: &[&str], variable: &str| {
        let mut command = command(&scratch, &[args, &["--", "sh", "-c", script]].concat());
        let said = Said::by(command.env("VRAMTRACE_STACKS", variable));
        (said.out.trim().to_string(), said.err)
    };
    for (args, variable, expected) in [
        (&["--stacks", "python", "--stack-depth", "7"][..], "none", "python 7"),
        (&[], "native", "native unset"),
        (&["--tensors", "off"], "native", "native off"),
        // The variable is not looked at.
        (&["--stacks", "none"], "no language", "none unset"),
    ] {
        assert_eq!(seen(args, variable).0, expected);
    }
    let (ran, said) = seen(&[], "no language");
    assert!(ran.is_empty() && said.contains("VRAMTRACE_STACKS `no language`"), "{ran} {said}");
}

#[test]
fn the_preload_comes_first_and_what_was_there_stays() {
    let scratch = Scratch::new();
    let mut command = command(&scratch, &["--", "sh", "-c", "echo $LD_PRELOAD"]);
    let said = Said::by(command.env("LD_PRELOAD", sim())).ended(0);
    let expected = format!("{}:{}", shim().canonicalize().unwrap().display(), sim().display());
    assert_eq!(said.out.trim(), expected);
}

#[test]
fn an_installation_under_a_path_with_spaces_works() {
    let scratch = Scratch::new();
    let place = scratch.0.join("a b:c");
    std::fs::create_dir(&place).unwrap();
    for file in ["vramtrace", "libvramtrace.so"] {
        std::fs::copy(bin_dir().join(file), place.join(file)).unwrap();
    }
    let mut command = Command::new(place.join("vramtrace"));
    command.args(["run", "--", "sh", "-c", "echo $LD_PRELOAD; readlink -f $LD_PRELOAD"]);
    let said = Said::by(command.env_remove("LD_PRELOAD").current_dir(&scratch.0));
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(Path::new(lines[1]), place.join("libvramtrace.so").canonicalize().unwrap());
    assert!(!said.err.contains("cannot be preloaded"), "{}", said.err);
    assert!(!Path::new(lines[0]).exists(), "the link is removed afterwards");
}

#[test]
fn the_simulated_driver_is_in_front_and_gone_afterwards() {
    let scratch = Scratch::new();
    let script = "echo $VRAMTRACE_SIM; echo ${LD_LIBRARY_PATH%%:*}; ls ${LD_LIBRARY_PATH%%:*}";
    let mut command = command(&scratch, &["--simulate=2x80GiB", "--", "sh", "-c", script]);
    let said = Said::by(command.env("LD_LIBRARY_PATH", "/opt/lib"));
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines[0], "2x80GiB");
    assert_eq!(lines[2..], ["libcuda.so.1", "libnvidia-ml.so.1"]);
    assert!(!Path::new(lines[1]).exists());
}

/// Also an orphan that left the session.
#[test]
fn a_process_that_lost_the_preload_is_reported_and_can_be_an_error() {
    let scratch = Scratch::new();
    // It is looked at less and less often: within twice its age.
    let body = "import ctypes, os, time; ctypes.CDLL('libcuda.so.1'); open('up', 'w'); \
        began = int(open('/proc/self/stat').read().split()[21]) / os.sysconf('SC_CLK_TCK'); \
        time.sleep(3 + 2 * (time.clock_gettime(time.CLOCK_BOOTTIME) - began)); os.remove('up')";
    let lost = format!("env -u LD_PRELOAD python3 -c \"{body}\"");
    let wait = "until [ -e up ]; do sleep 0.1; done; while [ -e up ]; do sleep 0.1; done";
    let orphan = format!("(setsid {lost} &); {wait}");
    for (option, script, code) in [
        (&["--simulate"][..], &lost, 0),
        (&["--simulate", "--require"], &lost, 1),
        (&["--simulate"], &orphan, 0),
    ] {
        let said = run(&scratch, &[option, &["--", "sh", "-c", script]].concat()).ended(code);
        assert!(said.err.contains("without the recorder"), "{script}: {}", said.err);
    }
}

#[test]
fn a_cudart_over_the_simulated_driver_is_explained() {
    let scratch = Scratch::new();
    scratch.shell("gcc -shared -x c /dev/null -o libcudart.so.12");
    let script = "import ctypes, time; ctypes.CDLL('./libcudart.so.12'); time.sleep(1)";
    let printed = run(&scratch, &["--simulate", "--", "python3", "-c", script]).err;
    assert_eq!(printed.matches("error 103").count(), 1, "{printed}");
    assert!(printed.contains("numba-cuda"), "{printed}");
    let bare = run(&scratch, &["--", "python3", "-c", script]);
    assert!(!bare.err.contains("103"));
}

#[test]
fn a_static_program_cannot_be_required() {
    let scratch = Scratch::new();
    let script = "echo 'int main(void) { return 0; }' > s.c; gcc -static -o s s.c 2> why || true";
    scratch.shell(script);
    if !scratch.0.join("s").exists() {
        testkit::skip("static programs: gcc links none");
        return;
    }
    let said = run(&scratch, &["--", "./s"]).ended(0);
    assert!(said.err.contains("static executable"), "{}", said.err);
    run(&scratch, &["--require", "--", "./s"]).ended(1);
    run(&scratch, &["--require", "--", "true"]).ended(0);
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
    let said = Said::by(&mut shell);
    if said.err.contains("unshare:") || said.err.contains("mount:") {
        testkit::skip_here("unshare --mount and mount are not permitted");
        return;
    }
    said.ended(5);
}

/// A limit on calls may forbid waitid, which is needed to follow stops only.
#[test]
fn a_command_that_cannot_be_followed_is_waited_for() {
    let scratch = Scratch::new();
    let program = testkit::Program::c("without_waitid");
    let run = command(&scratch, &["--", "sh", "-c", "sleep 0.1; exit 5"]);
    let words = std::iter::once(run.get_program()).chain(run.get_args());
    Said::by(Command::new(&program.0).args(words).current_dir(&scratch.0)).ended(5);
}
