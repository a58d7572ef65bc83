//! What else may stand in a process: other preloads, allocators, tools that write over imports or
//! code. Beside each the program prints what it prints without us, and the ledger has its memory
//! once: not never, and not twice.

use std::path::{Path, PathBuf};

use serde_json::json;
use testkit::{MIB, Program, Run, Setup, has, shim, sim_dir};

/// Ways by which the program may take its memory.
const WAYS: [&str; 2] = ["linked", "looked"];
const ALLOCATORS: [&str; 3] = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"];

fn driver() -> String {
    format!("-L{}", sim_dir().display())
}

fn program() -> Program {
    let driver = driver();
    let flags = ["-rdynamic", "-Wl,--unresolved-symbols=ignore-in-object-files", &driver];
    Program::c_with("beside", &[&flags[..], &["-Wl,--no-as-needed", "-l:libcuda.so.1"]].concat())
}

fn library(name: &str) -> PathBuf {
    let (kind, driver) = (format!("-DKIND={name}"), driver());
    let flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", &kind, &driver, "-Wl,--no-as-needed"];
    Program::compiled("gcc", "neighbour.c", &[&flags[..], &["-l:libcuda.so.1", "-ldl"]].concat()).0
}

/// Alone, before us and behind us. Of the driver's memory, 2 MiB are live of each 8; it is of this kind.
#[track_caller]
fn beside(neighbour: &Path, what: &str, way: &str, kind: &str) {
    let (program, theirs) = (program(), neighbour.display().to_string());
    let setup = || Setup::simulated().arg(way).env("NEIGHBOUR_TELLS", "1");
    let alone = program.run(setup().env("LD_PRELOAD", &theirs)).ok();
    let ours = shim().display().to_string();
    for order in [format!("{ours}:{theirs}"), format!("{theirs}:{ours}")] {
        let run = program.run(setup().env("LD_PRELOAD", &order)).ok();
        // Our functions call the driver's: one of the same name behind us is not reached.
        let hidden = what == "ALLOC" && order.starts_with(&ours);
        let output = |run: &Run| match hidden {
            true => run.stdout.lines().filter(|line| !line.contains("saw")).collect(),
            false => run.stdout.clone(),
        };
        assert_eq!(output(&run), output(&alone), "{what} {way} {order}");
        assert_eq!(run.stderr, alone.stderr, "{what} {way} {order}");
        let device = run.device();
        assert_eq!(device["live_bytes"], 8 * MIB, "{what} {way} {order}: {device:#}");
        let of_kind = json!({ "allocations": 8, "peak_bytes": 32 * MIB });
        has(&device["by_kind"][kind], of_kind);
        if order.starts_with(&ours) && kind != "vmm" {
            continue;
        }
        // The context takes 518 MiB: five of 4 MiB fit.
        let capped = program.run(setup().env("LD_PRELOAD", &order).env("VRAMTRACE_CAP", "540MiB"));
        let granted = capped.stdout.matches("4 * MIB) = 0").count();
        assert_eq!(granted, 5, "{what} {way} {order}: {}", capped.stdout);
    }
}

#[test]
fn a_neighbour_that_was_built_for_the_test() {
    for name in ["ALLOC", "DLSYM", "TORCH", "GOT", "BYTES", "PROFILE"] {
        WAYS.into_iter().for_each(|way| beside(&library(name), name, way, "device"));
    }
    beside(&library("TORCH"), "TORCH", "runtime", "vmm");
}

#[test]
fn other_allocators_of_host_memory() {
    for name in ALLOCATORS {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|it| it.exists());
        match found {
            Some(library) => {
                WAYS.into_iter().for_each(|way| beside(&library, name, way, "device"));
            }
            None => testkit::skip(&format!("neighbours: no {name}")),
        }
    }
}
