//! Two driver files in one process: one that opens the other is one driver; a copy is a second one,
//! whose calls are not followed.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use testkit::{MIB, Program, Scratch, Setup, has, sim, sim_dir};

/// A driver that hands on to the simulated one, in a directory of its own; `has` says which
/// functions it has.
fn forwarding(scratch: &Scratch, has: impl Fn(&str) -> bool) -> PathBuf {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(sim()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split(" T ").nth(1));
    let lines: Vec<String> = names
        .filter(|name| name.starts_with("cu") && has(name))
        .map(|name| format!("F({name})\n"))
        .collect();
    assert!(lines.len() > 100, "{listed}");
    let directory = scratch.0.join("driver");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("names.h"), lines.concat()).unwrap();
    let include = format!("-I{}", directory.display());
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", &include];
    let built = Program::compiled("gcc", "forwarding.c", &flags);
    std::fs::copy(built.0, directory.join("libcuda.so.1")).unwrap();
    std::os::unix::fs::symlink(sim(), directory.join("libnvidia-ml.so.1")).unwrap();
    directory
}

fn followed_once(exports: impl Fn(&str) -> bool, lookups: &[&str]) {
    let scratch = Scratch::new();
    let directory = forwarding(&scratch, exports);
    let program = Program::c("lookups");
    for lookup in lookups {
        let setup = Setup::simulated()
            .arg(lookup)
            .env("LD_LIBRARY_PATH", &directory)
            .env("INNER_LIBCUDA", sim_dir().join("libcuda.so.1"));
        let ours = program.as_bare(setup.clone(), Setup::preload).quiet().ok();
        has(&ours.device(), json!({ "allocations": 2, "frees": 2 }));
        assert_eq!(ours.notes(), [""; 0], "{lookup}");
        // The context takes 518 MiB: 4 MiB more do not fit.
        let capped = program.run(setup.cap("520MiB"));
        assert!(capped.stdout.contains("(&plain, 4 << 20) = 2"), "{lookup}: {}", capped.stdout);
    }
}

#[test]
fn a_driver_that_opens_the_real_one_is_followed_once() {
    followed_once(|_| true, &["dlsym", "default", "next", "proc1-0", "proc2-0", "proc2-2"]);
}

#[test]
fn what_only_the_inner_driver_has_is_followed() {
    let has = |name: &str| !name.starts_with("cuMemAlloc") && !name.starts_with("cuMemFree");
    followed_once(has, &["proc1-0", "proc2-0", "proc2-2"]);
}

/// Beside the first driver; a file of its own, as the loader knows files.
fn copy(scratch: &Scratch) -> PathBuf {
    let path = scratch.0.join("libcuda.so.1.copy");
    std::fs::copy(sim(), &path).unwrap();
    path
}

fn setup(scratch: &Scratch, way: &str) -> Setup {
    Setup::simulated().arg(copy(scratch).display()).arg(way)
}

#[test]
fn a_second_driver_is_not_hooked_and_is_reported() {
    let scratch = Scratch::new();
    for way in ["dlsym", "proc"] {
        let ours = Program::c("second").as_bare(setup(&scratch, way), Setup::preload).quiet().ok();
        assert_eq!(ours.device()["live_bytes"], 12 * MIB, "{way}");
        let notes = ours.notes();
        assert!(notes.iter().any(|note| note.starts_with("a second driver")), "{way} {notes:?}");
    }
}

#[test]
fn a_second_driver_gives_no_memory_under_a_cap() {
    let scratch = Scratch::new();
    for way in ["dlsym", "proc"] {
        let run = Program::c("second").run(setup(&scratch, way).cap("8GiB")).ok();
        assert!(!run.stdout.contains("64 * MIB) = 0"), "{way}: {}", run.stdout);
        assert!(run.stdout.contains("= 801"), "{way}: {}", run.stdout);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        assert!(run.stderr.contains("libcuda.so.1.copy: a second driver"), "{}", run.stderr);
    }
    // Its version is printed.
    Program::c("second").as_bare(setup(&scratch, "version"), |setup| setup.cap("8GiB")).ok();
}

#[test]
fn doctor_finds_a_second_driver() {
    let scratch = Scratch::new();
    let (program, copy) = (Program::c("second"), copy(&scratch));
    let line = format!("doctor --simulate -- {} {} dlsym", program.0.display(), copy.display());
    let output = scratch.run(&line);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("problem   a second driver file"), "{printed}");
}
