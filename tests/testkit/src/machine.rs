//! Runs test programs of another architecture in an emulator: `VRAMTRACE_TEST_TARGET=aarch64-unknown-linux-gnu`
//! (packaging/test-aarch64.sh). The command that reads their traces is this machine's.

use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const ROOT: &str = "/usr/aarch64-linux-gnu";
/// Variables for the loader of the emulated program, not for that of the emulator.
const OF_THE_LOADER: [&str; 2] = ["LD_PRELOAD", "LD_LIBRARY_PATH"];

/// The target of VRAMTRACE_TEST_TARGET, if it is set.
pub fn target() -> Option<&'static str> {
    let asked = std::env::var("VRAMTRACE_TEST_TARGET").ok()?;
    assert_eq!(asked, TARGET, "VRAMTRACE_TEST_TARGET: must be {TARGET}");
    Some(TARGET)
}

/// The name of `gcc`, `g++` or a tool of binutils for the target.
pub fn compiler(name: &str) -> String {
    match target() {
        Some(_) if name.starts_with('g') || matches!(name, "objcopy" | "strip") => {
            format!("aarch64-linux-gnu-{name}")
        }
        _ => name.to_string(),
    }
}

/// The factor by which time limits are longer in an emulator.
pub fn patience() -> u32 {
    if target().is_some() { 10 } else { 1 }
}

/// The command, run in the emulator if its program is for the target.
pub fn emulated(command: Command) -> Command {
    if target().is_none() || !is_of_target(Path::new(command.get_program())) {
        return command;
    }
    let mut emulator = Command::new("qemu-aarch64");
    emulator.args(["-L", ROOT]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) if OF_THE_LOADER.iter().any(|known| name == *known) => {
                let both = [name, value].map(|text| text.to_string_lossy().into_owned());
                emulator.arg("-E").arg(both.join("=")).env_remove(name);
            }
            Some(value) => {
                emulator.env(name, value);
            }
            None => {
                emulator.env_remove(name);
            }
        }
    }
    emulator.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        emulator.current_dir(directory);
    }
    emulator
}

/// Whether the ELF header names aarch64 (machine 183).
fn is_of_target(program: &Path) -> bool {
    std::fs::read(program)
        .is_ok_and(|bytes| bytes.starts_with(b"\x7fELF") && bytes.get(18) == Some(&183))
}

/// 36 with glibc 2.36. From 34 on, libpthread and libdl are part of the C library.
pub fn glibc_minor() -> u32 {
    // SAFETY: a text of the C library, which stays.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let minor = version.to_str().unwrap().split('.').nth(1).unwrap();
    minor.parse().unwrap()
}
