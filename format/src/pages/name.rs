//! The name of a live page's file, which identifies the process and the shared memory.
//!
//! `<pid>.<start ticks>.<pid namespace>.<ipc namespace>.<segment>`, all decimal. The page itself is a
//! System V shared memory segment, which cannot be truncated; only this name says where it is. The file's content is
//! a copy of the page, for readers that cannot attach the segment. A segment of `-`: there is no shared memory. A
//! namespace is the inode of `/proc/thread-self/ns/...`; 0 = not known.
//!
//! Earlier versions wrote files named `<pid>.<start ticks>`: there the file is the page.

use std::fmt;

use crate::member::Namespaces;
use crate::proc;

/// The parsed name of a live page's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// Pid of the owner in the owner's pid namespace.
    pub pid: u32,
    /// Start time of the owner in clock ticks since boot.
    pub start_ticks: u64,
    pub place: Place,
}

/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the file itself: a page of an earlier version.
    File,
    Segment {
        namespaces: Namespaces,
        /// Id of the segment. `None`: there is no shared memory, only the copy.
        id: Option<i32>,
    },
}

impl PageName {
    /// `None`: not the name of a live page's file.
    pub fn parse(name: &str) -> Option<PageName> {
        let mut fields = name.split('.');
        let (pid, start_ticks) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let Some(pid_namespace) = fields.next() else {
            return Some(PageName { pid, start_ticks, place: Place::File });
        };
        let (pid_namespace, ipc) = (pid_namespace.parse().ok()?, fields.next()?.parse().ok()?);
        let id = match fields.next()? {
            "-" => None,
            id => Some(id.parse().ok().filter(|id| *id >= 0)?),
        };
        let namespaces = Namespaces { pid: pid_namespace, ipc };
        let place = Place::Segment { namespaces, id };
        fields.next().is_none().then_some(PageName { pid, start_ticks, place })
    }

    /// The segment, if a process in these namespaces can attach it.
    pub fn segment(&self, from: Namespaces) -> Option<i32> {
        match self.place {
            Place::Segment { namespaces, id } if from.same_ipc(namespaces) => id,
            _ => None,
        }
    }

    /// Whether the owner has this pid in these namespaces too. False for names that
    /// earlier versions wrote: those do not hold the namespaces.
    pub fn same_pids(&self, from: Namespaces) -> bool {
        matches!(self.place, Place::Segment { namespaces, .. } if from.same_pids(namespaces))
    }

    /// Whether the owner has certainly exited: either its pid would be visible here and is not, or `gone` says that no
    /// process has its segment attached.
    pub fn is_stale(&self, from: Namespaces, gone: impl Fn(i32) -> bool) -> bool {
        if self.same_pids(from) && !proc::is_alive(self.pid, self.start_ticks) {
            return true;
        }
        self.segment(from).is_some_and(gone)
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.start_ticks)?;
        let Place::Segment { namespaces, id } = self.place else { return Ok(()) };
        write!(f, ".{}.{}.", namespaces.pid, namespaces.ipc)?;
        match id {
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
        PageName { pid, start_ticks: 77, place: Place::Segment { namespaces, id } }
    }

    #[test]
    fn names_come_back() {
        for (text, parsed) in [
            ("7.77.10.20.65540", name(7, HERE, Some(65540))),
            ("7.77.10.20.-", name(7, HERE, None)),
            ("7.77", PageName { pid: 7, start_ticks: 77, place: Place::File }),
        ] {
            assert_eq!(PageName::parse(text), Some(parsed));
            assert_eq!(parsed.to_string(), text);
        }
        for text in ["", "7", "7.x", "7.77.10", "7.77.10.20", "7.77.10.20.x", "7.77.10.20.-5"] {
            assert_eq!(PageName::parse(text), None, "{text}");
        }
        for text in ["7.77.10.20.1.1", "group.a", "7.77.10.20."] {
            assert_eq!(PageName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_who_is_dead_for_sure_is_stale() {
        let elsewhere = |namespaces: Namespaces| Namespaces { pid: 11, ..namespaces };
        // No such pid.
        let dead = (1 << 22) + 1;
        assert!(name(dead, HERE, Some(1)).is_stale(HERE, |_| false));
        assert!(!name(dead, elsewhere(HERE), Some(1)).is_stale(HERE, |_| false), "not our pids");
        assert!(name(dead, elsewhere(HERE), Some(1)).is_stale(HERE, |id| id == 1));
        let apart = Namespaces { pid: 11, ipc: 21 };
        assert!(!name(dead, apart, Some(1)).is_stale(HERE, |_| true), "not our segments");
        assert!(!name(dead, HERE, None).is_stale(Namespaces::default(), |_| true), "not known");
        assert!(!name(dead, Namespaces::default(), None).is_stale(HERE, |_| true), "not known");
        let earlier = PageName { pid: dead, start_ticks: 1, place: Place::File };
        assert!(!earlier.is_stale(HERE, |_| true), "it does not say whose pid that is");
    }
}
