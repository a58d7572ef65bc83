//! `vramtrace run`'s summary.

use testkit::{Scratch, shim, sim, vramtrace};

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

#[test]
fn the_summary_says_where_what_and_for_whom() {
    let scratch = Scratch::new();
    sim();
    shim();
    std::fs::write(scratch.0.join("client.py"), CLIENT).unwrap();
    let two = "python3 client.py & python3 client.py; wait";
    let output = vramtrace()
        .args(["run", "--simulate", "--cap", "1GiB", "--oom-report", "off", "--", "sh", "-c", two])
        .current_dir(&scratch.0)
        .env_remove("LD_PRELOAD")
        .env_remove("VRAMTRACE_OUT")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let lines: Vec<&str> =
        printed.lines().map(|line| line.strip_prefix("vramtrace: ").unwrap_or(line)).collect();
    assert!(lines[0].starts_with("2 traces in vramtrace-"), "{printed}");
    assert!(lines[1].starts_with("  peak       device 0: "), "{printed}");
    assert!(lines[1].ends_with(" (the highest of one process)"), "{printed}");
    assert_eq!(lines[2], "  at the end device 0: 8.00 MiB in 2 allocations");
    assert_eq!(lines[3], "  refused    2 by the cap, 0 by the driver");
    assert_eq!(lines[4], "  processes  2 took GPU memory: 2 out of memory");
    assert!(lines[5].contains("for each process by itself"), "{printed}");
    assert!(lines[6].contains("out of memory on GPU 0"), "{printed}");
    assert!(lines[7].starts_with("  line       client.py:10 held 4.00 MiB"), "{printed}");
    assert!(lines[8].starts_with("  next       vramtrace oom vramtrace-"), "{printed}");
    assert_eq!(lines.len(), 9, "{printed}");
}

#[test]
fn a_run_that_died_did_not_end_in_order() {
    let scratch = Scratch::new();
    sim();
    shim();
    let calm = CLIENT.replace("2 << 30", "2 << 20");
    for (program, how) in [
        (calm.clone(), "1 ended in order"),
        (format!("{calm}\nraise SystemExit(3)"), "1 exited with status 3"),
        (format!("{CLIENT}\nraise SystemExit(1)"), "1 out of memory"),
        (format!("{calm}\nimport os\nos._exit(0)"), "1 cut off"),
    ] {
        std::fs::write(scratch.0.join("client.py"), program).unwrap();
        let output = vramtrace()
            .args(["run", "--simulate", "--cap", "1GiB", "--oom-report", "off"])
            .args(["--", "python3", "client.py"])
            .current_dir(&scratch.0)
            .env_remove("LD_PRELOAD")
            .env_remove("VRAMTRACE_OUT")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains(&format!("1 took GPU memory: {how}\n")), "{how}: {printed}");
    }
}

#[test]
fn a_file_may_be_named_and_off_records_nothing() {
    let scratch = Scratch::new();
    sim();
    shim();
    std::fs::write(scratch.0.join("client.py"), CLIENT).unwrap();
    let run = |out: &str| {
        let output = vramtrace()
            .args(["run", "--simulate", "--out", out, "--", "python3", "client.py"])
            .current_dir(&scratch.0)
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(run("one.vtrace").contains("the trace is one.vtrace"), "{}", run("two.vtrace"));
    assert!(run("in/%e.vtrace").contains("python3"), "the executable's name is in the file's");
    assert_eq!(run("off"), "");
    let mut left: Vec<_> =
        std::fs::read_dir(&scratch.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["client.py", "in", "one.vtrace"]);
}

/// `vramtrace run --out DIR`, twice: a report of DIR is of the second run, and says so.
#[test]
fn a_second_run_into_a_directory_is_a_run_of_its_own() {
    let scratch = Scratch::new();
    sim();
    shim();
    std::fs::write(scratch.0.join("client.py"), CLIENT).unwrap();
    for command in ["python3 client.py & python3 client.py; wait", "python3 client.py"] {
        let output = vramtrace()
            .args(["run", "--simulate", "--out", "traces", "--", "sh", "-c", command])
            .current_dir(&scratch.0)
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let report = |paths: &[&str]| {
        let mut command = vramtrace();
        let output =
            command.args(["report", "--json"]).args(paths).current_dir(&scratch.0).output();
        let output = output.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let processes = json["processes"].as_array().unwrap().len();
        (processes, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (processes, printed) = report(&["traces"]);
    assert_eq!(processes, 1, "the newest run; {printed}");
    assert!(printed.contains("traces: traces of 2 runs; this is the newest"), "{printed}");
    let all: Vec<String> = std::fs::read_dir(scratch.0.join("traces"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    let (processes, printed) = report(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((processes, printed.as_str()), (3, ""), "files that are named are all read");
}
