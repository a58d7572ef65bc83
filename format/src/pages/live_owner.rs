//! Who a live page belongs to, as the process itself knows it, for a reader in another container: there its pid and
//! its /proc mean nothing.
//!
//! ```text
//! word  12  bit 0: the process holds a lock on the page's file; bits 8 to 15: events after which driver calls may
//!           bypass the recorder ([`crate::escape::Escape`])
//!       13  rank + 1; 0 = none
//! 536..552  name of the executable      552..568  job: the number that the batch system gives
//! 640..704  the path of the cgroup      704..720  host
//! ```
//!
//! Texts are UTF-8 with zeros behind it, cut at a character if they are too long.

use super::live::LivePage;

const FLAGS: usize = 12;
const RANK: usize = 13;
const LOCKED: u64 = 1;
const ESCAPES_SHIFT: u32 = 8;
/// First word and length, in words, of the texts.
const EXECUTABLE: (usize, usize) = (536, 16);
const JOB: (usize, usize) = (552, 16);
const CGROUP: (usize, usize) = (640, 64);
const HOST: (usize, usize) = (704, 16);

/// What a process says of itself. Empty texts: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveOwner {
    /// The last part of the path.
    pub executable: String,
    /// The number of the job in the batch system.
    pub job: String,
    pub rank: Option<u32>,
    /// The path in the hierarchy that limits memory. A container with a cgroup namespace of its own sees `/`.
    pub cgroup: String,
    pub host: String,
}

impl LivePage<'_> {
    pub fn set_owner(&self, owner: &LiveOwner) {
        self.set(RANK, owner.rank.map_or(0, |rank| u64::from(rank) + 1));
        self.put_text(EXECUTABLE, &owner.executable);
        self.put_text(JOB, &owner.job);
        self.put_text(CGROUP, &owner.cgroup);
        self.put_text(HOST, &owner.host);
    }

    pub fn owner(&self) -> LiveOwner {
        LiveOwner {
            executable: self.text(EXECUTABLE),
            job: self.text(JOB),
            rank: self.get(RANK).checked_sub(1).and_then(|rank| u32::try_from(rank).ok()),
            cgroup: self.text(CGROUP),
            host: self.text(HOST),
        }
    }

    /// Says whether the process holds a lock on the page's file, for as long as it lives.
    pub fn set_locked(&self, yes: bool) {
        let flags = self.get(FLAGS) & !LOCKED;
        self.set(FLAGS, flags | u64::from(yes));
    }

    /// Whether the lock on the page's file tells that the process lives.
    pub fn is_locked(&self) -> bool {
        self.get(FLAGS) & LOCKED != 0
    }

    /// Stores the events after which driver calls may bypass the recorder: bits of [`crate::escape::Escape`].
    pub fn set_escapes(&self, escapes: u8) {
        let flags = self.get(FLAGS) & !(0xFF << ESCAPES_SHIFT);
        self.set(FLAGS, flags | u64::from(escapes) << ESCAPES_SHIFT);
    }

    /// Bits of [`crate::escape::Escape`].
    pub fn escapes(&self) -> u8 {
        (self.get(FLAGS) >> ESCAPES_SHIFT) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::live::tests::words;
    use crate::pages::live::{LiveDevice, LiveProcess};

    #[test]
    fn the_owner_comes_back_and_long_texts_are_cut_at_a_character() {
        let words = words();
        let page = LivePage::begin(&words, &LiveProcess { pid: 7, ..LiveProcess::default() });
        assert_eq!((page.owner(), page.is_locked(), page.escapes()), Default::default());
        let owner = LiveOwner {
            executable: "python3.12".into(),
            job: "4711".into(),
            rank: Some(0),
            cgroup: format!("/kubepods/{}", "x".repeat(502)),
            host: format!("x{}", "é".repeat(100)),
        };
        page.set_group(&"g".repeat(64));
        page.set_owner(&owner);
        page.set_escapes(0xFF);
        page.set_locked(true);
        page.set_escapes(0x81);
        let host = format!("x{}", "é".repeat(63));
        assert_eq!(page.owner(), LiveOwner { host, ..owner.clone() });
        assert_eq!((page.is_locked(), page.escapes()), (true, 0x81));
        page.set_locked(false);
        assert_eq!((page.is_locked(), page.escapes()), (false, 0x81));
        assert_eq!(page.group(), Some("g".repeat(64)), "the words before");
        assert_eq!(page.ordered(15), None, "orders");
        page.update(5, &[LiveDevice::default(); 16]);
        assert_eq!(page.owner().cgroup, owner.cgroup);
        // A shorter text leaves nothing of the one before.
        page.set_owner(&LiveOwner { executable: "sh".into(), ..LiveOwner::default() });
        assert_eq!(page.owner(), LiveOwner { executable: "sh".into(), ..LiveOwner::default() });
    }
}
