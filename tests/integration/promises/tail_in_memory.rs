//! Where a file beside the trace cannot be mapped (btrfs, NFS), the tail is in memory of the host.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use testkit::{InteractiveProgram, MIB, Program, Scratch, Setup, vramtrace};
use vramtrace_format::{Header, TailPlace, TraceReader, memory, tail};

use crate::trace_file_damage::{MANY_WINDOWS, files, live, process_of, tails};

/// A program with 2 MiB, and its trace.
fn start() -> (InteractiveProgram, PathBuf) {
    let setup = Setup::simulated().preload().env("VRAMTRACE_TEST_NO_MAP", "1");
    crate::trace_file_damage::start(setup)
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

fn warnings(trace: &Path) -> String {
    let output = vramtrace().arg("report").arg(trace).output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn after_a_kill_it_is_found_by_the_header_and_packed() {
    let (mut program, trace) = start();
    // In the second window and behind.
    assert_eq!(program.results("c 20000, a 6"), [0, 0]);
    let tail = tail_of(&trace);
    assert_eq!(header(&trace).tail, Some(TailPlace::Memory));
    assert_eq!(tails(&program.scratch.0), [] as [PathBuf; 0]);
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
    assert_eq!((live(&packed), warnings(&packed)), ((8 * MIB).into(), String::new()));

    let page = Header { host: "node7".into(), ..header(&trace) }.to_page();
    File::options().write(true).open(&trace).unwrap().write_all_at(&page, 0).unwrap();
    assert!(warnings(&trace).contains("recorded on host node7"), "{}", warnings(&trace));
    // Without its tail it lacks definitions: it does not verify.
    std::fs::remove_file(&trace).unwrap();
}

#[test]
fn nothing_stays_of_it_after_an_orderly_end_or_under_run() {
    let (mut program, trace) = start();
    let tail = tail_of(&trace);
    assert!(tail.exists());
    program.finish();
    assert_eq!((tail.exists(), header(&trace).tail), (false, None));

    let scratch = Scratch::new();
    let mut command = vramtrace();
    command.args(["run", "--simulate=1x8GiB", "--out", "out", "--"]).current_dir(&scratch.0);
    command.arg(&Program::c("endings").0).arg("abort").env("VRAMTRACE_TEST_NO_MAP", "1");
    let output = command.output().unwrap();
    let [trace] = &files(&scratch.0.join("out"))[..] else { panic!("one trace: {output:?}") };
    assert_eq!((tail_of(trace).exists(), header(trace).tail), (false, None), "{output:?}");
    assert_eq!((live(trace), warnings(trace)), ((4 * MIB).into(), String::new()));
}

/// systemd removes a user's files in /dev/shm at the last logout (`RemoveIPC`).
#[test]
fn removed_while_the_program_runs_it_is_not_missed() {
    let (mut program, trace) = start();
    std::fs::remove_file(tail_of(&trace)).unwrap();
    assert_eq!(program.results(MANY_WINDOWS), [0; 4]);
    program.finish();
    assert_eq!((program.stderr(), live(&trace)), (String::new(), (8 * MIB).into()));
    assert_eq!(process_of(&trace)["ended_in_order"], true);
}
