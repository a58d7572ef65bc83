//! Reads processes from /proc. A process may end, or its files may be unreadable: the result is then `None` or
//! empty.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use vramtrace_format::proc;
use vramtrace_reader::files;

use crate::live_processes::places::Places;
use crate::live_processes::process::{has_page, proc_file};

/// A process by pid and start time, which together are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: i32,
    pub start_ticks: u64,
}

/// Deeper chains of parents are cut, as pids may be reused while one is read.
const DEEPEST: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub process: Process,
    pub parent: i32,
    /// The first 15 bytes of its name.
    pub name: String,
    /// Start of the main stack, which differs after exec; 0 = hidden by the kernel.
    pub stack_start: u64,
    /// The process has ended and is not reaped.
    pub zombie: bool,
}

pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(stat).collect()
}

pub fn stat(pid: i32) -> Option<Stat> {
    let stat = proc::Stat::of(pid.try_into().ok()?)?;
    Some(Stat {
        process: Process { pid, start_ticks: stat.start_ticks },
        parent: stat.parent as i32,
        name: String::from_utf8_lossy(&stat.name).into_owned(),
        stack_start: stat.stack_start,
        zombie: !stat.is_alive(),
    })
}

/// Whether this is the process `root` or a descendant.
pub fn is_below(pid: i32, root: i32) -> bool {
    let parent = |pid: &i32| proc::Stat::of(u32::try_from(*pid).ok()?).map(|it| it.parent as i32);
    std::iter::successors(Some(pid), parent)
        .take(DEEPEST)
        .take_while(|pid| *pid > 0)
        .any(|pid| pid == root)
}

/// Does its environment hold exactly this variable?
pub fn has_variable(pid: i32, name: &str, value: &OsStr) -> bool {
    variable(pid, name).is_some_and(|found| found == value.as_bytes())
}

/// The value of a variable that it was started with.
pub fn variable(pid: i32, name: &str) -> Option<Vec<u8>> {
    let environ = proc_file(pid as u32, "environ");
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value.to_vec())
    })
}

/// Paths of the files that it has mapped, each once.
pub fn mapped_files(pid: i32) -> Vec<PathBuf> {
    let Ok(maps) = files::read_kernel(format!("/proc/{pid}/maps")) else { return Vec::new() };
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

/// Whether the process has a live page in a directory of this user.
pub fn has_live_page(process: Process) -> bool {
    let pid = process.pid;
    let places = Places::from(|name| variable(pid, name).map(OsString::from_vec));
    // SAFETY: cannot fail.
    let user = unsafe { libc::getuid() };
    has_page(pid as u32, user, &places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_with_its_own_files() {
        let own = std::process::id() as i32;
        assert!(all().iter().any(|stat| stat.process.pid == own && !stat.zombie));
        let executable = std::env::current_exe().unwrap();
        assert!(mapped_files(own).contains(&executable));
        assert!(!has_variable(own, "VRAMTRACE_NO_SUCH", OsStr::new("")));
    }
}
