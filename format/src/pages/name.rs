//! The name of a live page's file, which identifies the process and the shared memory.
//!
//! `<pid>.<start ticks>.<pid namespace>.<ipc namespace>.<segment>`, all decimal. The page itself is a
//! System V shared memory segment, which cannot be truncated; only this name says where it is. The file's content is
//! a copy of the page, for readers that cannot attach the segment. A segment of `-`: there is no shared memory. A
//! namespace is the inode of `/proc/thread-self/ns/...`; 0 = not known.

use std::fmt;

use crate::member::Namespaces;
use crate::proc::Life;

/// The parsed name of a live page's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// Pid of the owner in the owner's pid namespace.
    pub pid: u32,
    /// Start time of the owner in clock ticks since boot.
    pub start_ticks: u64,
    pub namespaces: Namespaces,
    /// Id of the segment. `None`: there is no shared memory, only the copy.
    pub id: Option<i32>,
}

impl PageName {
    /// `None`: not the name of a live page's file.
    pub fn parse(name: &str) -> Option<PageName> {
        let mut fields = name.split('.');
        let (pid, start_ticks) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (pid_namespace, ipc) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let id = match fields.next()? {
            "-" => None,
            id => Some(id.parse().ok().filter(|id| *id >= 0)?),
        };
        let namespaces = Namespaces { pid: pid_namespace, ipc };
        fields.next().is_none().then_some(PageName { pid, start_ticks, namespaces, id })
    }

    /// The segment, if a process in these namespaces can attach it.
    pub fn segment(&self, from: Namespaces) -> Option<i32> {
        self.id.filter(|_| from.ipc != 0 && from.ipc == self.namespaces.ipc)
    }

    /// Whether the owner has this pid in these namespaces too.
    pub fn same_pids(&self, from: Namespaces) -> bool {
        from.same_pids(self.namespaces)
    }

    /// Whether the owner lives, as far as its segment and its pid tell in these namespaces. `attached`: whether somebody
    /// has a segment; `None`: it cannot be told. `exists`: whether a process has a pid.
    pub fn life(
        &self,
        from: Namespaces,
        attached: impl FnOnce(i32) -> Option<bool>,
        exists: impl Fn(u32) -> bool,
    ) -> Life {
        let by_pid = || match self.same_pids(from) {
            true => Life::of_started(self.pid, self.start_ticks, || exists(self.pid)),
            false => Life::Unknown,
        };
        match self.segment(from).and_then(attached) {
            Some(false) => Life::Dead,
            // The numbers of namespaces are used again: it may be another's segment, of the same id.
            Some(true) if by_pid() != Life::Dead => Life::Alive,
            Some(true) => Life::Dead,
            None => by_pid(),
        }
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Namespaces { pid, ipc } = self.namespaces;
        write!(f, "{}.{}.{pid}.{ipc}.", self.pid, self.start_ticks)?;
        match self.id {
            Some(id) => write!(f, "{id}"),
            None => write!(f, "-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Namespaces = Namespaces { pid: 10, ipc: 20 };

    fn name(pid: u32, namespaces: Namespaces, id: Option<i32>) -> PageName {
        PageName { pid, start_ticks: 77, namespaces, id }
    }

    #[test]
    fn names_come_back() {
        for (text, parsed) in [
            ("7.77.10.20.65540", name(7, HERE, Some(65540))),
            ("7.77.10.20.-", name(7, HERE, None)),
        ] {
            assert_eq!(PageName::parse(text), Some(parsed));
            assert_eq!(parsed.to_string(), text);
        }
        for text in
            ["", "7", "7.77", "7.x", "7.77.10", "7.77.10.20", "7.77.10.20.x", "7.77.10.20.-5"]
        {
            assert_eq!(PageName::parse(text), None, "{text}");
        }
        for text in ["7.77.10.20.1.1", "group.a", "7.77.10.20."] {
            assert_eq!(PageName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_who_is_dead_for_sure_is_dead() {
        let elsewhere = Namespaces { pid: 11, ..HERE };
        let apart = Namespaces { pid: 11, ipc: 21 };
        // No such pid.
        let dead = (1 << 22) + 1;
        for (namespaces, id, attached, life) in [
            (HERE, Some(1), Some(true), Life::Dead),
            (HERE, Some(1), Some(false), Life::Dead),
            (HERE, Some(1), None, Life::Dead),
            (HERE, None, Some(true), Life::Dead),
            (elsewhere, Some(1), Some(true), Life::Alive),
            (elsewhere, Some(1), Some(false), Life::Dead),
            (elsewhere, Some(1), None, Life::Unknown),
            (elsewhere, None, Some(false), Life::Unknown),
            // Not our segments.
            (apart, Some(1), Some(false), Life::Unknown),
            (Namespaces::default(), Some(1), Some(false), Life::Unknown),
        ] {
            let name = name(dead, namespaces, id);
            assert_eq!(name.life(HERE, |_| attached, |_| false), life, "{name}");
            let hidden = name.life(HERE, |_| attached, |_| true);
            let gone = name.segment(HERE).is_some() && attached == Some(false);
            assert_eq!(hidden == Life::Dead, gone, "{name}: /proc shows no such pid");
        }
        let unknown = Namespaces::default();
        assert_eq!(name(dead, unknown, None).life(unknown, |_| None, |_| false), Life::Unknown);
    }
}
