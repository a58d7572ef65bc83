//! What the kernel did for want of host memory while a command ran: the processes of this cgroup that it killed, and
//! whether /dev/shm was full, where a store ends a process by SIGBUS.

use std::path::{Path, PathBuf};

use vramtrace_reader::files::kernel_text;
use vramtrace_reader::units::size;

use super::library::file_system;
use crate::live_processes::process::cgroup;

/// The file of a number, and the word before it.
type Name = (&'static str, &'static str);

/// The processes that were killed, how often the limit was reached, and the limit.
type Names = [Name; 3];

/// Where each version of cgroups has them.
const VERSIONS: [(&str, Names); 2] = [
    (
        "/sys/fs/cgroup",
        [("memory.events", "oom_kill "), ("memory.events", "oom "), ("memory.max", "")],
    ),
    (
        "/sys/fs/cgroup/memory",
        [
            ("memory.oom_control", "oom_kill "),
            ("memory.failcnt", ""),
            ("memory.limit_in_bytes", ""),
        ],
    ),
];

/// What is known while the command runs.
#[derive(Default)]
pub struct HostMemory {
    names: Names,
    /// This process's cgroup and those above it, with the first two numbers as they were before. None: the kernel shows none.
    groups: Vec<(PathBuf, [u64; 2])>,
    found: Starved,
}

/// What is known at its end.
#[derive(Clone, Debug, Default)]
pub struct Starved {
    /// How many processes the kernel killed, and why.
    pub kills: Option<(u64, String)>,
    /// `/dev/shm is full (64.00 MiB)`, if it was.
    pub full_shm: Option<String>,
}

impl HostMemory {
    /// Call it before the command starts.
    pub fn now() -> HostMemory {
        let path = cgroup("self").unwrap_or_default();
        let of = |(root, names): (&str, Names)| {
            // In a container the path may be the one that its host has.
            let inside = Path::new(root).join(path.trim_start_matches('/'));
            let counts = |group: &Path| Some([number(group, names[0])?, number(group, names[1])?]);
            let own =
                [&inside, Path::new(root)].into_iter().find(|group| counts(group).is_some())?;
            let groups = own.ancestors().take_while(|group| group.starts_with(root));
            let groups = groups.map_while(|group| Some((group.into(), counts(group)?))).collect();
            Some(HostMemory { names, groups, found: Starved::default() })
        };
        VERSIONS.into_iter().find_map(of).unwrap_or_default()
    }

    /// Call it repeatedly while the command runs.
    pub fn look(&mut self) {
        let shm = file_system(Path::new("/dev/shm")).filter(|it| it.f_blocks > 0);
        if let Some(full) = shm.filter(|it| it.f_bavail <= it.f_blocks / 100) {
            let bytes = size(full.f_blocks * full.f_frsize);
            self.found.full_shm = Some(format!("/dev/shm is full ({bytes})"));
        }
    }

    pub fn end(mut self) -> Starved {
        self.look();
        Starved { kills: self.kills(), ..self.found }
    }

    fn kills(&self) -> Option<(u64, String)> {
        let more = |(group, before): &(PathBuf, [u64; 2]), which: usize| {
            let now = number(group, self.names[which]).unwrap_or(0);
            now.saturating_sub(before[which])
        };
        let killed = more(self.groups.first()?, 0);
        let limit = self.groups.iter().find(|group| more(group, 1) > 0);
        let why = match limit.and_then(|(group, _)| number(group, self.names[2])) {
            Some(bytes) => format!("host memory limit {} of this cgroup", size(bytes)),
            None => "the host had no memory left".into(),
        };
        (killed > 0).then_some((killed, why))
    }
}

fn number(group: &Path, (file, word): Name) -> Option<u64> {
    let text = kernel_text(group.join(file))?;
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}
