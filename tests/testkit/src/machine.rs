//! Programs of another machine, run by an emulator: `VRAMTRACE_TEST_TARGET=aarch64-unknown-linux-gnu`
//! (scripts/test-aarch64.sh). What reads their traces stays this machine's.

use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const ROOT: &str = "/usr/aarch64-linux-gnu";
/// The loader of the programs reads these, not that of the emulator.
const OF_THE_LOADER: [&str; 2] = ["LD_PRELOAD", "LD_LIBRARY_PATH"];

/// The other machine's target, if there is one.
pub fn target() -> Option<&'static str> {
    let asked = std::env::var("VRAMTRACE_TEST_TARGET").ok()?;
    assert_eq!(asked, TARGET, "VRAMTRACE_TEST_TARGET: {TARGET} alone is known");
    Some(TARGET)
}

/// `gcc` and `g++` for it.
pub fn compiler(name: &str) -> String {
    match target() {
        Some(_) if name.starts_with('g') => format!("aarch64-linux-gnu-{name}"),
        _ => name.to_string(),
    }
}

/// How much longer programs may take.
pub fn patience() -> u32 {
    if target().is_some() { 10 } else { 1 }
}

/// The command, if its program is the other machine's, by the emulator.
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

/// By the machine in its header: 183 is aarch64's.
fn is_of_target(program: &Path) -> bool {
    std::fs::read(program).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF") && bytes[18] == 183)
}
