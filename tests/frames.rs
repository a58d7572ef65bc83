//! The stack that each allocation carries, against what Python itself says, for every Python that
//! is installed with pyenv.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use support::{Program, Setup};
use vramtrace_format::{Definition, Event, Join, PythonFrame, StackId, TraceReader};

/// Native addresses, Python frames, and which runs which.
type Stack = (Vec<u64>, Vec<PythonFrame>, Vec<Join>);

#[derive(Default)]
struct Stacks {
    codes: HashMap<u32, (String, String)>,
    modules: Vec<(u64, u64, String)>,
    stacks: HashMap<StackId, Stack>,
    of_size: HashMap<u64, StackId>,
}

fn read(trace: &Path) -> Stacks {
    let bytes = std::fs::read(trace).unwrap();
    let reader = TraceReader::new(&bytes).unwrap();
    let mut all = Stacks::default();
    for definition in reader.definitions() {
        match definition {
            Definition::Code { id, name, file, .. } => drop(all.codes.insert(id, (name, file))),
            Definition::Module { start, end, path, .. } => all.modules.push((start, end, path)),
            Definition::Stack { id, native, python, joins, .. } => {
                all.stacks.insert(id, (native, python, joins));
            }
            _ => {}
        }
    }
    for stamped in reader.events() {
        if let Event::Alloc(alloc) = stamped.event {
            all.of_size.insert(alloc.size, alloc.stack);
        }
    }
    all
}

fn run(python: &Path, stacks: &str) -> (Vec<serde_json::Value>, Stacks) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/frames_situations.py");
    let setup = Setup::simulated()
        .preload()
        .env("VRAMTRACE_STACKS", stacks)
        .env("VRAMTRACE_STACK_DEPTH", "1000")
        .arg(script.display())
        .timeout(Duration::from_secs(120));
    let run = Program(python.to_path_buf()).run(setup).ok();
    let said = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (said, read(&run.only_trace()))
}

fn compare(minor: u32, stacks: &str) {
    let pythons: Vec<_> =
        support::pythons().into_iter().filter(|(found, _)| *found == minor).collect();
    if pythons.is_empty() {
        support::skip(&format!("frames: no Python 3.{minor} from pyenv"));
    }
    for (_, python) in pythons {
        let (said, all) = run(&python, stacks);
        assert!(said.len() > 150, "{} situations", said.len());
        for one in &said {
            let size = one["size"].as_u64().unwrap();
            let stack = all.of_size[&size];
            let (native, frames, joins) = &all.stacks[&stack];
            let ours: Vec<_> = frames.iter().map(|frame| all.codes[&frame.code].clone()).collect();
            let theirs: Vec<_> = one["frames"]
                .as_array()
                .unwrap()
                .iter()
                .map(|f| (f[0].as_str().unwrap().to_string(), f[1].as_str().unwrap().to_string()))
                .collect();
            assert_eq!(ours, theirs, "3.{minor} size {size}");
            if stacks.contains("native") {
                assert_eq!(joins.first().map(|join| join.python), Some(0), "3.{minor} {size}");
                assert!(joins.iter().all(|join| (join.native as usize) < native.len()));
                assert!(joins.windows(2).all(|two| two[0].native < two[1].native));
                assert!(native.iter().all(|address| {
                    !all.modules.iter().any(|(start, end, path)| {
                        (*start..*end).contains(address) && path.ends_with("libvramtrace.so")
                    })
                }));
            }
        }
    }
}

#[test]
fn python_3_8() {
    compare(8, "native,python");
}

#[test]
fn python_3_9() {
    compare(9, "native,python");
}

#[test]
fn python_3_10() {
    compare(10, "native,python");
}

#[test]
fn python_3_11() {
    compare(11, "native,python");
}

#[test]
fn python_3_12() {
    compare(12, "native,python");
}

#[test]
fn python_3_13() {
    compare(13, "native,python");
}

#[test]
fn python_alone() {
    compare(8, "python");
    compare(12, "python");
}
