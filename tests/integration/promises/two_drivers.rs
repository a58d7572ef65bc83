//! Two driver files in one process: one that opens the other is one driver; a copy is a second one,
//! whose calls are not followed.

use std::path::PathBuf;
use std::process::Command;
use testkit::{Program, Run, Scratch, Setup, sim, sim_dir, vramtrace};

const MIB: u64 = 1 << 20;

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

fn followed_once(has: impl Fn(&str) -> bool, lookups: &[&str]) {
    let scratch = Scratch::new();
    let directory = forwarding(&scratch, has);
    let program = Program::c("lookups");
    for lookup in lookups {
        let setup = Setup::simulated()
            .arg(lookup)
            .env("LD_LIBRARY_PATH", &directory)
            .env("INNER_LIBCUDA", sim_dir().join("libcuda.so.1"));
        let bare = program.run(setup.clone()).ok();
        let ours = program.run(setup.clone().preload()).ok();
        assert_eq!((&ours.stdout, &ours.stderr), (&bare.stdout, &bare.stderr), "{lookup}");
        let device = &ours.only_report()["devices"][0];
        assert_eq!(device["allocations"], 2, "{lookup} {device:#}");
        assert_eq!(device["frees"], 2, "{lookup} {device:#}");
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
    followed_once(
        |name| !name.starts_with("cuMemAlloc") && !name.starts_with("cuMemFree"),
        &["proc1-0", "proc2-0", "proc2-2"],
    );
}

/// Beside the first driver; a file of its own, as the loader knows files.
fn copy(scratch: &Scratch) -> PathBuf {
    let path = scratch.0.join("libcuda.so.1.copy");
    std::fs::copy(sim(), &path).unwrap();
    path
}

fn second(scratch: &Scratch, way: &str, setup: impl FnOnce(Setup) -> Setup) -> Run {
    let first = Setup::simulated().arg(copy(scratch).display()).arg(way);
    Program::c("second").run(setup(first)).ok()
}

#[test]
fn a_second_driver_is_not_hooked_and_is_reported() {
    let scratch = Scratch::new();
    for way in ["dlsym", "proc"] {
        let bare = second(&scratch, way, |setup| setup);
        let ours = second(&scratch, way, Setup::preload);
        assert_eq!((&ours.stdout, &ours.stderr), (&bare.stdout, &bare.stderr), "{way}");
        assert_eq!(ours.only_report()["devices"][0]["live_bytes"], 12 * MIB, "{way}");
        let notes = ours.notes();
        assert!(notes.iter().any(|note| note.starts_with("a second driver")), "{way} {notes:?}");
    }
}

#[test]
fn a_second_driver_gives_no_memory_under_a_cap() {
    let scratch = Scratch::new();
    for way in ["dlsym", "proc"] {
        let run = second(&scratch, way, |setup| setup.cap("8GiB"));
        assert!(!run.stdout.contains("64 * MIB) = 0"), "{way}: {}", run.stdout);
        assert!(run.stdout.contains("= 801"), "{way}: {}", run.stdout);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        assert!(run.stderr.contains("libcuda.so.1.copy: a second driver"), "{}", run.stderr);
    }
    let bare = second(&scratch, "version", |setup| setup);
    let ours = second(&scratch, "version", |setup| setup.cap("8GiB"));
    assert_eq!(ours.stdout, bare.stdout, "its version is printed");
}

#[test]
fn doctor_finds_a_second_driver() {
    let scratch = Scratch::new();
    let (program, copy) = (Program::c("second"), copy(&scratch));
    let output = vramtrace()
        .args(["doctor", "--simulate", "--"])
        .args([&program.0, &copy])
        .arg("dlsym")
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("problem   a second driver file"), "{printed}");
}
