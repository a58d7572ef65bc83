//! Where a file beside the trace cannot be mapped (btrfs, NFS), the tail is in memory of the host.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use testkit::{InteractiveProgram, Program, Scratch, Setup, report, vramtrace};
use vramtrace_format::{Header, TailPlace, TraceReader, memory, tail};

const MIB: u64 = 1 << 20;

fn start() -> InteractiveProgram {
    InteractiveProgram::start(Setup::simulated().preload().env("VRAMTRACE_TEST_NO_MAP", "1"))
}

fn header(trace: &Path) -> Header {
    let mut page = [0; 4096];
    File::open(trace).unwrap().read_exact_at(&mut page, 0).unwrap();
    TraceReader::new(&page).unwrap().header().clone()
}

/// The tail in memory of a trace.
fn tail_of(trace: &Path) -> PathBuf {
    let name = tail::name_end(header(trace).file_tag());
    Path::new(&memory::directory(testkit::user())).join(name)
}

fn tails_beside(trace: &Path) -> usize {
    let entries = std::fs::read_dir(trace.parent().unwrap()).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().path().extension() == Some("tail".as_ref()))
        .count()
}

fn live(trace: &Path) -> u64 {
    let report = report(&[trace.into()]);
    report["processes"][0]["devices"][0]["live_bytes"].as_u64().unwrap()
}

fn warnings(trace: &Path) -> String {
    let output = vramtrace().arg("report").arg(trace).output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn after_a_kill_it_is_found_by_the_header_and_packed() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    // In the second window and behind.
    assert_eq!(program.result("c 20000"), 0);
    assert_eq!(program.result("a 6"), 0);
    let trace = program.traces()[0].clone();
    let tail = tail_of(&trace);
    assert_eq!(header(&trace).tail, Some(TailPlace::Memory));
    assert_eq!(tails_beside(&trace), 0);
    assert!(tail.metadata().unwrap().len() < 3 * MIB);
    assert_eq!(live(&trace), 8 * MIB, "while it runs");
    assert_eq!(warnings(&trace), "");
    program.kill();
    assert_eq!(live(&trace), 8 * MIB);
    assert!(warnings(&trace).contains("in memory of this host"), "{}", warnings(&trace));

    let packed = program.scratch.0.join("packed.vtrace");
    let pack = vramtrace().arg("pack").arg(&trace).arg("-o").arg(&packed).output().unwrap();
    assert!(pack.status.success(), "{pack:?}");
    set_permissions(&tail, Permissions::from_mode(0o444)).unwrap();
    assert!(warnings(&trace).contains("where it is no more"), "others may read it");
    std::fs::remove_file(&tail).unwrap();
    assert!(warnings(&trace).contains("where it is no more"), "{}", warnings(&trace));
    assert_eq!((live(&packed), warnings(&packed)), (8 * MIB, String::new()));

    let page = Header { host: "node7".into(), ..header(&trace) }.to_page();
    File::options().write(true).open(&trace).unwrap().write_all_at(&page, 0).unwrap();
    assert!(warnings(&trace).contains("recorded on host node7"), "{}", warnings(&trace));
    // Without its tail it lacks definitions: it does not verify.
    std::fs::remove_file(&trace).unwrap();
}

#[test]
fn nothing_stays_of_it_after_an_orderly_end_or_under_run() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    let trace = program.traces()[0].clone();
    let tail = tail_of(&trace);
    assert!(tail.exists());
    program.end();
    assert_eq!((tail.exists(), header(&trace).tail), (false, None));

    let scratch = Scratch::new();
    let out = scratch.0.join("out");
    let mut command = vramtrace();
    command.args(["run", "--simulate=1x8GiB", "--out"]).arg(&out).arg("--");
    command.arg(&Program::c("endings").0).arg("abort").env("VRAMTRACE_TEST_NO_MAP", "1");
    let output = command.output().unwrap();
    let [trace] =
        &std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>()[..]
    else {
        panic!("one trace: {output:?}")
    };
    assert_eq!((tail_of(trace).exists(), header(trace).tail), (false, None), "{output:?}");
    assert_eq!((live(trace), warnings(trace)), (4 * MIB, String::new()));
}

/// systemd removes a user's files in /dev/shm at the last logout (`RemoveIPC`).
#[test]
fn removed_while_the_program_runs_it_is_not_missed() {
    let mut program = start();
    assert_eq!(program.result("a 2"), 0);
    let trace = program.traces()[0].clone();
    std::fs::remove_file(tail_of(&trace)).unwrap();
    for _ in 0..3 {
        assert_eq!(program.result("c 20000"), 0);
    }
    assert_eq!(program.result("a 6"), 0);
    program.end();
    assert_eq!((program.stderr(), live(&trace)), (String::new(), 8 * MIB));
    assert_eq!(report(&[trace])["processes"][0]["ended_in_order"], true);
}
