//! Runs small programs with and without the preload, over the simulated driver.
//!
//! ```ignore
//! let program = Program::c("families");
//! let bare = program.run(Setup::simulated());
//! let ours = program.run(Setup::simulated().preload());
//! assert_eq!(bare.stdout, ours.stdout);
//! let report = ours.only_report();
//! ```
#![allow(dead_code)] // each test file uses its part

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where cargo put the command and the two libraries.
pub fn bin_dir() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_vramtrace")).parent().unwrap().to_path_buf()
}

pub fn vramtrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vramtrace"))
}

/// A library beside the command. Integration tests do not build other packages' cdylibs, so say
/// what does.
fn library(name: &str) -> PathBuf {
    let path = bin_dir().join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

pub fn shim() -> PathBuf {
    library("libvramtrace.so")
}

pub fn sim() -> PathBuf {
    library("libvramtrace_sim.so")
}

/// A fresh directory under cargo's own temporary directory; kept after a failure, for the reader.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    pub fn traces(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.to_string_lossy().contains(".vtrace"))
            .collect();
        found.sort();
        found
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// The directory that puts the simulated driver in front, made once per test process.
pub fn sim_dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sim-{}", std::process::id()));
    if !dir.join("libnvidia-ml.so.1").exists() {
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            // Another thread of this test process may be first.
            let _ = std::os::unix::fs::symlink(sim(), dir.join(name));
        }
    }
    dir
}

/// How to run a program.
#[derive(Clone, Default)]
pub struct Setup {
    preload: bool,
    simulated: Option<String>,
    env: Vec<(String, OsString)>,
    args: Vec<String>,
    cwd: Option<PathBuf>,
    timeout: Option<Duration>,
    user: Option<u32>,
}

impl Setup {
    /// One device of 24 GiB.
    pub fn simulated() -> Setup {
        Setup { simulated: Some("1x24GiB".into()), ..Setup::default() }
    }

    pub fn devices(mut self, spec: &str) -> Setup {
        self.simulated = Some(spec.into());
        self
    }

    pub fn preload(mut self) -> Setup {
        self.preload = true;
        self
    }

    pub fn cap(self, spec: &str) -> Setup {
        self.preload().env("VRAMTRACE_CAP", spec)
    }

    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Setup {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn arg(mut self, arg: impl ToString) -> Setup {
        self.args.push(arg.to_string());
        self
    }

    /// Working directory (default: the run's own scratch directory, where its traces land).
    pub fn cwd(mut self, dir: &Path) -> Setup {
        self.cwd = Some(dir.into());
        self
    }

    /// Runs as this user; for tests that run as root.
    pub fn user(mut self, user: u32) -> Setup {
        self.user = Some(user);
        self
    }

    pub fn timeout(mut self, limit: Duration) -> Setup {
        self.timeout = Some(limit);
        self
    }

    pub fn command(&self, program: &Path, scratch: &Scratch) -> Command {
        let mut command = Command::new(program);
        command.args(&self.args).current_dir(self.cwd.as_deref().unwrap_or(&scratch.0));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VRAMTRACE_") {
                command.env_remove(name);
            }
        }
        if let Some(spec) = &self.simulated {
            command.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", spec);
        }
        if self.preload {
            command.env("LD_PRELOAD", shim());
        }
        command.envs(self.env.iter().map(|(n, v)| (n, v)));
        if let Some(user) = self.user {
            std::os::unix::fs::chown(&scratch.0, Some(user), Some(user)).unwrap();
            command.uid(user).gid(user);
        }
        command
    }
}

/// What a run printed, how it ended, and what it left.
pub struct Run {
    pub stdout: String,
    pub stderr: String,
    /// Exit status, or minus the signal.
    pub status: i32,
    pub scratch: Scratch,
}

impl Run {
    pub fn traces(&self) -> Vec<PathBuf> {
        self.scratch.traces()
    }

    pub fn only_trace(&self) -> PathBuf {
        let traces = self.traces();
        assert_eq!(traces.len(), 1, "one trace expected; stderr: {}", self.stderr);
        traces[0].clone()
    }

    /// `vramtrace report --json` of everything that the run left.
    pub fn report(&self) -> serde_json::Value {
        report(&self.traces())
    }

    /// The only process of the report.
    pub fn only_report(&self) -> serde_json::Value {
        let report = report(&[self.only_trace()]);
        let processes = report["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 1);
        processes[0].clone()
    }

    #[track_caller]
    pub fn ok(self) -> Run {
        assert_eq!(self.status, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

pub fn report(traces: &[PathBuf]) -> serde_json::Value {
    let output = vramtrace().args(["report", "--json"]).args(traces).output().unwrap();
    assert!(
        output.status.success(),
        "vramtrace report: {:?}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A program under `tests/programs`.
pub struct Program(pub PathBuf);

impl Program {
    /// Compiles `tests/programs/NAME.c` (once per test process).
    pub fn c(name: &str) -> Program {
        Program::c_with(name, &[])
    }

    pub fn c_with(name: &str, flags: &[&str]) -> Program {
        let first = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
        Program::compiled(
            "gcc",
            &format!("{name}.c"),
            &[&first, flags, &["-ldl", "-lpthread"]].concat(),
        )
    }

    /// A program or library made of `tests/programs/SOURCE`, once per test process for each set of
    /// flags.
    pub fn compiled(compiler: &str, source: &str, flags: &[&str]) -> Program {
        use std::sync::Mutex;
        static BUILDING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        let name: String =
            format!("{source}{}", flags.join("")).chars().filter(|c| c.is_alphanumeric()).collect();
        let out =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        if !out.exists() {
            let built = Command::new(compiler)
                .arg("-o")
                .arg(&out)
                .arg(&path)
                .args(flags)
                .output()
                .unwrap_or_else(|_| panic!("{compiler} is needed for the end-to-end tests"));
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        Program(out)
    }

    /// Runs to the end (60 s unless the setup says otherwise: a hang is a failure, not a wait).
    #[track_caller]
    pub fn run(&self, setup: Setup) -> Run {
        let scratch = Scratch::new();
        self.run_in(setup, scratch)
    }

    #[track_caller]
    pub fn run_in(&self, setup: Setup, scratch: Scratch) -> Run {
        let limit = setup.timeout.unwrap_or(Duration::from_secs(60));
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

/// Minor versions and paths of the Pythons from 3.8 on that are installed with pyenv.
pub fn pythons() -> Vec<(u32, PathBuf)> {
    let Some(home) = std::env::var_os("HOME") else { return Vec::new() };
    let versions = Path::new(&home).join(".pyenv/versions");
    let Ok(entries) = std::fs::read_dir(versions) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let minor = name.strip_prefix("3.")?.split('.').next()?.parse().ok()?;
            (minor >= 8).then(|| (minor, entry.path().join("bin/python3")))
        })
        .collect();
    found.sort();
    found
}

/// Says why a test does not run here, so that a log shows it.
pub fn skip(why: &str) {
    eprintln!("SKIP {why}");
}
