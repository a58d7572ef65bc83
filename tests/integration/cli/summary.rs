//! `vramtrace run`'s summary.

use testkit::{Said, Scratch, shim, sim};

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
    let scratch = with(CLIENT);
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
        (format!("{calm}\nimport os\nos._exit(0)"), "1 ended with status 0 (_exit, exec)"),
        (format!("{calm}\nimport os\nos.kill(os.getpid(), 9)"), "1 killed by signal 9 (SIGKILL)"),
    ] {
        let printed = run(&with(&program), CAPPED, "exec python3 client.py").err;
        assert!(printed.contains(&format!("1 took GPU memory: {how}\n")), "{how}: {printed}");
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
