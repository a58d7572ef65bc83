//! Imports run in one direction: from the upper rooms of a crate to the lower ones.
//!
//! `ARROWS=1 cargo test --test architecture -- --nocapture` lists every import between rooms and
//! every cycle of files.

mod condition;
mod cycles;
mod forms;
mod imports;
mod layout;
mod lines;
mod opening;
mod resolve;
mod sources;
mod test_files;
mod tokens;
mod tree;

use std::path::Path;

use layout::{Crate, Layout, within};

const FORMAT: Layout = Layout {
    folder: "format/src",
    library: "vramtrace_format",
    divided: &[],
    layers: &[
        &["error", "scalar"],
        &[
            "atomics",
            "block_size",
            "cells",
            "cgroup",
            "holes",
            "host_switch",
            "ids",
            "kind",
            "lines",
            "memory",
            "outspec",
            "proc",
            "recordspec",
            "sampling",
            "secrets",
            "shown",
            "size",
            "stackspec",
            "torch_conf",
            "uuid",
        ],
        &["address_space", "capspec", "physical", "record"],
        &["header", "oom", "pages", "escape", "policy", "summary"],
        &["layers", "window"],
        &["read", "stack_order", "write"],
    ],
    apart: &[],
    largest_cycle: 0,
};

const SHIM: Layout = Layout {
    folder: "shim/src",
    library: "vramtrace",
    divided: &["hooks"],
    layers: &[
        &["runtime"],
        &["driver", "config"],
        &["model"],
        &["interpose"],
        &["capture"],
        &["trace_writer"],
        &["oom"],
        &["hooks/process"],
        &["hooks/call"],
        &["hooks/families"],
        &["hooks/entry"],
        &["hooks"],
    ],
    // They name no type of CUDA: another vendor's driver would stand beside ours.
    apart: &[("model", "driver"), ("interpose", "driver")],
    largest_cycle: 3,
};

const READER: Layout = Layout {
    folder: "src",
    library: "vramtrace_reader",
    divided: &["analysis"],
    layers: &[
        &["driver", "error", "facts", "spans", "units"],
        &["files"],
        &["console", "trace"],
        &["replay", "symbols"],
        &["allocator"],
        &["analysis/engines"],
        &["analysis/memory", "analysis/parallel"],
        &["analysis/roles"],
        &["analysis/steps"],
        &["analysis/diagnosis"],
        &["analysis/fits"],
        &["analysis/process"],
        &["analysis/engine_use", "analysis/runs", "analysis/verify"],
        &["analysis"],
        &["report", "export", "import"],
        &["live_processes"],
        &["launch"],
        &["doctor", "metrics"],
        &["cli"],
    ],
    apart: &[],
    largest_cycle: 3,
};

const SIM: Layout = Layout {
    folder: "sim/src",
    library: "vramtrace_sim",
    divided: &[],
    layers: &[
        &["system", "ranges", "error"],
        &["fault", "param", "host_function"],
        &["abi"],
        &["aperture", "error_text", "image", "pool_state", "graph_memory", "touched"],
        &["shared"],
        &["device"],
        &["memory"],
        &["driver"],
        &["contexts", "shared_file"],
        &["graph_cost"],
        &["graphs"],
        &["captures"],
        &["streams"],
        &["array", "capture", "host", "managed", "module", "pool", "device_calls"],
        &["launch", "stream", "vmm"],
        &["context", "copy", "heap", "ipc", "nvml"],
        &["graph"],
        &["entry"],
    ],
    apart: &[],
    largest_cycle: 0,
};

#[test]
fn format_imports_run_downwards() {
    check(&FORMAT);
}

#[test]
fn shim_imports_run_downwards() {
    check(&SHIM);
}

#[test]
fn sim_imports_run_downwards() {
    check(&SIM);
}

#[test]
fn reader_imports_run_downwards() {
    check(&READER);
}

fn check(layout: &Layout) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(layout.folder);
    let read = Crate::read(&sources::read(&folder), layout);
    print(layout, &read);
    let violations = layout.violations(&read);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    assert!(read.room_cycles().is_empty(), "rooms import each other: {:?}", read.room_cycles());
}

fn print(layout: &Layout, read: &Crate) {
    let (files, rooms) = (read.file_cycles(), read.room_cycles());
    let pairs = read.between_rooms();
    let in_cycles: usize = files.iter().map(Vec::len).sum();
    println!(
        "{}: {} of {} files in cycles, the largest of {}: {}",
        layout.folder,
        in_cycles,
        read.files.len(),
        files.first().map_or(0, Vec::len),
        files.first().map_or(String::new(), |cycle| cycle.join(" "))
    );
    println!("{}: {} arrows between rooms, cycles {rooms:?}", layout.folder, pairs.len());
    if std::env::var_os("ARROWS").is_none() {
        return;
    }
    for cycle in &files {
        println!("{}: cycle of {} files: {}", layout.folder, cycle.len(), cycle.join(" "));
        for import in within(read, cycle) {
            println!("    {}", read.describe(import));
        }
    }
    for ((from, to), imports) in &pairs {
        println!("{}: {from} -> {to}", layout.folder);
        for import in imports {
            println!("    {}", read.describe(import));
        }
    }
}
