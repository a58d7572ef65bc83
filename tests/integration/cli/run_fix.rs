//! `vramtrace run --fix=on-oom`: when a command that was out of memory is started again, with what, and when not.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use testkit::{Program, Said, Scratch, shim, sim};

const SETTING: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

/// A program that is out of memory once, and what started it.
struct Fixed {
    code: Option<i32>,
    stderr: String,
    scratch: Scratch,
}

/// The stand-in of PyTorch's library.
fn torch() -> PathBuf {
    testkit::torch_stand_ins::libraries().join("libc10_cuda.so")
}

/// `vramtrace run --fix=on-oom OPTIONS -- out_of_memory LIBC10_CUDA WORDS`, in a directory of its own.
fn fixed(options: &[&str], words: &[&str], change: impl FnOnce(&mut Command)) -> Fixed {
    let command = [Program::c("out_of_memory").0.into_os_string(), torch().into()];
    let words = words.iter().map(OsString::from);
    started(Scratch::new(), options, command.into_iter().chain(words), change)
}

fn started(
    scratch: Scratch,
    options: &[&str],
    words: impl IntoIterator<Item = OsString>,
    change: impl FnOnce(&mut Command),
) -> Fixed {
    sim();
    shim();
    let fixed = ["run", "--simulate", "--cap", "1400MiB", "--oom-report", "off", "--fix=on-oom"];
    let mut command = scratch.command(&[&fixed, options, &["--"]].concat());
    command.args(words).stdin(Stdio::null());
    command.env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("PYTORCH_ALLOC_CONF");
    change(&mut command);
    let said = Said::by(&mut command);
    Fixed { code: said.code, stderr: said.err, scratch }
}

impl Fixed {
    fn lines(&self) -> Vec<&str> {
        let ours = |line: &&str| line.contains("--fix=on-oom");
        self.stderr.lines().filter(ours).collect()
    }

    /// The directories of runs, by name.
    fn runs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.scratch.0).unwrap().map(|entry| entry.unwrap());
        let runs = entries.filter(|of| of.file_name().to_string_lossy().starts_with("vramtrace-"));
        let mut runs: Vec<PathBuf> = runs.map(|entry| entry.path()).collect();
        runs.sort_unstable();
        runs
    }

    fn directories(&self) -> usize {
        self.runs().len()
    }

    /// It ran once, and says why not again.
    #[track_caller]
    fn not_again(&self, why: &str) {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        assert_eq!(self.directories(), 1, "{}", self.stderr);
        let [line] = self.lines()[..] else { panic!("{}", self.stderr) };
        assert!(line.contains("is not started again: ") && line.contains(why), "{}", self.stderr);
    }
}

#[test]
fn it_is_started_again_once_with_the_setting_that_fits() {
    let run = fixed(&[], &["fixable", "7"], |_| {});
    assert_eq!(run.code, Some(7), "the second run's: {}", run.stderr);
    assert_eq!(run.directories(), 2, "{}", run.stderr);
    let [first, last] = run.lines()[..] else { panic!("{}", run.stderr) };
    let expected = format!("it starts again with {SETTING} (replayed: it fits, ");
    assert!(first.contains(&expected), "{first}");
    assert!(last.contains(&format!("{SETTING}, ended with status 7; first run: vramtrace-")));
    assert!(last.contains(", second run: vramtrace-"), "{last}");
    assert_eq!(run.stderr.lines().last(), Some(last));
    // Both summaries are there.
    assert!(run.stderr.contains("1 out of memory") && run.stderr.contains("exited with status 7"));
}

#[test]
fn both_traces_of_one_file_name_are_kept() {
    let run = fixed(&["--out", "t.vtrace"], &["fixable", "0"], |_| {});
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let last = run.lines()[1];
    assert!(last.contains("first run: t.vtrace, second run: t.2.vtrace"), "{last}");
    assert!(run.scratch.0.join("t.vtrace").exists() && run.scratch.0.join("t.2.vtrace").exists());
}

/// What needs no fix, or fails in another way, runs once without a word; a second failure is the last.
#[test]
fn nothing_is_started_more_often_than_twice_or_without_need() {
    let set = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    for (words, variable, (code, directories, lines)) in [
        (&["absorbed", "0"][..], Some(set), (0, 1, 0)),
        (&["fixable", "0"], Some(set), (0, 1, 0)),
        (&["no-such-mode"], None, (2, 1, 0)),
        (&["fixable", "1"], None, (1, 2, 2)),
    ] {
        let run = fixed(&[], words, |command| {
            command.envs(variable);
        });
        let found = (run.code, run.directories(), run.lines().len());
        assert_eq!(found, (Some(code), directories, lines), "{words:?}: {}", run.stderr);
    }
}

/// No setting fits; the allocator is one that the program sets, and left to it; one rank is not started again alone.
#[test]
fn where_it_would_not_help_it_is_not_started_again() {
    for (mode, variables, why) in [
        ("too-much", &[][..], "no setting"),
        (
            "fixable",
            &[("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")],
            "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 is set",
        ),
        ("fixable-sets", &[], "PYTORCH_ALLOC_CONF=max_split_size_mb:64 is set"),
        ("fixable", &[("RANK", "0"), ("WORLD_SIZE", "2")], "one rank of several (WORLD_SIZE=2)"),
    ] {
        let run = fixed(&[], &[mode], |command| {
            command.envs(variables.iter().copied());
        });
        run.not_again(why);
    }
}

/// A launcher gets the setting and passes it on, if it fits for each rank.
#[test]
fn ranks_are_started_again_together() {
    let launcher = |second: &str| {
        let one = Program::c("out_of_memory").0.display().to_string();
        let torch = torch().display().to_string();
        // One after the other: the first one fails first.
        let script = format!("RANK=0 {one} {torch} fixable 0; RANK=1 {one} {torch} {second} 5");
        let words = ["sh", "-c", &script].map(OsString::from);
        started(Scratch::new(), &[], words, |_| {})
    };
    let both = launcher("fixable");
    assert_eq!(both.code, Some(5), "{}", both.stderr);
    let counts = both.runs().into_iter().map(|run| std::fs::read_dir(run).unwrap().count());
    assert_eq!(counts.collect::<Vec<_>>(), [2, 2], "{}", both.stderr);
    let line = "expandable_segments:True, which fits for ";
    launcher("too-much").not_again(line);
}

/// PyTorch's version goes into the trace from the installation of the run.
#[test]
fn a_pytorch_that_does_not_know_the_setting_is_not_given_it() {
    let scratch = Scratch::new();
    let lib = scratch.0.join("torch/lib");
    std::fs::create_dir_all(&lib).unwrap();
    for library in ["libc10.so", "libc10_cuda.so"] {
        let from = torch().with_file_name(library);
        std::fs::copy(from, lib.join(library)).unwrap();
    }
    let version = scratch.0.join("torch/version.py");
    std::fs::write(&version, "__version__ = '2.0.1+cu118'\ndebug = False\n").unwrap();
    let program = Program::c("out_of_memory").0.into_os_string();
    let words = [program, lib.join("libc10_cuda.so").into(), "fixable".into(), "0".into()];
    let old = started(scratch, &[], words.clone(), |_| {});
    // Of those that it knows one fits.
    let first = old.lines()[0];
    assert!(first.contains("it starts again with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:"));
    // It is in the trace.
    std::fs::remove_file(version).unwrap();
    let whatif = old.scratch.text(&format!("whatif {}", old.runs()[0].display()));
    assert!(whatif.contains("PyTorch 2.0 does not know expandable_segments"), "{whatif}");
}

#[test]
fn standard_input_that_was_read_is_gone() {
    let file = |mode: &str| {
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "words for a program").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let given: File = file.try_clone().unwrap();
        fixed(&[], &[mode, "0"], |command| {
            command.stdin(given);
        })
    };
    file("fixable-reads").not_again("it read standard input");
    let unread = file("fixable");
    assert_eq!(unread.code, Some(0), "{}", unread.stderr);
    let piped = fixed(&[], &["fixable"], |command| {
        command.stdin(Stdio::piped());
    });
    piped.not_again("standard input is a pipe");
}

#[test]
fn it_needs_a_trace() {
    let run = fixed(&["--out", "off"], &["fixable"], |_| {});
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("--fix needs a trace"), "{}", run.stderr);
}
