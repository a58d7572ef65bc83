//! `vramtrace import` from outside: what others recorded becomes a trace, or a clear error.

use std::path::PathBuf;
use std::process::Output;

use testkit::{Scratch, vramtrace};

fn data(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
}

fn run(arguments: &[&str]) -> Output {
    vramtrace().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_snapshot_is_a_trace_like_any_other() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("snapshot.vtrace");
    let (file, shown) = (data("torch_snapshot_2.11.pickle.gz"), trace.display().to_string());
    let import = ["import", file.to_str().unwrap(), "-o", &shown];
    let output = run(&import);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("154 blocks in 11 segments of 1 device"));

    // Nothing is replaced without --force.
    let before = std::fs::read(&trace).unwrap();
    let again = run(&import);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("exists: give another name, or --force"));
    assert_eq!(std::fs::read(&trace).unwrap(), before);
    assert!(run(&[&import[..], &["--force"]].concat()).status.success());

    let output = run(&["report", "--json", &shown]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = &json["processes"][0]["devices"][0];
    assert_eq!(
        device["peak"]["bytes"].as_u64().or(device["peak_bytes"].as_u64()),
        Some(180_355_072)
    );
    let output = run(&["holders", &shown]);
    assert!(text(&output.stdout).contains("snapshot.py:6"), "{}", text(&output.stdout));
}

#[test]
fn a_trace_of_a_csv_has_no_stacks_and_says_why() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("run.vtrace").display().to_string();
    let output = run(&["import", data("resvar_s5.csv.gz").to_str().unwrap(), "-o", &trace]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&["holders", &trace]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("CSV of requests, which has none"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&["report", &trace]);
    assert!(text(&output.stdout).contains("imported from a CSV of requests, without times"));
}

#[test]
fn an_rmm_log_becomes_a_trace() {
    let scratch = Scratch::new();
    let (log, trace) = (scratch.0.join("rmm.dev1.txt"), scratch.0.join("rmm.vtrace"));
    let rows = "Thread,Time,Action,Pointer,Size,Stream\n\
        1,10:00:00.000000,allocate,0x7f0000000000,8388608,0x1\n\
        1,10:00:01.000000,allocate,0x7f0000800000,4194304,0x2\n\
        1,10:00:02.500000,free,0x7f0000000000,8388608,0x1\n";
    std::fs::write(&log, rows).unwrap();
    let (log, trace) = (log.display().to_string(), trace.display().to_string());
    let output = run(&["import", &log, "-o", &trace]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&run(&["report", &trace]).stdout);
    assert!(shown.contains("GPU 1") && shown.contains("traced for 2.5 s"), "{shown}");
}

#[test]
fn hostile_and_wrong_files_end_in_a_clear_error() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("out.vtrace").display().to_string();
    let real = {
        use std::io::Read;
        let file = std::fs::File::open(data("torch_snapshot_2.11.pickle.gz")).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        bytes
    };
    // cos\nsystem\n(S'touch owned'\ntR.
    let calls = b"\x80\x02cos\nsystem\n(X\x0b\0\0\0touch ownedtR.".to_vec();
    let new_style = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch owned\x85R.".to_vec();
    let deep = [&b"\x80\x02"[..], &[b']'; 2_000_000], &[b'a'; 1_999_999], b"."].concat();
    for (name, bytes, part) in [
        ("truncated", real[..real.len() / 2].to_vec(), "ends in the middle"),
        ("global", calls, "opcode 0x63 makes more than plain data"),
        ("stack_global", new_style, "opcode 0x93 makes more than plain data"),
        ("huge", b"\x80\x04X\xff\xff\xff\xffabc.".to_vec(), "ends in the middle"),
        (
            "huge8",
            b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.".to_vec(),
            "ends in the middle",
        ),
        ("deep", deep, "no memory snapshot"),
        ("other", b"\x80\x04]\x94.".to_vec(), "neither segments nor device_traces"),
        ("text", b"PNG".to_vec(), "neither a PyTorch memory snapshot"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0".to_vec(), "not whole gzip"),
    ] {
        let file = scratch.0.join(name);
        std::fs::write(&file, bytes).unwrap();
        let output = run(&["import", file.to_str().unwrap(), "-o", &trace]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains(name), "{name}: {stderr}");
        assert!(!std::path::Path::new(&trace).exists(), "{name}");
    }
    let output = run(&["import", "no-such-file", "-o", &trace]);
    assert_eq!(output.status.code(), Some(2));
    let output = run(&["import", data("resvar_s5.csv.gz").to_str().unwrap(), "-o", "/nowhere/x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("its directory must exist"), "{}", text(&output.stderr));
}
