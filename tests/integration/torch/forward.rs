//! Memory of PyTorch's backward pass has the stack of the forward operation: a stand-in of libtorch_cpu.so makes the
//! nodes of the graph and runs them on threads without Python.

use std::collections::HashMap;
use std::path::Path;

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Run, Setup};
use vramtrace_format::{Definition, Event, Space, StackId, TraceReader};

fn run(python: &Path, library: &str, preload: bool, variables: &[(&str, &str)]) -> Run {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_forward.py");
    let mut setup = Setup::simulated().contradicts();
    if preload {
        setup = setup.preload();
    }
    for (name, value) in variables {
        setup = setup.env(name, value);
    }
    let setup = setup.arg(script.display()).arg(libraries().join(library).display());
    Program(python.to_path_buf()).run(setup).ok()
}

/// The Python functions of the forward operation by the size of a block, innermost first. `None`: none is recorded.
fn forward_of_blocks(trace: &Path) -> HashMap<u64, Option<Vec<String>>> {
    let bytes = testkit::trace_bytes(trace);
    let reader = TraceReader::new(&bytes).unwrap();
    let (mut codes, mut stacks, mut forward) = (HashMap::new(), HashMap::new(), HashMap::new());
    for definition in reader.definitions() {
        match definition {
            Definition::Code { id, name, .. } => drop(codes.insert(id, name)),
            Definition::Stack { id, python, .. } => {
                let names = python.iter().map(|frame| codes[&frame.code].clone());
                stacks.insert(id, names.collect::<Vec<_>>());
            }
            Definition::Forward { stack, forward: of } => {
                assert_eq!(stacks[&stack], [""; 0], "a stack with Python frames has its own line");
                assert!(stacks.contains_key(&of), "defined before");
                forward.insert(stack, of);
            }
            _ => {}
        }
    }
    let names = |stack: StackId| forward.get(&stack).map(|of| stacks[of].clone());
    let blocks = reader.events().filter_map(|stamped| match stamped.event {
        Event::Alloc(alloc) if alloc.space == Space::Block => Some(alloc),
        _ => None,
    });
    blocks.map(|alloc| (alloc.size, names(alloc.stack))).collect()
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
    let pythons = testkit::pythons();
    if pythons.is_empty() {
        testkit::skip("forward lines: no Python from 3.8 on");
    }
    for (minor, python) in pythons {
        let bare = run(&python, "libtorch_cpu.so", false, &[]);
        for tensors in ["python", "full"] {
            let ours = run(&python, "libtorch_cpu.so", true, &[("VRAMTRACE_TENSORS", tensors)]);
            // The owners of the nodes, too.
            assert_eq!(bare.stdout, ours.stdout, "3.{minor} {tensors}");
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
    let Some((_, python)) = testkit::pythons().into_iter().next_back() else {
        return testkit::skip("forward lines: no Python from 3.8 on");
    };
    for (library, variable) in [
        ("libtorch_cpu-layout.so", None),
        ("libtorch_cpu-pointers.so", None),
        ("libtorch_cpu.so", Some(("VRAMTRACE_FORWARD", "off"))),
        ("libtorch_cpu.so", Some(("VRAMTRACE_STACKS", "python"))),
        ("libtorch_cpu.so", Some(("VRAMTRACE_STACKS", "native"))),
    ] {
        let bare = run(&python, library, false, &[]);
        let variables: Vec<_> = variable.into_iter().collect();
        let ours = run(&python, library, true, &variables);
        assert_eq!(bare.stdout, ours.stdout, "{library} {variable:?}");
        assert_eq!(ours.stderr, "", "{library} {variable:?}");
        let found = forward_of_blocks(&ours.only_trace());
        assert!(found.len() >= 10 && found.values().all(Option::is_none), "{library} {variable:?}");
    }
}

#[test]
fn reports_name_the_forward_line() {
    let Some((_, python)) = testkit::pythons().into_iter().next_back() else {
        return testkit::skip("forward lines: no Python from 3.8 on");
    };
    let ours = run(&python, "libtorch_cpu.so", true, &[]);
    let holders = |more: &[&str]| {
        let output = testkit::vramtrace()
            .args(["holders", "--at", "end"])
            .args(more)
            .arg(ours.only_trace())
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = holders(&[]);
    let full = holders(&["--full"]);
    assert!(full.contains("forward operation:\n"), "{full}");
    // The line in `linear`, and the line in `layer` that called it.
    assert!(text.contains(" of torch_forward.py:38 < torch_forward.py:42"), "{text}");
    assert!(text.contains(" of torch_forward.py:46 < torch_forward.py:"), "{text}");
}

/// The message at the moment of the failure has the line, too.
#[test]
fn the_out_of_memory_message_names_the_forward_line() {
    let Some((_, python)) = testkit::pythons().into_iter().next_back() else {
        return testkit::skip("forward lines: no Python from 3.8 on");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/torch_forward.py");
    let library = libraries().join("libtorch_cpu.so");
    let setup = Setup::simulated().contradicts().preload().arg(script.display());
    let run = Program(python).run(setup.arg(library.display()).arg("oom"));
    let named = |line: &str| {
        line.contains("torch_forward.py:38 < torch_forward.py:") && line.contains(" (backward) ")
    };
    assert!(run.stderr.lines().any(named), "{}", run.stderr);
}
