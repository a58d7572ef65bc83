//! `vramtrace run --json FILE`: the lines of each run, in a file to which several append.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::{Program, Said, Scratch, has, shim, sim};

/// `vramtrace run --json jobs.jsonl OPTIONS -- sh -c SCRIPT` over the simulated driver.
fn command(scratch: &Scratch, options: &str, script: &str) -> Command {
    sim();
    shim();
    let words = format!("run --simulate=1x8GiB --json jobs.jsonl {options}");
    let words = words.split(' ').filter(|word| !word.is_empty());
    let words: Vec<&str> = words.chain(["--", "sh", "-c", script]).collect();
    let mut run = scratch.command(&words);
    run.env("SLURM_JOB_ID", "77");
    run
}

/// stderr of a run that ends with this status.
#[track_caller]
fn run(scratch: &Scratch, code: i32, options: &str, script: &str) -> String {
    Said::by(&mut command(scratch, options, script)).ended(code).err
}

fn lines(scratch: &Scratch) -> Vec<Value> {
    let text = std::fs::read_to_string(scratch.0.join("jobs.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Takes pieces, waits until as many such programs have theirs, and half a second.
const HOLDS: &str = r#"
import ctypes, glob, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
for size in sys.argv[2:]:
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(size) << 20))
    if result:
        sys.exit("no memory")
open(f"up-{os.getpid()}", "w").close()
while len(glob.glob("up-*")) < int(sys.argv[1]):
    time.sleep(0.01)
time.sleep(0.5)
"#;

fn holds(scratch: &Scratch, arguments: &str) -> String {
    scratch.write("holds.py", HOLDS);
    format!("python3 holds.py {arguments}")
}

#[test]
fn a_job_has_a_line_and_each_of_its_processes() {
    let scratch = Scratch::new();
    let two = holds(&scratch, "2 1024");
    let ranks = format!("RANK=0 WORLD_SIZE=2 {two} & RANK=1 WORLD_SIZE=2 {two} 2048; wait");
    let begun = std::time::Instant::now();
    run(&scratch, 0, "--cap 4GiB", &ranks);
    let took = begun.elapsed().as_secs_f64();
    let all = lines(&scratch);
    let records: Vec<&str> = all.iter().map(|line| line["record"].as_str().unwrap()).collect();
    assert_eq!(records, ["process", "process", "job"]);
    assert!(all.iter().all(|line| line["schema"] == "vramtrace.run/3" && line["job"] == "77"));
    assert!(all.iter().all(|line| line["run"] == all[2]["run"]));
    let (second, device) = (&all[1], &all[1]["devices"][0]);
    has(second, json!({ "rank": 1, "ended": "in_order", "source": "events" }));
    assert_eq!(device["peak_bytes"].as_u64().unwrap() >> 20, 3590);
    assert_eq!(device["limit_bytes"].as_u64().unwrap() >> 30, 4);
    let counted = device["in_use_at_peak"]["counted_by_cap_bytes"].as_f64().unwrap();
    let unused = device["never_used_share"].as_f64().unwrap();
    assert!((unused - (1.0 - counted / (4u64 << 30) as f64)).abs() < 0.001, "{device}");
    let by_library = device["by_library_at_peak"].as_object().unwrap().values();
    let by_library: u64 = by_library.map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(by_library >> 20, 3590, "{device}");
    // Half a second at least of about 3.5 GiB, the context among it.
    let held = device["held_gib_hours"].as_f64().unwrap() * 3600.0;
    assert!((1.5..4.0 * took).contains(&held), "{held} GiB s in {took} s");
    let job = &all[2];
    has(
        job,
        json!({
            "processes": 2, "processes_in_full": 2, "ranks": 2, "world_size": 2, "exit_status": 0,
            "passed": true, "command": "sh", "leaks": 0
        }),
    );
    // Both were at their peaks at the same time.
    assert_eq!(job["cards"][0]["peak_bytes"].as_u64().unwrap() >> 20, 5132);
    assert_eq!(job["peak_bytes"], job["cards"][0]["peak_bytes"]);
    assert_eq!(job["imbalance"]["highest"], 1);
}

#[test]
fn an_out_of_memory_has_its_cause_and_what_to_try() {
    let scratch = Scratch::new();
    let fails = holds(&scratch, "1 1024 1024");
    run(&scratch, 1, "--cap 2GiB", &fails);
    let all = lines(&scratch);
    let (process, job) = (&all[0], &all[1]);
    let failure = &process["out_of_memory"];
    assert_eq!(process["ended"], "out_of_memory");
    has(failure, json!({ "cause": "cap", "size_bytes": 1u64 << 30 }));
    assert_eq!(job["first_failure"]["out_of_memory"], *failure);
    has(job, json!({ "refused": 1, "exit_status": 1 }));
    assert_eq!(job["advice"]["what"], "cap");
    assert!(job["advice"]["text"].as_str().unwrap().contains("a cap of"), "{job}");
}

#[test]
fn several_jobs_append_to_one_file() {
    let scratch = Scratch::new();
    let short = holds(&scratch, "1 64");
    let job = |number| {
        let mut run = command(&scratch, &format!("--out run{number}"), &short);
        run.stderr(Stdio::null()).spawn().unwrap()
    };
    let jobs: Vec<_> = (0..4).map(job).collect();
    for mut job in jobs {
        assert!(job.wait().unwrap().success());
    }
    let all = lines(&scratch);
    assert_eq!(all.len(), 8);
    for pair in all.chunks(2) {
        assert_eq!((&pair[0]["record"], &pair[1]["record"]), (&"process".into(), &"job".into()));
        assert_eq!(pair[0]["run"], pair[1]["run"]);
    }
    let mode = std::fs::metadata(scratch.0.join("jobs.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn what_is_no_file_of_lines_stays_as_it_is() {
    let scratch = Scratch::new();
    let at = scratch.0.join("jobs.jsonl");
    let refused = |wanted: &str| {
        let printed = run(&scratch, 2, "", "touch was-run");
        for part in ["--json jobs.jsonl", wanted] {
            assert!(printed.contains(part), "{printed}");
        }
        assert!(!scratch.0.join("was-run").exists());
    };
    for text in ["import sys\n", "{\n  \"schema\": \"vramtrace.run/1\"\n}\n"] {
        scratch.write("jobs.jsonl", text);
        refused("give another name");
        assert_eq!(std::fs::read_to_string(&at).unwrap(), text);
    }
    std::fs::remove_file(&at).unwrap();
    scratch.write("other", "");
    symlink("other", &at).unwrap();
    refused("symbolic link");
    assert_eq!(std::fs::read_to_string(scratch.0.join("other")).unwrap(), "");
}

#[test]
fn a_pipe_gets_the_lines() {
    let scratch = Scratch::new();
    let program = Program::c("leaks").0.display().to_string();
    let text = scratch.text(&format!("run --simulate --json - -- {program} exit"));
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    has(&last, json!({ "record": "job", "processes": 1 }));
}
