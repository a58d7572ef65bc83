//! Compiles and runs the test programs.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Run, Scratch, Setup, machine, repository, temporary};

/// A program under `tests/programs`.
pub struct Program(pub PathBuf);

impl Program {
    /// Compiles `tests/programs/NAME.c` (once per test process).
    pub fn c(name: &str) -> Program {
        Program::c_with(name, &[])
    }

    pub fn c_with(name: &str, flags: &[&str]) -> Program {
        let first = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
        Program::compiled("gcc", &format!("{name}.c"), &[&first, flags].concat())
    }

    /// A program or library made of `tests/programs/SOURCE`, once per test process for each set of
    /// flags.
    pub fn compiled(compiler: &str, source: &str, flags: &[&str]) -> Program {
        use std::sync::Mutex;
        static BUILDING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let path = repository().join("tests/programs").join(source);
        let name: String =
            format!("{source}{}", flags.join("")).chars().filter(|c| c.is_alphanumeric()).collect();
        let out = temporary().join(format!("{name}-{}", std::process::id()));
        if !out.exists() {
            let built = Command::new(machine::compiler(compiler))
                .arg("-o")
                .arg(&out)
                .arg(&path)
                .args(flags)
                // Before glibc 2.34 these are separate libraries.
                .args(["-ldl", "-lpthread"].iter().filter(|_| compiler != "rustc"))
                .output()
                .unwrap_or_else(|_| panic!("{compiler} is needed for the end-to-end tests"));
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        Program(out)
    }

    /// Runs the program to its end. Panics after 60 s, or the setup's timeout.
    #[track_caller]
    pub fn run(&self, setup: Setup) -> Run {
        let scratch = setup.scratch();
        self.run_in(setup, scratch)
    }

    /// Runs it as it is set up, then as `change` sets it up, and returns the second run: output and status are the same.
    #[track_caller]
    pub fn as_bare(&self, setup: Setup, change: impl FnOnce(Setup) -> Setup) -> Run {
        let (bare, what) = (self.run(setup.clone()), setup.shown());
        let ours = self.run(change(setup));
        let ends = |run: &Run| (run.stdout.clone(), run.status);
        assert_eq!(ends(&ours), ends(&bare), "{what}: {}", ours.stderr);
        ours
    }

    /// Without the recorder and with it: it ends with status 0. Returns the second run.
    #[track_caller]
    pub fn same_as_bare(&self, setup: Setup) -> Run {
        self.as_bare(setup, Setup::preload).ok()
    }

    #[track_caller]
    pub fn run_in(&self, setup: Setup, scratch: Scratch) -> Run {
        let limit = setup.timeout.unwrap_or(Duration::from_secs(600)) * machine::patience();
        let (out, err) = (scratch.0.join("stdout"), scratch.0.join("stderr"));
        let mut child = setup
            .command(&self.0, &scratch)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > limit {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{} still ran after {limit:?}", self.0.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text =
            |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        Run {
            stdout: text(&out),
            stderr: text(&err),
            status: status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
            scratch,
        }
    }
}
