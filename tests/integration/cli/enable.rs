//! `vramtrace enable`: a Python that starts itself once more with the recorder, in real virtual
//! environments of every installed version.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{Said, Scratch, pythons, repository, shim, sim_dir};

/// A directory with a virtual environment of this Python.
fn environment(python: &Path) -> Scratch {
    let scratch = Scratch::new();
    scratch.shell(&format!("{} -m venv --without-pip venv", python.display()));
    scratch
}

/// `vramtrace ARGS` with that environment active.
fn ours(scratch: &Scratch, args: &[&str]) -> Said {
    let mut command = scratch.command(args);
    Said::by(command.env("VIRTUAL_ENV", scratch.0.join("venv")).env_remove("VRAMTRACE"))
}

/// Its Python with this variable.
fn python(scratch: &Scratch, args: &[&str], variable: (&str, &str)) -> Command {
    let mut command = Command::new(scratch.0.join("venv/bin/python"));
    command.args(args).current_dir(&scratch.0).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VRAMTRACE") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "1x24GiB");
    command.env(variable.0, variable.1);
    command
}

const ON: (&str, &str) = ("VRAMTRACE", "1");
const NONE: (&str, &str) = ("UNUSED", "");

fn says(scratch: &Scratch, code: &str, variable: (&str, &str)) -> Said {
    Said::by(&mut python(scratch, &["-c", code], variable))
}

const TAKE: &str = "import gpu; gpu.Tensor(1 << 20)";

#[test]
fn every_python_records_with_the_switch_and_not_without() {
    let library = shim().canonicalize().unwrap();
    for (minor, path) in pythons() {
        let scratch = environment(&path);
        std::fs::copy(repository().join("docs/programs/gpu.py"), scratch.0.join("gpu.py")).unwrap();
        ours(&scratch, &["enable"]).ended(0);
        says(&scratch, TAKE, NONE).ended(0);
        assert!(scratch.traces().is_empty(), "3.{minor} records without VRAMTRACE=1");
        let recorded = says(&scratch, TAKE, ON).ended(0);
        assert_eq!(scratch.traces().len(), 1, "3.{minor}: {recorded:?}");
        let other = "/usr/lib/no-such-library.so";
        let show = "import os; print(os.environ['LD_PRELOAD'], os.environ.get('_VRAMTRACE_START'))";
        let mut kept = python(&scratch, &["-c", show], ON);
        let kept = Said::by(kept.env("LD_PRELOAD", other)).out;
        assert_eq!(kept.trim(), format!("{}:{other} None", library.display()), "3.{minor}");
        ours(&scratch, &["disable"]).ended(0);
        let after = says(&scratch, "import vramtrace_start", NONE);
        assert!(after.err.contains("No module named"), "{}", after.err);
        // There is none any more.
        ours(&scratch, &["disable"]).ended(1);
    }
}

#[test]
fn the_process_keeps_its_pid_its_descriptors_and_its_command_line() {
    let Some((_, path)) = pythons().pop() else { return };
    let scratch = environment(&path);
    ours(&scratch, &["enable"]).ended(0);
    let body = "import os, sys\n\
        print(os.getpid(), 'libvramtrace' in os.environ.get('LD_PRELOAD', ''), sys.argv)\n";
    std::fs::create_dir(scratch.0.join("package")).unwrap();
    scratch.write("package/__main__.py", body);
    scratch.write("script.py", body);
    let ways: [(&[&str], &str); 5] = [
        (&["-c", body, "a b", ""], "['-c', 'a b', '']"),
        (&["-m", "package", "-x"], "-x']"),
        (&["-X", "utf8", "script.py", "--", "y"], "['script.py', '--', 'y']"),
        (&["-"], "['-']"),
        (&[], "['']"),
    ];
    for (args, argv) in ways {
        let mut command = python(&scratch, args, ON);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let pid = child.id();
        let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert!(out.starts_with(&format!("{pid} True ")), "{args:?}: {out}");
        assert!(out.trim_end().ends_with(argv), "{args:?}: {out}");
    }
    // A descriptor that the parent opened stays open.
    scratch.shell(
        "exec 7>seven; VRAMTRACE=1 exec venv/bin/python -c 'import os; os.write(7, b\"here\")'",
    );
    assert_eq!(std::fs::read(scratch.0.join("seven")).unwrap(), b"here");
}

#[test]
fn always_survives_a_lost_environment_and_0_switches_it_off() {
    let Some((_, path)) = pythons().pop() else { return };
    let scratch = environment(&path);
    ours(&scratch, &["enable", "--always"]).ended(0);
    let show = "import os; print('libvramtrace' in os.environ.get('LD_PRELOAD', ''))";
    let bare = scratch.shell(&format!("env -i venv/bin/python -c \"{show}\""));
    assert_eq!(bare.trim(), "True");
    assert_eq!(says(&scratch, show, ("VRAMTRACE", "0")).out.trim(), "False");
    // Written anew, without the switch.
    ours(&scratch, &["enable"]).ended(0);
    assert_eq!(says(&scratch, show, NONE).out.trim(), "False");
}

#[test]
fn a_library_that_is_gone_is_one_line_and_the_program_runs() {
    let Some((_, path)) = pythons().pop() else { return };
    let scratch = environment(&path);
    let copy = scratch.0.join("libvramtrace.so");
    std::fs::copy(shim(), &copy).unwrap();
    let mut command = scratch.command(&["enable"]);
    command.env("VIRTUAL_ENV", scratch.0.join("venv")).env("VRAMTRACE_LIB", &copy);
    Said::by(&mut command).ended(0);
    std::fs::remove_file(&copy).unwrap();
    let said = says(&scratch, "print('ran')", ON).ended(0);
    assert_eq!(said.out.trim(), "ran");
    assert!(said.err.lines().count() == 1 && said.err.contains("is gone"), "{}", said.err);
}

#[test]
fn outside_of_an_environment_it_asks_for_whom() {
    let Some((_, path)) = pythons().pop() else { return };
    let scratch = environment(&path);
    let outside = |line: &str| {
        let mut command = scratch.command(&line.split(' ').collect::<Vec<_>>());
        command.arg("--python").arg(&path).env_remove("VIRTUAL_ENV");
        let home = scratch.0.join("home");
        Said::by(command.env("PYTHONUSERBASE", &home).env("HOME", &home))
    };
    let asked = outside("enable").ended(2).err;
    assert!(asked.contains("--user") && asked.contains("--system"), "{asked}");
    outside("enable --user --system").ended(2);
    let user = outside("enable --user").ended(0).err;
    assert!(user.contains("/home/"), "{user}");
    outside("disable --user").ended(0);
    let inside = ours(&scratch, &["enable", "--user"]).ended(2).err;
    assert!(inside.contains("omit --user"), "{inside}");
    scratch.fails(2, "enable --python /no/python", "");
}
