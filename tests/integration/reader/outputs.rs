//! Where commands write: `-o` keeps what is no regular file as it is, and never takes what is read.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;

use testkit::trace_builder::training;
use testkit::{Scratch, bin_dir, fifo};

fn snapshot() -> String {
    format!("{}/tests/data/torch_snapshot_2.11.pickle.gz", env!("CARGO_MANIFEST_DIR"))
}

/// A way to write, for each command that does.
fn writers() -> [String; 7] {
    [
        "export t.vtrace --format csv".into(),
        "export t.vtrace --format folded".into(),
        "export t.vtrace --format torch-snapshot".into(),
        "flame t.vtrace".into(),
        "report --html t.vtrace".into(),
        "pack t.vtrace".into(),
        format!("import {}", snapshot()),
    ]
}

#[test]
fn a_fifo_is_written_and_stays_a_fifo_with_and_without_force() {
    let scratch = Scratch::with(&training());
    for line in writers() {
        scratch.bytes(&format!("{line} -o file --force"));
        let file = std::fs::read(scratch.0.join("file")).unwrap();
        for force in ["", "--force"] {
            let at = scratch.0.join("fifo");
            fifo(&at);
            // Not a pipe: that would fill up, as nobody reads it yet.
            let read = scratch.0.join("read");
            let out = std::fs::File::create(&read).unwrap();
            let mut reader = Command::new("cat").arg(&at).stdout(out).spawn().unwrap();
            scratch.bytes(&format!("{line} -o fifo {force}"));
            assert!(at.metadata().unwrap().file_type().is_fifo(), "{line}");
            assert!(reader.wait().unwrap().success());
            assert_eq!(std::fs::read(&read).unwrap().len(), file.len(), "{line}");
            std::fs::remove_file(&at).unwrap();
        }
    }
}

/// Through a link, so that a failure of this test breaks no machine.
#[test]
fn a_device_stays_a_device() {
    let scratch = Scratch::with(&training());
    let link = scratch.0.join("null");
    symlink("/dev/null", &link).unwrap();
    for line in writers() {
        scratch.bytes(&format!("{line} -o null --force"));
        scratch.bytes(&format!("{line} -o null"));
        assert!(link.symlink_metadata().unwrap().is_symlink(), "{line}");
        assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
    }
}

#[test]
fn stdout_has_several_names_and_the_shell_gives_others() {
    let scratch = Scratch::with(&training());
    for line in writers() {
        let expected = scratch.bytes(&format!("{line} -o -"));
        assert!(!expected.is_empty(), "{line}");
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            let found = scratch.bytes(&format!("{line} -o {name}"));
            assert_eq!(found.len(), expected.len(), "{line} {name}");
        }
        let count = scratch.shell(&format!(
            "{}/vramtrace {line} -o >(wc -c > count) > printed && for n in $(seq 500); do \
             [ -s count ] && break; sleep 0.01; done; cat count; echo before > all; \
             {0}/vramtrace {line} -o /dev/stdout >> all",
            bin_dir().display(),
        ));
        assert_eq!(count.trim(), expected.len().to_string(), "{line}");
        // What was there before stays: the descriptor is not opened anew.
        let all = std::fs::read(scratch.0.join("all")).unwrap();
        assert!(all.starts_with(b"before\n") && all.len() == expected.len() + 7, "{line}");
        std::fs::remove_file(scratch.0.join("count")).unwrap();
    }
}

#[test]
fn a_link_stays_a_link_and_its_file_is_replaced_only_by_force() {
    let scratch = Scratch::with(&training());
    scratch.write("old", "keep me");
    symlink("old", scratch.0.join("link")).unwrap();
    let line = "export t.vtrace --format csv -o link";
    scratch.fails(2, line, "");
    assert_eq!(std::fs::read(scratch.0.join("old")).unwrap(), b"keep me");
    scratch.text(&format!("{line} --force"));
    assert!(scratch.0.join("link").symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read(scratch.0.join("old")).unwrap().len() > 100);
}

/// Also where the input was chosen by the command, and where a directory holds it.
#[test]
fn what_is_read_is_never_written_over() {
    let scratch = Scratch::with(&training());
    std::fs::copy(snapshot(), scratch.0.join("s.pickle")).unwrap();
    let read = || ["t.vtrace", "s.pickle"].map(|name| std::fs::read(scratch.0.join(name)).unwrap());
    let before = read();
    for (input, last) in [("t.vtrace", "pack"), ("s.pickle", "import")] {
        std::fs::hard_link(scratch.0.join(input), scratch.0.join(format!("{input}.hard"))).unwrap();
        symlink(input, scratch.0.join(format!("{input}.soft"))).unwrap();
        for name in ["", ".hard", ".soft"] {
            for command in ["export --format csv", "flame", last] {
                let line = format!("{command} {input} -o {input}{name} --force");
                scratch.fails(2, &line, "is also an input");
            }
        }
    }
    for input in ["", "."] {
        scratch.fails(2, &format!("export {input} --format csv -o t.vtrace --force"), "");
    }
    assert!(before == read());
}

#[test]
fn the_suppressions_of_a_run_are_not_written_over() {
    let scratch = Scratch::new();
    scratch.write("known", "file: x\n");
    let line = "run --fail-on-leak --suppressions known --json known -- true";
    scratch.fails(2, line, "is also an input");
    assert_eq!(std::fs::read(scratch.0.join("known")).unwrap(), b"file: x\n");
}
