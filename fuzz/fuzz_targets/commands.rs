//! Runs the commands on traces with arbitrary records whose checks are correct: each command must exit with
//! 0, 1 or 2, without a crash.
//!
//! VRAMTRACE_BIN is the path of `vramtrace`. The first byte of the input selects the command, the second the
//! boundary between definitions and events.
#![no_main]

mod repaired;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use repaired::{trace, words};
use vramtrace_format::WindowKind;
use vramtrace_reader::analysis::verify::verify;
use vramtrace_reader::trace::open;

const COMMANDS: &[&[&str]] = &[
    &["report"],
    &["report", "--json", "--all"],
    &["report", "--at", "peak", "--by", "phase"],
    &["report", "--by", "step"],
    &["holders", "--full"],
    &["holders", "--json", "--at", "end", "--level", "driver"],
    &["leaks", "--full"],
    &["leaks", "--json"],
    &["oom", "--at", "all", "--full"],
    &["oom", "--json"],
    &["frag"],
    &["frag", "--json", "--at", "end"],
    &["whatif"],
    &["flame", "-o", "-"],
    &["export", "--format", "csv", "-o", "-"],
    &["export", "--format", "perfetto", "-o", "-"],
    &["export", "--format", "pprof", "-o", "-"],
    &["export", "--format", "torch-snapshot", "-o", "-"],
    &["verify", "--json"],
];

/// Of this process, in memory.
fn place() -> &'static Path {
    static PLACE: OnceLock<tempfile::TempDir> = OnceLock::new();
    PLACE.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a directory")).path()
}

fuzz_target!(|input: &[u8]| {
    let [command, split, inside @ ..] = input else { return };
    let inside = words(inside);
    let at = usize::from(*split).min(inside.len());
    let bytes =
        trace(&[(WindowKind::Definitions, &inside[..at]), (WindowKind::Events, &inside[at..])]);
    let path = place().join("trace.vtrace");
    std::fs::write(&path, bytes).expect("written");
    let opened = open(&path).expect("its header is sound");
    let _ = verify(&opened).violated;
    let Some(program) = std::env::var_os("VRAMTRACE_BIN") else { return };
    let arguments = COMMANDS[usize::from(*command) % COMMANDS.len()];
    let mut run = Command::new(program);
    run.args(arguments).arg(&path).current_dir(place());
    let ended = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let status = ended.expect("started").code();
    assert!(matches!(status, Some(0..=2)), "{arguments:?}: {status:?}");
});
