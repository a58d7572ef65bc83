//! The paths of the command, the two libraries and temporary files.

use crate::machine;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo put the command and the two libraries.
pub fn bin_dir() -> PathBuf {
    // Test programs are in its subdirectory `deps`.
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// The command `vramtrace`, without the VRAMTRACE_* variables of the test's environment.
pub fn vramtrace() -> Command {
    let mut command = Command::new(bin_dir().join("vramtrace"));
    forget_variables(&mut command);
    command
}

/// Takes away the VRAMTRACE_* variables of the test's environment.
pub fn forget_variables(command: &mut Command) {
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("VRAMTRACE_")) {
        command.env_remove(name);
    }
}

/// A library beside the command. Integration tests do not build the cdylibs of other packages: the message
/// says what does.
fn library(name: &str) -> PathBuf {
    let path = match machine::target() {
        None => bin_dir().join(name),
        Some(target) => bin_dir().join("..").join(target).join("debug").join(name),
    };
    assert!(path.exists(), "{} is missing: run `cargo build --workspace` first", path.display());
    path
}

pub fn shim() -> PathBuf {
    library("libvramtrace.so")
}

pub fn sim() -> PathBuf {
    library("libvramtrace_sim.so")
}

/// Cargo's own temporary directory for tests.
pub fn temporary() -> PathBuf {
    let directory = bin_dir().parent().unwrap().join("tmp");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The root directory of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The directory for LD_LIBRARY_PATH with the simulated driver, made once per test process.
pub fn sim_dir() -> PathBuf {
    let dir = temporary().join(format!("sim-{}", std::process::id()));
    if !dir.join("libnvidia-ml.so.1").exists() {
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            // Another thread of this test process may be first.
            let _ = std::os::unix::fs::symlink(sim(), dir.join(name));
        }
    }
    dir
}
