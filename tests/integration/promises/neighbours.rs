//! What else may stand in a process: other preloads, allocators, tools that write over imports or
//! code. Beside each the program prints what it prints without us, and the ledger has its memory
//! once: not never, and not twice.

use std::path::{Path, PathBuf};
use testkit::{Program, Run, Setup, shim, sim_dir};

const MIB: u64 = 1 << 20;

/// One neighbour, and the ways by which the program may take its memory beside it.
struct Neighbour {
    name: &'static str,
    ways: &'static [&'static str],
    /// Of the driver's memory: 2 live of 8; each is this kind.
    kind: &'static str,
}

const BUILT: [Neighbour; 6] = [
    Neighbour { name: "ALLOC", ways: &["linked", "looked"], kind: "device" },
    Neighbour { name: "DLSYM", ways: &["linked", "looked"], kind: "device" },
    Neighbour { name: "TORCH", ways: &["linked", "looked", "runtime"], kind: "vmm" },
    Neighbour { name: "GOT", ways: &["linked", "looked"], kind: "device" },
    Neighbour { name: "BYTES", ways: &["linked", "looked"], kind: "device" },
    Neighbour { name: "PROFILE", ways: &["linked", "looked"], kind: "device" },
];

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

/// Alone, before us and behind us.
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
        let device = &run.only_report()["devices"][0];
        assert_eq!(device["live_bytes"], 8 * MIB, "{what} {way} {order}: {device:#}");
        assert_eq!(device["by_kind"][kind]["allocations"], 8, "{what} {way} {order}: {device:#}");
        assert_eq!(device["by_kind"][kind]["peak_bytes"], 32 * MIB, "{what} {way} {order}");
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
    for Neighbour { name, ways, kind } in BUILT {
        for way in ways {
            let kind = if *way == "runtime" { kind } else { "device" };
            beside(&library(name), name, way, kind);
        }
    }
}

#[test]
fn other_allocators_of_host_memory() {
    for name in ALLOCATORS {
        let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let found = places.iter().map(|place| Path::new(place).join(name)).find(|it| it.exists());
        match found {
            Some(library) => {
                beside(&library, name, "linked", "device");
                beside(&library, name, "looked", "device");
            }
            None => testkit::skip(&format!("neighbours: no {name}")),
        }
    }
}
