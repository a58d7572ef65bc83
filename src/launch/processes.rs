//! What /proc says about a process. Everything may be gone or forbidden at any moment: then it is
//! `None` or empty.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A process by the two numbers that name it once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: i32,
    pub start_ticks: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub process: Process,
    pub parent: i32,
    /// The first 15 bytes of its name.
    pub name: String,
    pub zombie: bool,
}

pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(stat).collect()
}

pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&text))
}

/// The name stands in parentheses and may hold any character, parentheses too.
fn parse_stat(pid: i32, text: &str) -> Option<Stat> {
    let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        process: Process { pid, start_ticks: fields.get(19)?.parse().ok()? },
        parent: fields.get(1)?.parse().ok()?,
        name: name.into(),
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Does its environment hold exactly this variable?
pub fn has_variable(pid: i32, name: &str, value: &OsStr) -> bool {
    variable(pid, name).is_some_and(|found| found == value.as_bytes())
}

fn variable(pid: i32, name: &str) -> Option<Vec<u8>> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value.to_vec())
    })
}

/// Paths of the files that it has mapped, each once.
pub fn mapped_files(pid: i32) -> Vec<PathBuf> {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(slash) = line.iter().position(|byte| *byte == b'/') else { continue };
        let path = Path::new(OsStr::from_bytes(&line[slash..]));
        if files.last().is_none_or(|last| last != path) {
            files.push(path.into());
        }
    }
    files.sort_unstable();
    files.dedup();
    files
}

/// Where processes of this one's user put their live pages.
pub fn live_page(process: Process) -> Option<PathBuf> {
    let runtime = variable(process.pid, "XDG_RUNTIME_DIR");
    let runtime =
        runtime.map(|directory| Path::new(OsStr::from_bytes(&directory)).join("vramtrace"));
    // SAFETY: cannot fail.
    let shared = format!("/dev/shm/vramtrace-{}", unsafe { libc::getuid() });
    let file = format!("{}.{}", process.pid, process.start_ticks);
    [runtime, Some(shared.into())]
        .into_iter()
        .flatten()
        .map(|directory| directory.join(&file))
        .find(|page| page.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let stat = parse_stat(42, text).unwrap();
        assert_eq!(stat.name, "a) b (c");
        assert_eq!((stat.parent, stat.process.start_ticks), (7, 987_654));
    }

    #[test]
    fn this_process_is_there_with_its_own_files() {
        let own = std::process::id() as i32;
        assert!(all().iter().any(|stat| stat.process.pid == own && !stat.zombie));
        let executable = std::env::current_exe().unwrap();
        assert!(mapped_files(own).contains(&executable));
        assert!(!has_variable(own, "VRAMTRACE_NO_SUCH", OsStr::new("")));
    }
}
