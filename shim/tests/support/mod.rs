//! Builds the small C programs and runs commands with and without the preload.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The library under test. Cargo does not put a package's own shared library in place for its
/// tests, so it is built here, once.
pub fn shim() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let place = test.parent().and_then(Path::parent).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // What tests are built with: other packages and targets have other features, and would be compiled once more.
        let targets = ["--workspace", "--lib", "--bins", "--examples"];
        cargo.args(["build", "-q"]).args(targets).env("CARGO_TARGET_DIR", place.join(".."));
        if place.ends_with("release") {
            cargo.args(["--release", "--features", "vramtrace-shim/test-hooks"]);
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        place.join("libvramtrace.so")
    });
    path.clone()
}

/// An empty directory; kept after a failure.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shim-{}-{n}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// Compiles `tests/programs/NAME.c` to `output` in this directory.
    pub fn compile(&self, name: &str, output: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
        let output = self.0.join(output);
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-o"]).arg(&output).arg(source).args(options).current_dir(&self.0);
        let result = cc.output().expect("cc is needed for these tests");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        output
    }

    /// The witness driver, as libcuda.so.1.
    pub fn driver(&self) {
        let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-ldl"];
        self.compile("witness", "libcuda.so.1", &soname);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A command without our variables, in this directory, which is on the loader's path.
pub fn command(program: impl AsRef<std::ffi::OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    testkit::forget_variables(&mut command);
    command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", dir).current_dir(dir);
    command
}

pub fn text(output: &Output) -> String {
    format!(
        "{}{}{}\n",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status
    )
}

/// The first program of this name on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
