//! `vramtrace run`'s summary.

use std::process::Command;

use testkit::{Said, Scratch, bin_dir, shim, sim, skip_here};

/// Two processes at once; each takes 64 MiB and leaves 3 MiB.
const CLIENT: &str = r#"
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20))
cuda.cuMemFree_v2(pointer)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(3 << 20))
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30))
"#;

/// A directory with the client.
fn with(client: &str) -> Scratch {
    sim();
    shim();
    let scratch = Scratch::new();
    scratch.write("client.py", client);
    scratch
}

/// `vramtrace run --simulate OPTIONS -- sh -c SCRIPT`.
#[track_caller]
fn run(scratch: &Scratch, options: &str, script: &str) -> Said {
    let words = ["run", "--simulate"].into_iter().chain(options.split(' '));
    scratch.says(&words.chain(["--", "sh", "-c", script]).collect::<Vec<_>>())
}

const CAPPED: &str = "--cap 1GiB --oom-report off";

#[test]
fn the_summary_says_where_what_and_for_whom() {
    let scratch = with(&format!("{CLIENT}\nraise SystemExit(1)"));
    let printed = run(&scratch, CAPPED, "python3 client.py & python3 client.py; wait").ended(0).err;
    let lines: Vec<&str> =
        printed.lines().map(|line| line.strip_prefix("vramtrace: ").unwrap_or(line)).collect();
    // How each line begins and ends, or what it contains.
    let expected = [
        ("2 traces in vramtrace-", ""),
        ("  peak       device 0: ", " (the highest of one process)"),
        ("  at the end device 0: 8.00 MiB in 2 allocations", ""),
        ("  refused    2 by the cap, 0 by the driver", ""),
        ("  processes  2 took GPU memory: 2 out of memory", ""),
        ("", "for each process by itself"),
        ("", "out of memory on GPU 0"),
        ("  line       client.py:10 held 4.00 MiB", ""),
        ("  also       pid ", " out of memory "),
        ("  next       vramtrace oom vramtrace-", ""),
    ];
    assert_eq!(lines.len(), expected.len(), "{printed}");
    for (line, (begin, part)) in lines.iter().zip(expected) {
        assert!(line.starts_with(begin) && line.contains(part), "{begin}{part}: {printed}");
    }
}

#[test]
fn a_run_that_died_did_not_end_in_order() {
    let calm = CLIENT.replace("2 << 30", "2 << 20");
    for (program, how) in [
        (calm.clone(), "1 ended in order"),
        (format!("{calm}\nraise SystemExit(3)"), "1 exited with status 3"),
        (format!("{CLIENT}\nraise SystemExit(1)"), "1 out of memory"),
        (CLIENT.into(), "1 ended in order"),
        (format!("{CLIENT}\nimport os\nos._exit(0)"), "1 ended in order"),
        (format!("{calm}\nimport os\nos._exit(4)"), "1 ended by _exit with status 4"),
        (
            format!("{calm}\nimport os\nos.execlp('true', 'true')"),
            "1 ended with status 0 (_exit, exec)",
        ),
        (format!("{calm}\nimport os\nos.kill(os.getpid(), 9)"), "1 killed by signal 9 (SIGKILL)"),
    ] {
        let printed = run(&with(&program), CAPPED, "exec python3 client.py").err;
        assert!(printed.contains(&format!("1 took GPU memory: {how}\n")), "{how}: {printed}");
    }
    let refused = with(&format!("{CLIENT}\nimport os\nos.kill(os.getpid(), 15)"));
    let printed = run(&refused, CAPPED, "exec python3 client.py").err;
    assert!(printed.contains("; then killed by signal 15 (SIGTERM)"), "{printed}");
}

/// The kernel says from Linux 6.15 on how a process ended that is no child.
#[test]
fn a_process_below_the_command_was_killed_by_a_signal() {
    let scratch = with(&format!("{CLIENT}\nopen('ready', 'w')\nimport signal\nsignal.pause()"));
    let script = "python3 client.py & child=$!
        until test -e ready && grep -qsx \"Pid:.$child\" /proc/$PPID/fdinfo/*; do sleep 0.02; done
        kill $child; wait $child; true";
    let printed = run(&scratch, "--oom-report off", script).ended(0).err;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split('.').map_while(|part| part.parse().ok()).collect();
    let how = match numbers[..2] >= [6, 15][..] {
        true => "killed by signal 15 (SIGTERM)",
        false => "whose end was not recorded",
    };
    assert!(printed.contains(&format!("1 took GPU memory: 1 {how}\n")), "{printed}");
}

/// Plays the kernel: how often the limit was reached, and how many processes were killed.
const COUNT: &str = r#"cd /sys/fs/cgroup
test "$3" || printf 'oom %s\noom_kill %s\n' $1 $2 > memory.events
printf 'under_oom 0\noom_kill %s\n' $2 > memory/memory.oom_control
echo $1 > memory/memory.failcnt
echo 68719476736 | tee memory.max > memory/memory.limit_in_bytes
"#;

/// In a mount namespace, with other counts of the cgroup in both versions of its files, and with a small /dev/shm.
#[test]
fn what_the_kernel_did_for_want_of_host_memory_is_said() {
    let calm = CLIENT.replace("2 << 30", "2 << 20");
    let scratch = with(&format!("{calm}\nimport os\nos.kill(os.getpid(), 9)"));
    let fill = "import mmap\nfile = open('/dev/shm/full', 'w+b')\nfile.truncate(9 << 20)\n\
                mmap.mmap(file.fileno(), 0).write(bytes(9 << 20))";
    scratch.write("shm.py", format!("{calm}\n{fill}"));
    scratch.write("count.sh", COUNT);
    let limit = "host memory limit 64.00 GiB of this cgroup";
    let killed = |why| format!(": 1 killed by the kernel: {why}\n");
    for (version, command, says) in [
        ("", "sh count.sh 1 3; exec python3 client.py", killed(limit)),
        ("1", "sh count.sh 1 3 1; exec python3 client.py", format!(" by the kernel: {limit}; at ")),
        ("", "sh count.sh 0 3; exec python3 client.py", killed("the host had no memory left")),
        (
            "",
            "sh count.sh 1 4; python3 client.py; true",
            format!("; the kernel killed 2 processes: {limit}\n"),
        ),
        (
            "",
            "sh count.sh 1 3",
            format!(" no trace\nvramtrace: the kernel killed a process: {limit}\n"),
        ),
        ("", "exec python3 client.py", ": 1 killed by signal 9 (SIGKILL)\n".into()),
        (
            "",
            "exec python3 shm.py",
            ": 1 killed by signal 7 (SIGBUS): /dev/shm is full (4.00 MiB)\n".into(),
        ),
    ] {
        let mount = "mount -t tmpfs none /sys/fs/cgroup && mount -t tmpfs -o size=4m none /dev/shm";
        let begin = format!(
            "{mount} && mkdir /sys/fs/cgroup/memory && sh count.sh 0 2 {version}
            exec \"$0\" run --simulate -- sh -c \"$1\""
        );
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--map-root-user", "sh", "-c", &begin]);
        shell.arg(bin_dir().join("vramtrace")).arg(command);
        let said = Said::by(shell.current_dir(&scratch.0));
        if said.err.contains("unshare: ") || said.err.contains("mount: ") {
            return skip_here("host memory: no mount namespace here");
        }
        assert!(said.err.contains(&says), "{command} {says}: {}", said.err);
    }
}

#[test]
fn a_file_may_be_named_and_off_records_nothing() {
    let scratch = with(CLIENT);
    let run =
        |out: &str| run(&scratch, &format!("--out {out}"), "exec python3 client.py").ended(0).err;
    assert!(run("one.vtrace").contains("the trace is one.vtrace"));
    assert!(run("in/%e.vtrace").contains("python3"), "the executable's name is in the file's");
    assert_eq!(run("off"), "");
    let left = std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["client.py", "in", "one.vtrace"]);
}

/// `vramtrace run --out DIR`, twice: a report of DIR is of the second run, and says so.
#[test]
fn a_second_run_into_a_directory_is_a_run_of_its_own() {
    let scratch = with(CLIENT);
    for script in ["python3 client.py & python3 client.py; wait", "python3 client.py"] {
        run(&scratch, "--out traces", script).ended(0);
    }
    let report = |paths: &[String]| {
        let paths = paths.iter().map(String::as_str);
        let words: Vec<&str> = ["report", "--json"].into_iter().chain(paths).collect();
        let said = scratch.says(&words);
        (said.json()["processes"].as_array().unwrap().len(), said.err)
    };
    let (processes, printed) = report(&["traces".into()]);
    assert_eq!(processes, 1, "the newest run; {printed}");
    assert!(printed.contains("traces: traces of 2 runs; this is the newest"), "{printed}");
    let all = std::fs::read_dir(scratch.0.join("traces")).unwrap();
    let all: Vec<_> = all.map(|entry| entry.unwrap().path().display().to_string()).collect();
    assert_eq!(report(&all), (3, String::new()), "files that are named are all read");
}
