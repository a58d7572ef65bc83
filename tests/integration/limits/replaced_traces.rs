//! `vramtrace metrics` where something else stands in the place of a process's trace: it is not read, and another process
//! has its figures.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;

use testkit::{InteractiveProgram, Scratch, Setup, vramtrace};

const NOBODY: u32 = 65_534;

/// Whether a job has figures of its trace.
fn has_figures(text: &str, job: &str) -> bool {
    let label = format!("job=\"{job}\"");
    text.lines()
        .any(|line| line.starts_with("vramtrace_trace_age_seconds") && line.contains(&label))
}

/// The metrics. The command may write no file.
fn metrics(live: &Path) -> String {
    let mut command = Command::new("timeout");
    command.args(["120", "bash", "-c", "ulimit -f 0 && exec \"$0\" metrics"]);
    command.arg(vramtrace().get_program()).env("VRAMTRACE_LIVE_DIR", live);
    let ran = command.env_remove("XDG_RUNTIME_DIR").output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap()
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn what_stands_in_place_of_a_trace_is_not_read_and_the_others_have_their_figures() {
    let root = testkit::user() == 0;
    let live = Scratch::reachable();
    std::fs::set_permissions(&live.0, PermissionsExt::from_mode(0o1777)).unwrap();
    let jobs = ["bad", "good"].map(|name| format!("{name}-{}", std::process::id()));
    let [bad, good] = [0, 1].map(|n: usize| {
        let setup = Setup::simulated().preload().env("SLURM_JOB_ID", &jobs[n]);
        let setup = setup.env("VRAMTRACE_LIVE_DIR", live.0.as_os_str());
        // For root, the trace of another user.
        let mut program = InteractiveProgram::start(match n {
            0 if root => setup.user(NOBODY),
            _ => setup,
        });
        assert_eq!(program.result("a 100"), 0);
        program
    });
    let text = metrics(&live.0);
    assert!(jobs.iter().all(|job| has_figures(&text, job)), "{text}");

    let path = bad.traces().remove(0);
    let away = path.with_file_name("away");
    std::fs::rename(&path, &away).unwrap();
    let trace = std::fs::read(&away).unwrap();
    let owner = if root { NOBODY } else { testkit::user() };
    let mut state = 1u64;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state.to_le_bytes()
    });
    let garbage: Vec<u8> = words.take(2 << 20).flatten().collect();
    let behind = [&trace[..], &garbage].concat();
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
    let put: [(&str, &dyn Fn()); 8] = [
        ("random bytes", &|| write(&garbage)),
        ("gzip", &|| write(&gzip(&trace))),
        ("gzip of much more", &|| write(&gzip(&vec![7; 256 << 20]))),
        ("a link to the trace", &|| symlink(&away, &path).unwrap()),
        ("a link to a device", &|| symlink("/dev/zero", &path).unwrap()),
        ("a FIFO", &|| fifo(&path)),
        ("nothing", &|| ()),
        ("a sparse file", &|| {
            let file = File::create(&path).unwrap();
            file.write_all_at(&trace[..4096], 0).unwrap();
            // As long as the file system has files.
            let set = |shift: &u32| file.set_len(1 << shift).is_ok();
            assert!((40..63).rev().any(|shift| set(&shift)));
        }),
    ];
    for (what, put) in put {
        put();
        if path.symlink_metadata().is_ok() {
            lchown(&path, Some(owner), None).unwrap();
        }
        let text = metrics(&live.0);
        assert!(has_figures(&text, &jobs[1]), "{what}: {text}");
        // The page has the figures of the process all the same.
        assert!(text.contains(&jobs[0]), "{what}: {text}");
        if what != "a sparse file" {
            assert!(!has_figures(&text, &jobs[0]), "{what}: {text}");
        }
        let _ = std::fs::remove_file(&path);
    }
    // What is sound of it is read, whatever stands behind.
    write(&behind);
    lchown(&path, Some(owner), None).unwrap();
    assert!(has_figures(&metrics(&live.0), &jobs[0]));
    if root {
        lchown(&path, Some(0), None).unwrap();
        assert!(!has_figures(&metrics(&live.0), &jobs[0]), "a file of root's");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(&away, &path).unwrap();
    drop((bad, good));
}
