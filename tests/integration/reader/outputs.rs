//! Where commands write: `-o` keeps what is no regular file as it is, and never takes what is read.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Output};

use testkit::trace_builder::training;
use testkit::{Scratch, bin_dir, vramtrace};

fn written() -> Scratch {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("t.vtrace"));
    scratch
}

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).output().unwrap()
}

#[track_caller]
fn good(scratch: &Scratch, args: &[&str]) -> Vec<u8> {
    let output = run(scratch, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn snapshot() -> String {
    format!("{}/tests/data/torch_snapshot_2.11.pickle.gz", env!("CARGO_MANIFEST_DIR"))
}

/// A way to write, for each command that does.
fn writers() -> Vec<Vec<String>> {
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
    let mut all = vec![
        words("export t.vtrace --format csv"),
        words("export t.vtrace --format folded"),
        words("export t.vtrace --format torch-snapshot"),
        words("flame t.vtrace"),
        words("report --html t.vtrace"),
        words("pack t.vtrace"),
    ];
    all.push(vec!["import".into(), snapshot()]);
    all
}

fn with<'a>(words: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    words.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

#[test]
fn a_fifo_is_written_and_stays_a_fifo_with_and_without_force() {
    let scratch = written();
    for words in writers() {
        good(&scratch, &with(&words, &["-o", "file", "--force"]));
        let file = std::fs::read(scratch.0.join("file")).unwrap();
        for force in [&[][..], &["--force"]] {
            let fifo = scratch.0.join("fifo");
            let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
            assert!(made.success());
            // Not a pipe: that would fill up, as nobody reads it yet.
            let read = scratch.0.join("read");
            let out = std::fs::File::create(&read).unwrap();
            let mut reader = Command::new("cat").arg(&fifo).stdout(out).spawn().unwrap();
            let more = [&["-o", "fifo"][..], force].concat();
            good(&scratch, &with(&words, &more));
            assert!(fifo.metadata().unwrap().file_type().is_fifo(), "{words:?}");
            assert!(reader.wait().unwrap().success());
            assert_eq!(std::fs::read(&read).unwrap().len(), file.len(), "{words:?}");
            std::fs::remove_file(&fifo).unwrap();
        }
    }
}

#[test]
fn a_device_stays_a_device() {
    let scratch = written();
    for words in writers() {
        // Through a link, so that a failure of this test breaks no machine.
        let link = scratch.0.join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        good(&scratch, &with(&words, &["-o", "null", "--force"]));
        good(&scratch, &with(&words, &["-o", "null"]));
        assert!(link.symlink_metadata().unwrap().is_symlink(), "{words:?}");
        assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
        std::fs::remove_file(&link).unwrap();
    }
}

#[test]
fn stdout_has_several_names_and_the_shell_gives_others() {
    let scratch = written();
    for words in writers() {
        let expected = good(&scratch, &with(&words, &["-o", "-"]));
        assert!(!expected.is_empty(), "{words:?}");
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            let found = good(&scratch, &with(&words, &["-o", name]));
            assert_eq!(found.len(), expected.len(), "{words:?} {name}");
        }
        let line = format!(
            "{}/vramtrace {} -o >(wc -c > count) > printed && for n in $(seq 500); do \
             [ -s count ] && break; sleep 0.01; done; cat count; echo before > all; \
             {0}/vramtrace {1} -o /dev/stdout >> all",
            bin_dir().display(),
            words.join(" ")
        );
        let shell = Command::new("bash").args(["-c", &line]).current_dir(&scratch.0).output();
        let shell = shell.unwrap();
        let printed = String::from_utf8_lossy(&shell.stderr);
        assert!(shell.status.success(), "{words:?}: {printed}");
        let count = String::from_utf8_lossy(&shell.stdout).trim().to_string();
        assert_eq!(count, expected.len().to_string(), "{words:?}: {printed}");
        // What was there before stays: the descriptor is not opened anew.
        let all = std::fs::read(scratch.0.join("all")).unwrap();
        assert!(all.starts_with(b"before\n") && all.len() == expected.len() + 7, "{words:?}");
        std::fs::remove_file(scratch.0.join("count")).unwrap();
    }
}

#[test]
fn a_link_stays_a_link_and_its_file_is_replaced_only_by_force() {
    let scratch = written();
    std::fs::write(scratch.0.join("old"), "keep me").unwrap();
    std::os::unix::fs::symlink("old", scratch.0.join("link")).unwrap();
    let args = ["export", "t.vtrace", "--format", "csv", "-o", "link"];
    assert_eq!(run(&scratch, &args).status.code(), Some(2));
    assert_eq!(std::fs::read(scratch.0.join("old")).unwrap(), b"keep me");
    good(&scratch, &[&args[..], &["--force"]].concat());
    assert!(scratch.0.join("link").symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read(scratch.0.join("old")).unwrap().len() > 100);
}

#[test]
fn what_is_read_is_never_written_over() {
    let scratch = written();
    let trace = scratch.0.join("t.vtrace");
    std::fs::copy(snapshot(), scratch.0.join("s.pickle")).unwrap();
    let before = (std::fs::read(&trace).unwrap(), std::fs::read(snapshot()).unwrap());
    for input in ["t.vtrace", "s.pickle"] {
        let at = |name: &str| scratch.0.join(format!("{input}.{name}"));
        std::fs::hard_link(scratch.0.join(input), at("hard")).unwrap();
        std::os::unix::fs::symlink(input, at("soft")).unwrap();
        for name in ["", ".hard", ".soft"] {
            let output = format!("{input}{name}");
            let mut commands = vec![
                vec!["export", input, "--format", "csv", "-o", &output],
                vec!["flame", input, "-o", &output],
            ];
            match input {
                "t.vtrace" => commands.push(vec!["pack", input, "-o", &output]),
                _ => commands.push(vec!["import", input, "-o", &output]),
            }
            for command in commands {
                let refused = run(&scratch, &[&command[..], &["--force"]].concat());
                let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
                assert_eq!(refused.status.code(), Some(2), "{command:?}: {printed}");
                assert!(printed.contains("is also an input"), "{command:?}: {printed}");
            }
        }
    }
    // Also where the input was chosen by the command, and where a directory holds it.
    for input in [&[][..], &["."]] {
        let args = [&["export"][..], input, &["--format", "csv", "-o", "t.vtrace", "--force"]];
        assert_eq!(run(&scratch, &args.concat()).status.code(), Some(2), "{input:?}");
    }
    let after =
        (std::fs::read(&trace).unwrap(), std::fs::read(scratch.0.join("s.pickle")).unwrap());
    assert!(before == after);
}

#[test]
fn the_suppressions_of_a_run_are_not_written_over() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("known"), "file: x\n").unwrap();
    let args =
        ["run", "--fail-on-leak", "--suppressions", "known", "--json", "known", "--", "true"];
    let refused = run(&scratch, &args);
    let printed = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && printed.contains("is also an input"), "{printed}");
    assert_eq!(std::fs::read(scratch.0.join("known")).unwrap(), b"file: x\n");
}
