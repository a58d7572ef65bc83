//! Stacks as a trace tells them, named.

use vramtrace_format::{Definition, Join};

use super::*;
use crate::trace::TestFiles;

fn definitions(all: Vec<Definition>) -> Definitions {
    let mut definitions = Definitions::of(Some(Arc::new(TestFiles)));
    all.into_iter().for_each(|definition| definitions.add(definition));
    definitions
}

fn module(id: u32, path: &str, start: u64) -> Definition {
    let (path, build_id, base, end) = (path.into(), Vec::new(), start, start + 0x1000);
    Definition::Module { id, path, build_id, base, start, end }
}

fn code(id: u32, name: &str, file: &str, first_line: i32) -> Definition {
    let (name, file, line_table) = (name.into(), file.into(), vec![4, 1, 4, 1]);
    Definition::Code { id, minor: 9, name, file, first_line, line_table }
}

fn stack(id: u32, native: &[u64], python: &[(u32, i32)], joins: &[(u32, u32)]) -> Definition {
    let frame = |&(code, last_instruction): &(u32, i32)| PythonFrame { code, last_instruction };
    let join = |&(python, native): &(u32, u32)| Join { python, native };
    let (id, flags, native) = (StackId(id), StackFlags(0), native.to_vec());
    let (python, joins) = (python.iter().map(frame).collect(), joins.iter().map(join).collect());
    Definition::Stack { id, flags, native, python, joins }
}

fn header() -> Header {
    Header {
        executable: "/usr/bin/python3".into(),
        working_directory: "/home/me".into(),
        ..Header::default()
    }
}

fn frame_names(symbols: &Symbols, id: u32) -> Vec<String> {
    let words = |frame: &Frame| match frame.place() {
        Some(place) => format!("{} ({place})", frame.function),
        None => frame.function.to_string(),
    };
    symbols.stack(StackId(id)).map(words).collect()
}

#[test]
fn two_languages_become_one_stack() {
    let definitions = definitions(vec![
        module(1, "/usr/lib/libvramtrace.so", 0x10000),
        module(2, "/nowhere/libtorch_cuda.so", 0x20000),
        module(3, "/nowhere/libpython3.9.so.1.0", 0x30000),
        module(4, "lib/../libc.so.6", 0x40000),
        code(7, "Model.forward", "/home/me/model.py", 100),
        code(8, "<module>", "train.py", 1),
        stack(
            1,
            &[0x10010, 0x20010, 0x30010, 0x30020, 0x30030, 0x40010],
            &[(7, 4), (8, 0)],
            &[(0, 2), (1, 3)],
        ),
    ]);
    let symbols = Symbols::of_all(&definitions, &header());
    let names = ["libtorch_cuda.so+0x10", "Model.forward (model.py:101)", "<module> (train.py:1)"];
    assert_eq!(frame_names(&symbols, 1), names);
    // What is hidden needs no names.
    let problems = symbols.problems();
    assert!(problems.iter().all(|problem| !problem.contains("libpython")), "{problems:?}");
    let of = |frame: &Frame| (frame.language, frame.library.as_deref().map(str::to_string));
    let frames: Vec<_> = symbols.stack(StackId(1)).take(2).map(of).collect();
    let library = "/nowhere/libtorch_cuda.so".to_string();
    assert_eq!(frames, [(Language::Native, Some(library)), (Language::Python, None)]);
}

#[test]
fn without_files_none_that_a_trace_names_is_opened() {
    for files in [Some(Arc::new(TestFiles) as Arc<dyn HostFiles>), None] {
        let mut definitions = Definitions::of(files.clone());
        definitions.add(module(1, "/nowhere/libown.so", 0x20000));
        definitions.add(stack(1, &[0x20010], &[], &[]));
        let symbols = Symbols::of_all(&definitions, &header());
        assert_eq!(frame_names(&symbols, 1), ["libown.so+0x10"]);
        // One that was opened is missing.
        assert_eq!(symbols.problems().is_empty(), files.is_none(), "{:?}", symbols.problems());
    }
}

#[test]
fn an_interpreters_frames_show_where_a_stack_has_no_python() {
    let definitions = definitions(vec![
        module(1, "/nowhere/libpython3.9.so.1.0", 0x30000),
        code(7, "f", "f.py", 100),
        stack(1, &[0x30010], &[(7, 0)], &[(0, 0)]),
        stack(2, &[0x30010, 0x30020], &[], &[]),
    ]);
    let symbols = Symbols::of_all(&definitions, &header());
    assert_eq!(frame_names(&symbols, 1), ["f (f.py:100)"]);
    assert_eq!(frame_names(&symbols, 2), ["libpython3.9.so.1.0+0x10", "libpython3.9.so.1.0+0x20"]);
}

#[test]
fn what_gives_no_names_is_said_once_each() {
    let definitions = definitions(vec![
        module(1, "/nowhere/liba.so", 0x10000),
        module(2, "/nowhere/liba.so", 0x20000),
        stack(1, &[0x10010, 0x20010, 0x99], &[(5, 0)], &[]),
    ]);
    let symbols = Symbols::of_all(&definitions, &header());
    let expected = ["liba.so+0x10", "0x99", "code object 5, not in the trace"];
    assert_eq!(frame_names(&symbols, 1), [&expected[..1], &expected].concat());
    assert_eq!(symbols.problems().len(), 1, "{:?}", symbols.problems());
    let problem = &symbols.problems()[0];
    assert!(problem.starts_with("/nowhere/liba.so: is not there any more"), "{problem}");
}

#[test]
fn this_program_changed_since_it_was_traced_is_not_asked() {
    let own = std::env::current_exe().unwrap();
    let (path, build_id, base, start) = (own.to_str().unwrap().into(), vec![1; 20], 0, 0);
    let changed = Definition::Module { id: 1, path, build_id, base, start, end: 1 << 40 };
    let definitions = definitions(vec![changed, stack(1, &[0x5000], &[], &[])]);
    let symbols = Symbols::of_all(&definitions, &header());
    assert_eq!(frame_names(&symbols, 1), [format!("{}+0x5000", base_name(own.to_str().unwrap()))]);
    let problem = &symbols.problems()[0];
    assert!(problem.contains("another file than the one that was traced"), "{problem}");
}

#[test]
fn the_main_program_without_a_name_is_the_executable() {
    let own = std::env::current_exe().unwrap();
    let header = Header { executable: own.to_str().unwrap().into(), ..header() };
    let definitions = definitions(vec![module(1, "", 0), stack(1, &[0x10], &[], &[])]);
    let symbols = Symbols::of_all(&definitions, &header);
    let frame = symbols.stack(StackId(1)).next().unwrap();
    assert_eq!(frame.library.as_deref(), own.to_str());
    assert!(symbols.problems().is_empty(), "{:?}", symbols.problems());
}

#[test]
fn a_stack_without_frames_says_why() {
    let lacking = |id, all: &[StackFlags]| {
        let (id, mut flags) = (StackId(id), StackFlags(0));
        all.iter().for_each(|flag| flags.add(*flag));
        let (native, python, joins) = Default::default();
        Definition::Stack { id, flags, native, python, joins }
    };
    let definitions = definitions(vec![
        lacking(1, &[StackFlags::TOO_MANY]),
        lacking(2, &[StackFlags::NATIVE_OFF, StackFlags::NO_PYTHON_FRAMES]),
        lacking(3, &[]),
    ]);
    let symbols = Symbols::of_all(&definitions, &header());
    let why = [0, 1, 2, 3, 4].map(|id| symbols.why_empty(StackId(id)));
    let expected = [
        "no stack was taken",
        "stacks that came when the recorder had room for no more",
        "a thread without Python frames",
        "a stack without frames",
        "its stack is not in the trace",
    ];
    assert_eq!(why, expected);
    assert!(frame_names(&symbols, 1).is_empty() && frame_names(&symbols, 4).is_empty());
}

#[test]
fn deep_and_many_stacks_are_taken() {
    let native: Vec<u64> = (0..20_000).map(|n| 0x10000 + n % 0x1000).collect();
    let python: Vec<(u32, i32)> = (0..20_000).map(|n| (1, n % 100)).collect();
    let mut all = vec![module(1, "/nowhere/liba.so", 0x10000), code(1, "f", "f.py", 1)];
    all.push(stack(1, &native, &python, &[(0, 10_000)]));
    all.extend((2..2_000).map(|id| stack(id, &native[..20], &python[..20], &[])));
    let definitions = definitions(all);
    let symbols = Symbols::of_all(&definitions, &header());
    assert_eq!(symbols.stack(StackId(1)).count(), 40_000);
    assert_eq!(symbols.stack(StackId(1_999)).count(), 40);
    assert!(symbols.frames().len() <= 0x1000 + 100, "each frame once");
}

#[test]
fn libraries_by_their_part_in_a_stack() {
    for (path, origin) in [
        ("/opt/libvramtrace.so", FrameOrigin::Recorder),
        ("/usr/lib/libpython3.11.so.1.0", FrameOrigin::Interpreter),
        ("/root/.pyenv/versions/3.8.18/bin/python3.8", FrameOrigin::Interpreter),
        ("/usr/bin/python", FrameOrigin::Interpreter),
        ("/opt/pythonish", FrameOrigin::Shown),
        ("/opt/torch/lib/libtorch_python.so", FrameOrigin::Shown),
        ("/lib/x86_64-linux-gnu/libc.so.6", FrameOrigin::System),
        ("/lib64/ld-linux-x86-64.so.2", FrameOrigin::System),
        ("/opt/libcudart.so.12", FrameOrigin::Shown),
    ] {
        assert_eq!(FrameOrigin::of_library(path), origin, "{path}");
    }
}
