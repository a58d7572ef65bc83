//! The stack that each allocation carries, as the reader shows it, against what Python itself says,
//! for every Python that is installed with pyenv.

use std::collections::HashMap;
use std::ops::{Range, RangeBounds, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::stacks::{Raw, Stacks};
use object::{Object, ObjectSymbol};
use serde_json::Value;
use testkit::{Program, Run, Setup};
use vramtrace_format::{Join, StackFlags};
use vramtrace_reader::symbols::{Frame, Language};

/// Minor version and home of each.
fn pythons() -> Vec<(u32, PathBuf)> {
    let home = |python: PathBuf| python.parent().unwrap().parent().unwrap().to_path_buf();
    testkit::pythons().into_iter().map(|(minor, python)| (minor, home(python))).collect()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}

fn setup() -> Setup {
    Setup::simulated()
        .preload()
        .env("VRAMTRACE_STACK_DEPTH", "1000")
        .timeout(Duration::from_secs(120))
}

/// What the script printed, and the stacks of the trace.
fn result(run: &Run) -> (Vec<Value>, Stacks) {
    assert_eq!(run.stderr, "");
    let reported = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (reported, Stacks::of(&run.only_trace()))
}

/// Function, file and line.
type Place = (String, String, u32);

/// Python's own list.
fn theirs(one: &Value) -> Vec<Place> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let place = |f: &Value| (text(&f[0]), text(&f[1]), f[2].as_u64().unwrap() as u32);
    one["frames"].as_array().unwrap().iter().map(place).collect()
}

/// Of a stack of both languages.
fn ours(frames: &[&Frame]) -> Vec<Place> {
    let python = frames.iter().filter(|frame| frame.language == Language::Python);
    let place = |f: &&Frame| (f.function.to_string(), f.file.to_string(), f.line.unwrap_or(0));
    python.map(place).collect()
}

/// Where the interpreter's loop is, in its file.
#[derive(Default)]
struct Loops(HashMap<String, Vec<Range<u64>>>);

impl Loops {
    fn of(&mut self, path: &str) -> &[Range<u64>] {
        self.0.entry(path.to_string()).or_insert_with(|| {
            let bytes = std::fs::read(path).unwrap_or_default();
            let Ok(file) = object::File::parse(&*bytes) else { return Vec::new() };
            let named = |symbol: &object::Symbol| {
                symbol.name().is_ok_and(|name| name.starts_with("_PyEval_EvalFrameDefault"))
            };
            let symbols = file.symbols().chain(file.dynamic_symbols()).filter(named);
            symbols.map(|symbol| symbol.address()..symbol.address() + symbol.size()).collect()
        })
    }

    /// Indexes of the native frames that are loops, by symbols.
    fn among(&mut self, raw: &Raw) -> Vec<u32> {
        let is_loop = |address: &u64| {
            let Some(library) = raw.library(*address) else { return false };
            let at = address - 1 - library.base;
            self.of(&library.path).iter().any(|range| range.contains(&at))
        };
        let flags: Vec<bool> = raw.native.iter().map(is_loop).collect();
        (0..).zip(flags).filter(|(_, is_loop)| *is_loop).map(|(at, _)| at).collect()
    }
}

/// Native frames of the C library's sort stand between the function that called it and the one
/// that it called: our independent witness of the order.
fn sorts_are_in_their_place(frames: &[&Frame]) -> usize {
    let is_sort =
        |frame: &&Frame| frame.language == Language::Native && frame.function.starts_with("qsort");
    let mut sorts = 0;
    for at in frames.iter().enumerate().filter(|(_, f)| is_sort(f)).map(|(at, _)| at) {
        let python = |f: &&&Frame| f.language == Language::Python;
        let inner = frames[..at].iter().rev().find(python).unwrap();
        let outer = frames[at..].iter().find(python).unwrap();
        assert!(inner.function.ends_with("compare"), "{}", inner.function);
        assert_eq!(&*outer.function, "through_callback");
        sorts += 1;
    }
    sorts
}

/// The situations of the script in each Python of these minor versions.
fn compare(minors: RangeInclusive<u32>, languages: &str) {
    let is_there = |minor: &u32| pythons().iter().any(|(found, _)| found == minor);
    for minor in minors.clone().filter(|minor| !is_there(minor)) {
        testkit::skip_here(&format!("frames: no Python 3.{minor}"));
    }
    if !minors.clone().any(|minor| is_there(&minor)) {
        return;
    }
    let all = languages.contains("native");
    let with = || setup().env("VRAMTRACE_STACKS", languages);
    compare_all(minors, "frames_situations.py", with, |minor, reported, stacks| {
        assert!(reported.len() > 180, "{} situations", reported.len());
        let (mut sorts, mut nested, mut loops) = (0, 0, Loops::default());
        for size in reported.iter().map(|one| one["size"].as_u64().unwrap()) {
            let (raw, named) = (stacks.raw(size), stacks.named(size));
            if !all {
                assert!(raw.native.is_empty() && raw.flags.has(StackFlags::NATIVE_OFF));
                continue;
            }
            assert_eq!(raw.flags, StackFlags::default(), "size {size}");
            let own = raw.native.iter().filter_map(|address| raw.library(*address));
            assert!(own.into_iter().all(|library| !library.path.ends_with("libvramtrace.so")));
            // Each loop that symbols show runs some Python frames, and no other frame does.
            let joined: Vec<u32> = raw.joins.iter().map(|join| join.native).collect();
            assert_eq!(joined, loops.among(raw), "3.{minor} size {size}: {raw:x?}");
            assert_eq!(raw.joins.first().map(|join| join.python), Some(0));
            if minor <= 10 {
                let places = raw.joins.iter().map(|join| join.python);
                assert!(places.eq(0..raw.python as u32), "a loop for each");
            }
            nested += usize::from(raw.joins.len() > 1);
            sorts += sorts_are_in_their_place(&named);
            assert_eq!(named[0].language, Language::Native, "the call came through C");
        }
        assert!(!all || sorts >= 20 && nested >= 30, "{sorts} sorts, {nested} nested");
    });
}

#[test]
fn stacks_of_python_3_8_to_3_10_are_those_that_python_shows() {
    compare(8..=10, "native,python");
}

#[test]
fn stacks_of_python_3_11_to_3_13_are_those_that_python_shows() {
    compare(11..=13, "native,python");
}

#[test]
fn python_frames_without_native_ones_are_those_that_python_shows() {
    compare(8..=8, "python");
    compare(12..=12, "python");
}

/// With each Python of these minor versions: the stacks that a program printed are ours. `check` takes out what is no allocation.
fn compare_all(
    minors: impl RangeBounds<u32>,
    script: &str,
    setup: impl Fn() -> Setup,
    check: impl Fn(u32, &mut Vec<Value>, &Stacks),
) {
    let mut pythons = pythons();
    pythons.retain(|(minor, _)| minors.contains(minor));
    if pythons.is_empty() {
        testkit::skip("frames: no Python of these versions");
    }
    for (minor, home) in pythons {
        let run = Program(home.join("bin/python3")).run(setup().arg(file(script).display()));
        let (mut reported, stacks) = result(&run.ok());
        check(minor, &mut reported, &stacks);
        agree(minor, &reported, &stacks);
    }
}

/// Python's own lists of the allocations are ours.
#[track_caller]
fn agree(minor: u32, reported: &[Value], stacks: &Stacks) {
    for one in reported {
        let size = one["size"].as_u64().unwrap();
        assert_eq!(ours(&stacks.named(size)), theirs(one), "3.{minor} size {size}");
    }
}

/// The same functions on many threads at the same time, while others begin and end.
#[test]
fn python_stacks_of_threads_are_those_that_python_shows() {
    compare_all(8.., "frames_threads.py", setup, |_, reported, _| {
        assert_eq!(reported.len(), 4 * 12 * 5 * 2);
    });
}

/// Code objects at addresses of freed ones, called by frames at the same addresses.
#[test]
fn stacks_of_code_at_the_address_of_freed_code_are_those_that_python_shows() {
    let python_alone = || setup().env("VRAMTRACE_STACKS", "python");
    compare_all(8.., "freed_codes.py", python_alone, |minor, reported, _| {
        let again = reported.pop().unwrap()["again"].as_u64().unwrap();
        assert!(again >= 100, "3.{minor}: {again} addresses were used again");
        assert_eq!(reported.len(), 4 * (60 + 15));
    });
}

/// More frames than a walk visits are no sign of another layout, nor at the first walk.
#[test]
fn stacks_that_are_deeper_than_a_walk_are_cut_and_later_ones_are_whole() {
    compare_all(11.., "too_deep.py", setup, |_, reported, _| {
        let depths: Vec<_> = reported.iter().map(|one| one["depth"].as_u64().unwrap()).collect();
        assert!(depths[0] > 1 << 16 && depths[1] == depths[0] && depths[2] < 100, "{depths:?}");
    });
}

/// In a C program, with its symbols for itself alone.
#[test]
fn python_in_a_library_with_hidden_symbols_is_read() {
    let program = Program::c("embedded");
    let mut compared = 0;
    for (minor, home) in pythons() {
        let library = home.join(format!("lib/libpython3.{minor}.so.1.0"));
        if !library.exists() {
            testkit::skip_here(&format!("frames: {} is not there", library.display()));
            continue;
        }
        let setup = setup().arg(file("embedded.py").display()).arg(0).arg(library.display());
        let (mut reported, stacks) = result(&program.run(setup).ok());
        assert_eq!(reported.pop(), Some("gone".into()));
        assert_eq!(reported.len(), 9);
        agree(minor, &reported, &stacks);
        for size in reported.iter().map(|one| one["size"].as_u64().unwrap()) {
            let (raw, named) = (stacks.raw(size), stacks.named(size));
            assert!(!raw.joins.is_empty() && raw.joins.iter().all(|j| j.native != Join::BEYOND));
            // The program's own frames: the innermost, those between Python's, and the outermost.
            let names: Vec<&str> = named.iter().map(|frame| &*frame.function).collect();
            assert_eq!(names[0], "take");
            let main = names.iter().position(|name| *name == "main").unwrap();
            assert!(named[main..].iter().all(|frame| frame.language == Language::Native));
            for at in (0..names.len()).filter(|at| names[*at] == "again") {
                let callers = ["two", "three", "Thing.method", "method"];
                assert!(callers.contains(&names[at + 1]), "3.{minor}: {names:?}");
                assert_eq!(named[at - 1].language, Language::Python, "3.{minor}: {names:?}");
            }
            compared += 1;
        }
    }
    if compared == 0 {
        testkit::skip_here("frames: no libpython");
    }
}

/// The libraries of all Pythons, one after the other, and each again at once and at last.
fn each_twice_and_again() -> Vec<(u32, String)> {
    let library = |(minor, home): (u32, PathBuf)| {
        (minor, home.join(format!("lib/libpython3.{minor}.so.1.0")))
    };
    let there: Vec<_> = pythons().into_iter().map(library).filter(|(_, at)| at.exists()).collect();
    let shown = |(minor, at): &(u32, PathBuf)| (*minor, at.display().to_string());
    let twice = there.iter().flat_map(|one| [shown(one), shown(one)]);
    twice.chain(there.iter().map(shown)).collect()
}

/// The interpreters come and go as without us; each one's stacks are read, and nothing of one that is gone. Threads allocate
/// beside in one run, and in another the recorder does not see that a library is closed.
#[test]
fn interpreters_that_are_unloaded_and_others_in_their_place_are_read() {
    let libraries = each_twice_and_again();
    if libraries.is_empty() {
        return testkit::skip_here("frames: no libpython");
    }
    let timed = Setup::simulated().timeout(Duration::from_secs(120));
    for (beside, words) in [(0, &[][..]), (4, &[]), (0, &["close"])] {
        let with = timed.clone().arg(file("embedded.py").display()).arg(beside);
        let with = words.iter().fold(with, Setup::arg);
        let with = libraries.iter().fold(with, |setup, (_, library)| setup.arg(library));
        let deep = |setup: Setup| setup.preload().env("VRAMTRACE_STACK_DEPTH", "1000");
        let run = Program::c("embedded").as_bare(with, deep).ok();
        let (reported, stacks) = result(&run);
        assert_eq!(reported.len(), 10 * libraries.len());
        for (one, (minor, _)) in reported.chunks(10).zip(&libraries) {
            assert_eq!(one[9], "gone");
            agree(*minor, &one[..9], &stacks);
        }
    }
}

/// The interpreter frees its threads' states while they still run, and stops them one by one.
#[test]
fn threads_that_outlive_the_interpreter_end_as_without_us() {
    let full = std::env::var_os("VRAMTRACE_TEST_FULL").is_some();
    for (minor, home) in pythons() {
        for round in 0..if full { 50 } else { 4 } {
            let wait = f64::from(round) * 0.013 + 0.03;
            let run = || {
                let setup = setup().arg(file("daemons.py").display()).arg(wait);
                Program(home.join("bin/python3")).run(setup)
            };
            let mut ended = run();
            // CPython before 3.12 reads a freed thread state in `take_gil`: on a busy machine some of a thousand runs
            // end so without us, too.
            if ended.status == -libc::SIGSEGV && minor < 12 {
                ended = run();
            }
            assert_eq!((ended.status, &*ended.stdout), (0, "end\n"), "3.{minor}: {}", ended.stderr);
        }
    }
}

/// From then on it frees the states of other threads.
#[test]
fn no_frames_are_read_once_the_interpreter_finalizes() {
    for (minor, home) in pythons() {
        let setup = setup().arg(file("finalizing.py").display());
        let run = Program(home.join("bin/python3")).run(setup).ok();
        let (_, stacks) = result(&run);
        let (before, after) = (stacks.raw(512), stacks.raw(1024));
        assert!(before.python > 0 && !before.flags.has(StackFlags::NO_PYTHON_THREAD), "3.{minor}");
        assert_eq!(after.python, 0, "3.{minor}");
        assert!(after.flags.has(StackFlags::NO_PYTHON_THREAD), "3.{minor}");
    }
}

/// A thread that runs a sub-interpreter has two states, and before 3.12 PyGILState knows the main one's only.
#[test]
fn stacks_in_a_subinterpreter_are_its_own() {
    compare_all(12..=13, "subinterpreters.py", setup, |_, all, _| assert_eq!(all.len(), 9));
}
