//! `vramtrace enable`: a Python that starts itself once more with the recorder, in real virtual
//! environments of every installed version.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::{Scratch, pythons, repository, shim, sim_dir, skip, vramtrace};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn environment(scratch: &Scratch, python: &Path) -> PathBuf {
    let place = scratch.0.join("venv");
    let mut venv = Command::new(python);
    let made = venv.args(["-m", "venv", "--without-pip"]).arg(&place).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    place
}

/// `vramtrace ARGS` with that environment active.
fn ours(venv: &Path, args: &[&str]) -> Output {
    let mut command = vramtrace();
    command.args(args).env("VIRTUAL_ENV", venv).env_remove("LD_PRELOAD").env_remove("VRAMTRACE");
    command.output().unwrap()
}

fn python(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = Command::new(scratch.0.join("venv/bin/python"));
    command.args(args).current_dir(&scratch.0).env_remove("LD_PRELOAD");
    command.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "1x24GiB");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VRAMTRACE") {
            command.env_remove(name);
        }
    }
    command.env("VRAMTRACE_SIM", "1x24GiB");
    command
}

/// The first Python that is there.
fn any() -> Option<PathBuf> {
    let found = pythons().pop().map(|(_, path)| path);
    if found.is_none() {
        skip("enable: no Python from 3.8 on");
    }
    found
}

const TAKE: &str = "import gpu; gpu.Tensor(1 << 20)";

#[test]
fn every_python_records_with_the_switch_and_not_without() {
    let library = shim().canonicalize().unwrap();
    for (minor, path) in pythons() {
        let scratch = Scratch::new();
        let venv = environment(&scratch, &path);
        std::fs::copy(repository().join("docs/programs/gpu.py"), scratch.0.join("gpu.py")).unwrap();
        let enabled = ours(&venv, &["enable"]);
        assert!(enabled.status.success(), "3.{minor}: {}", text(&enabled.stderr));
        let plain = python(&scratch, &["-c", TAKE]).output().unwrap();
        assert!(plain.status.success(), "{}", text(&plain.stderr));
        assert!(scratch.traces().is_empty(), "3.{minor} records without VRAMTRACE=1");
        let other = "/usr/lib/no-such-library.so";
        let recorded = python(&scratch, &["-c", TAKE]).env("VRAMTRACE", "1").output().unwrap();
        assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        assert_eq!(scratch.traces().len(), 1, "3.{minor}: {}", text(&recorded.stderr));
        let show = "import os; print(os.environ['LD_PRELOAD'], os.environ.get('_VRAMTRACE_START'))";
        let mut kept = python(&scratch, &["-c", show]);
        let kept = kept.env("VRAMTRACE", "1").env("LD_PRELOAD", other).output().unwrap();
        let expected = format!("{}:{other} None", library.display());
        assert_eq!(text(&kept.stdout).trim(), expected, "3.{minor}");
        let disabled = ours(&venv, &["disable"]);
        assert!(disabled.status.success(), "{}", text(&disabled.stderr));
        let after = python(&scratch, &["-c", "import vramtrace_start"]).output().unwrap();
        assert!(text(&after.stderr).contains("No module named"), "{}", text(&after.stderr));
        assert_eq!(ours(&venv, &["disable"]).status.code(), Some(1), "there is none any more");
    }
}

#[test]
fn the_process_keeps_its_pid_its_descriptors_and_its_command_line() {
    let Some(path) = any() else { return };
    let scratch = Scratch::new();
    let venv = environment(&scratch, &path);
    assert!(ours(&venv, &["enable"]).status.success());
    let body = "import os, sys\n\
        print(os.getpid(), 'libvramtrace' in os.environ.get('LD_PRELOAD', ''), sys.argv)\n";
    std::fs::create_dir(scratch.0.join("package")).unwrap();
    std::fs::write(scratch.0.join("package/__main__.py"), body).unwrap();
    std::fs::write(scratch.0.join("script.py"), body).unwrap();
    let ways: [(&[&str], &str); 5] = [
        (&["-c", body, "a b", ""], "['-c', 'a b', '']"),
        (&["-m", "package", "-x"], "-x']"),
        (&["-X", "utf8", "script.py", "--", "y"], "['script.py', '--', 'y']"),
        (&["-"], "['-']"),
        (&[], "['']"),
    ];
    for (args, argv) in ways {
        let mut command = python(&scratch, args);
        command.env("VRAMTRACE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let pid = child.id();
        let out = text(&child.wait_with_output().unwrap().stdout);
        assert!(out.starts_with(&format!("{pid} True ")), "{args:?}: {out}");
        assert!(out.trim_end().ends_with(argv), "{args:?}: {out}");
    }
    // A descriptor that the parent opened stays open.
    let mut shell = Command::new("sh");
    let inner = "exec 7>seven; exec venv/bin/python -c 'import os; os.write(7, b\"here\")'";
    shell.args(["-c", inner]).current_dir(&scratch.0).env("VRAMTRACE", "1");
    assert!(shell.env_remove("LD_PRELOAD").status().unwrap().success());
    assert_eq!(std::fs::read(scratch.0.join("seven")).unwrap(), b"here");
}

#[test]
fn always_survives_a_lost_environment_and_0_switches_it_off() {
    let Some(path) = any() else { return };
    let scratch = Scratch::new();
    let venv = environment(&scratch, &path);
    assert!(ours(&venv, &["enable", "--always"]).status.success());
    let show = "import os; print('libvramtrace' in os.environ.get('LD_PRELOAD', ''))";
    let program = venv.join("bin/python");
    let bare = Command::new("env").arg("-i").arg(&program).args(["-c", show]).output().unwrap();
    assert_eq!(text(&bare.stdout).trim(), "True", "{}", text(&bare.stderr));
    let off = python(&scratch, &["-c", show]).env("VRAMTRACE", "0").output().unwrap();
    assert_eq!(text(&off.stdout).trim(), "False");
    let again = ours(&venv, &["enable"]);
    assert!(again.status.success(), "written anew, without the switch");
    let off = python(&scratch, &["-c", show]).output().unwrap();
    assert_eq!(text(&off.stdout).trim(), "False");
}

#[test]
fn a_library_that_is_gone_is_one_line_and_the_program_runs() {
    let Some(path) = any() else { return };
    let scratch = Scratch::new();
    let venv = environment(&scratch, &path);
    let copy = scratch.0.join("libvramtrace.so");
    std::fs::copy(shim(), &copy).unwrap();
    let mut command = vramtrace();
    command.arg("enable").env("VIRTUAL_ENV", &venv).env("VRAMTRACE_LIB", &copy);
    assert!(command.output().unwrap().status.success());
    std::fs::remove_file(&copy).unwrap();
    let output = python(&scratch, &["-c", "print('ran')"]).env("VRAMTRACE", "1").output().unwrap();
    assert_eq!((text(&output.stdout).trim(), output.status.code()), ("ran", Some(0)));
    let printed = text(&output.stderr);
    assert!(printed.lines().count() == 1 && printed.contains("is gone"), "{printed}");
}

#[test]
fn outside_of_an_environment_it_asks_for_whom() {
    let Some(path) = any() else { return };
    let scratch = Scratch::new();
    let outside = |args: &[&str]| {
        let mut command = vramtrace();
        command.args(args).arg("--python").arg(&path).env_remove("VIRTUAL_ENV");
        let home = scratch.0.join("home");
        command.env("PYTHONUSERBASE", &home).env("HOME", &home).output().unwrap()
    };
    let asked = outside(&["enable"]);
    assert_eq!(asked.status.code(), Some(2));
    let printed = text(&asked.stderr);
    assert!(printed.contains("--user") && printed.contains("--system"), "{printed}");
    let both = outside(&["enable", "--user", "--system"]);
    assert_eq!(both.status.code(), Some(2));
    let user = outside(&["enable", "--user"]);
    assert!(user.status.success(), "{}", text(&user.stderr));
    assert!(text(&user.stderr).contains("/home/"), "{}", text(&user.stderr));
    assert!(outside(&["disable", "--user"]).status.success());
    let venv = environment(&scratch, &path);
    let inside = ours(&venv, &["enable", "--user"]);
    assert_eq!(inside.status.code(), Some(2));
    assert!(text(&inside.stderr).contains("omit --user"), "{}", text(&inside.stderr));
    let none = vramtrace().args(["enable", "--python", "/no/python"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
}
