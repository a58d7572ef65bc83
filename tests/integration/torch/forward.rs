//! Memory of PyTorch's backward pass has the stack of the forward operation: a stand-in of libtorch_cpu.so makes the
//! nodes of the graph and runs them on threads without Python.

use std::collections::HashMap;
use std::path::Path;

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup, pythons, repository};

use super::recorded::Recorded;

fn setup(library: &str) -> Setup {
    let script = repository().join("tests/python/torch_forward.py");
    let setup = Setup::simulated().contradicts().arg(script.display());
    setup.arg(libraries().join(library).display())
}

/// The Python functions of the forward operation by the size of a block, innermost first. `None`: none is recorded.
fn forward_of_blocks(trace: &Path) -> HashMap<u64, Option<Vec<String>>> {
    let recorded = Recorded::of(trace);
    let names = |stack| recorded.forward.get(&stack).map(|of| recorded.stacks[of].python.clone());
    recorded.blocks().map(|block| (block.size, names(block.stack))).collect()
}

/// The blocks that the program made, with what it says of them.
fn reported(run: &Run) -> Vec<(u64, Option<Vec<String>>)> {
    let lines = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
    let block = |line: serde_json::Value| {
        let names = |of: &Vec<serde_json::Value>| {
            of.iter().map(|name| name.as_str().unwrap().to_string()).collect()
        };
        Some((line.get("size")?.as_u64()?, line["forward"].as_array().map(names)))
    };
    lines.filter_map(block).collect()
}

#[test]
fn blocks_of_backward_have_the_stack_of_their_forward_operation() {
    for (minor, python) in pythons() {
        for tensors in ["python", "full"] {
            let setup = setup("libtorch_cpu.so").env("VRAMTRACE_TENSORS", tensors);
            // The owners of the nodes, too.
            let ours = Program(python.clone()).same_as_bare(setup);
            let found = forward_of_blocks(&ours.only_trace());
            let expected = reported(&ours);
            assert_eq!(expected.len(), 10);
            assert!(expected.iter().filter(|(_, names)| names.is_some()).count() == 5);
            for (size, names) in expected {
                assert_eq!(found[&size], names, "3.{minor} {tensors}: block of {size} bytes");
            }
        }
    }
}

/// Nodes of another layout, nodes that are held in another way, and the settings that turn it off: no line is recorded,
/// and the program runs as before.
#[test]
fn where_nodes_cannot_be_read_no_line_is_recorded() {
    let Some((_, python)) = pythons().pop() else { return };
    for (library, variable) in [
        ("libtorch_cpu-layout.so", ("VRAMTRACE_TENSORS", "python")),
        ("libtorch_cpu-pointers.so", ("VRAMTRACE_TENSORS", "python")),
        ("libtorch_cpu.so", ("VRAMTRACE_FORWARD", "off")),
        ("libtorch_cpu.so", ("VRAMTRACE_STACKS", "python")),
        ("libtorch_cpu.so", ("VRAMTRACE_STACKS", "native")),
    ] {
        let setup = setup(library).env(variable.0, variable.1);
        let ours = Program(python.clone()).same_as_bare(setup);
        assert_eq!(ours.stderr, "", "{library} {variable:?}");
        let found = forward_of_blocks(&ours.only_trace());
        assert!(found.len() >= 10 && found.values().all(Option::is_none), "{library} {variable:?}");
    }
}

#[test]
fn reports_name_the_forward_line() {
    let Some((_, python)) = pythons().pop() else { return };
    let ours = Program(python).run(setup("libtorch_cpu.so").preload()).ok();
    let (text, full) = (ours.text("holders --at end"), ours.text("holders --at end --full"));
    assert!(full.contains("forward operation:\n"), "{full}");
    // The line in `linear`, and the line in `layer` that called it.
    assert!(text.contains(" of torch_forward.py:38 < torch_forward.py:42"), "{text}");
    assert!(text.contains(" of torch_forward.py:46 < torch_forward.py:"), "{text}");
}

/// The message at the moment of the failure has the line, too.
#[test]
fn the_out_of_memory_message_names_the_forward_line() {
    let Some((_, python)) = pythons().pop() else { return };
    let run = Program(python).run(setup("libtorch_cpu.so").preload().arg("oom"));
    let named = |line: &str| {
        line.contains("torch_forward.py:38 < torch_forward.py:") && line.contains(" (backward) ")
    };
    assert!(run.stderr.lines().any(named), "{}", run.stderr);
}
