//! The identity of a group's member, and the namespaces in which pids and segments have a meaning.

use crate::proc::{Stat, namespace};

/// A process, and the program that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: u32,
    /// Id of the segment that it keeps attached for as long as it runs this program: see [`crate::proc::Life`].
    pub segment: i32,
    /// When that was made, in seconds: ids are used again. 0 = not known.
    pub made: u64,
}

impl Member {
    /// Pid and segment in 53 bits: 22 bits for the pid, the most that Linux uses.
    pub fn to_word(&self) -> u64 {
        u64::from(self.pid & PID_MAX) << SEGMENT_BITS | u64::from(self.segment as u32) & SEGMENT_MAX
    }

    /// The inverse of [`Member::to_word`].
    pub fn from_words(word: u64, made: u64) -> Member {
        let pid = (word >> SEGMENT_BITS) as u32 & PID_MAX;
        Member { pid, segment: (word & SEGMENT_MAX) as i32, made }
    }

    /// Inode of the pid namespace of this process: a pid is valid only in its namespace. 0 = not known.
    pub fn namespace() -> u64 {
        namespace("pid").unwrap_or(0)
    }
}

/// Inodes of the pid namespace and of the IPC namespace (System V shared memory). 0 = not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    pub pid: u64,
    pub ipc: u64,
}

impl Namespaces {
    pub fn of_this_process() -> Namespaces {
        // Of the calling thread: the main thread may have exited before the others.
        let id = |kind| namespace(kind).unwrap_or(0);
        Namespaces { pid: id("pid"), ipc: id("ipc") }
    }

    /// As [`Namespaces::of_this_process`], for checks of other processes through /proc: the pid namespace is 0 if /proc
    /// shows another one.
    pub fn to_look_from() -> Namespaces {
        let own = Namespaces::of_this_process();
        let shown = Stat::of_this_process().is_some_and(|stat| stat.pid == std::process::id());
        if shown { own } else { Namespaces { pid: 0, ..own } }
    }

    /// Whether a pid of `other` is the same pid here.
    pub fn same_pids(self, other: Namespaces) -> bool {
        self.pid != 0 && self.pid == other.pid
    }
}

const SEGMENT_BITS: u32 = 31;
const SEGMENT_MAX: u64 = (1 << SEGMENT_BITS) - 1;
const PID_MAX: u32 = (1 << 22) - 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_one_word_and_the_time_of_its_segment() {
        for member in [
            Member { pid: 1, segment: 0, made: 7 },
            Member { pid: PID_MAX, segment: i32::MAX, made: 0 },
        ] {
            let word = member.to_word();
            assert_eq!((word >> 53, Member::from_words(word, member.made)), (0, member));
        }
        assert!(Namespaces::to_look_from().pid > 0 && Member::namespace() > 0);
    }
}
