//! The identity of a process: pid and start time; and of the program in it.

use std::fs;

use crate::proc::Stat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_ticks: u64,
    /// The start of its first stack, which changes with an exec. 0 = not known.
    pub image: u64,
}

impl Member {
    /// `None`: there is no /proc, or it is of another pid namespace.
    pub fn of_this_process() -> Option<Member> {
        let own = |stat: &Stat| stat.pid == std::process::id();
        Stat::of_this_process().filter(own).map(Member::from)
    }

    /// The process that runs under this pid now.
    pub fn running(pid: u32) -> Option<Member> {
        Stat::of(pid).filter(Stat::is_alive).map(Member::from)
    }

    /// Whether it runs, and is still the same program.
    pub fn is_alive(&self) -> bool {
        Member::running(self.pid).is_some_and(|now| {
            let same_program = now.image == 0 || self.image == 0 || now.image == self.image;
            now.start_ticks == self.start_ticks && same_program
        })
    }

    /// Pid and start in 63 bits: 22 for the pid, as many as Linux gives.
    pub fn to_word(&self) -> u64 {
        u64::from(self.pid & PID_MOST) << START_BITS | self.start_ticks & START_MOST
    }

    pub fn from_words(word: u64, image: u64) -> Member {
        let pid = (word >> START_BITS) as u32 & PID_MOST;
        Member { pid, start_ticks: word & START_MOST, image }
    }

    /// The pid namespace of this process: pids mean something only there. 0 = not known.
    pub fn namespace() -> u64 {
        Namespaces::inode("pid")
    }
}

/// The namespaces of pids and of System V shared memory. 0 = not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    pub pid: u64,
    pub ipc: u64,
}

impl Namespaces {
    pub fn of_this_process() -> Namespaces {
        Namespaces { pid: Namespaces::inode("pid"), ipc: Namespaces::inode("ipc") }
    }

    /// As [`Namespaces::of_this_process`], for checking other processes: the pid namespace is known
    /// only if /proc is of it.
    pub fn to_look_from() -> Namespaces {
        let own = Namespaces::of_this_process();
        if Member::of_this_process().is_some() { own } else { Namespaces { pid: 0, ..own } }
    }

    pub fn same_pids(self, other: Namespaces) -> bool {
        self.pid != 0 && self.pid == other.pid
    }

    pub fn same_ipc(self, other: Namespaces) -> bool {
        self.ipc != 0 && self.ipc == other.ipc
    }

    /// Of the calling thread: the main one may have ended before the others.
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
