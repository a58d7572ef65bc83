//! The identity of a process (pid and start time) and of the program that it runs.

use std::fs;

use crate::proc::Stat;

/// A process, and the program that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Start address of the main stack, which changes with an exec. 0 = not known.
    pub image: u64,
}

impl Member {
    /// The calling process. `None`: /proc is missing, or shows another pid namespace.
    pub fn of_this_process() -> Option<Member> {
        let own = |stat: &Stat| stat.pid == std::process::id();
        Stat::of_this_process().filter(own).map(Member::from)
    }

    /// The process that has this pid now. `None`: there is none, or it has exited.
    pub fn running(pid: u32) -> Option<Member> {
        Stat::of(pid).filter(Stat::is_alive).map(Member::from)
    }

    /// Whether the process runs, and still runs the same program.
    pub fn is_alive(&self) -> bool {
        Member::running(self.pid).is_some_and(|now| {
            let same_program = now.image == 0 || self.image == 0 || now.image == self.image;
            now.start_ticks == self.start_ticks && same_program
        })
    }

    /// Pid and start time in 63 bits: 22 bits for the pid, the most that Linux uses, and 41 for the start time.
    pub fn to_word(&self) -> u64 {
        u64::from(self.pid & PID_MOST) << START_BITS | self.start_ticks & START_MOST
    }

    /// The inverse of [`Member::to_word`].
    pub fn from_words(word: u64, image: u64) -> Member {
        let pid = (word >> START_BITS) as u32 & PID_MOST;
        Member { pid, start_ticks: word & START_MOST, image }
    }

    /// Inode of the pid namespace of this process: a pid is valid only in its namespace. 0 = not known.
    pub fn namespace() -> u64 {
        Namespaces::inode("pid")
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
        Namespaces { pid: Namespaces::inode("pid"), ipc: Namespaces::inode("ipc") }
    }

    /// As [`Namespaces::of_this_process`], for checks of other processes through /proc: the pid namespace is 0 if /proc
    /// shows another one.
    pub fn to_look_from() -> Namespaces {
        let own = Namespaces::of_this_process();
        if Member::of_this_process().is_some() { own } else { Namespaces { pid: 0, ..own } }
    }

    /// Whether a pid of `other` is the same pid here.
    pub fn same_pids(self, other: Namespaces) -> bool {
        self.pid != 0 && self.pid == other.pid
    }

    /// Whether a segment of `other` can be attached here.
    pub fn same_ipc(self, other: Namespaces) -> bool {
        self.ipc != 0 && self.ipc == other.ipc
    }

    // Reads the calling thread's entry: the main thread may have exited before the others.
    fn inode(kind: &str) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(format!("/proc/thread-self/ns/{kind}")).map_or(0, |about| about.ino())
    }
}

impl From<Stat> for Member {
    fn from(Stat { pid, start_ticks, stack_start, .. }: Stat) -> Member {
        Member { pid, start_ticks, image: stack_start }
    }
}

const START_BITS: u32 = 41;
const START_MOST: u64 = (1 << START_BITS) - 1;
const PID_MOST: u32 = (1 << 22) - 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_others_of_its_pid_do_not() {
        let me = Member::of_this_process().unwrap();
        assert_eq!(me.pid, std::process::id());
        assert!(me.is_alive() && me.image != 0);
        assert!(Member { image: 0, ..me }.is_alive());
        assert!(!Member { start_ticks: me.start_ticks + 1, ..me }.is_alive(), "the pid is reused");
        assert!(!Member { image: me.image ^ 16, ..me }.is_alive(), "it was replaced by an exec");
        assert!(!Member { pid: PID_MOST, ..me }.is_alive());
        let word = me.to_word();
        assert_eq!((word >> 63, Member::from_words(word, me.image)), (0, me));
        assert!(Member::namespace() > 0);
    }
}
