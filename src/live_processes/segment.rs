//! System V shared memory segments that hold live and group pages. They are attached to read figures or to store an
//! order. A segment cannot be truncated, so reading it cannot raise SIGBUS.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::group::GROUP_BYTES;
use vramtrace_format::live::LIVE_BYTES;
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;

/// Maximum number of bytes of a segment that are read: those of the longest page, and a word that shows that it is longer.
const MAX_BYTES: usize = 8 + if GROUP_BYTES > LIVE_BYTES { GROUP_BYTES } else { LIVE_BYTES };

/// An attached segment; dropping it detaches.
pub struct Segment {
    at: *const AtomicU64,
    words: usize,
}

/// What shmctl returns and writes, asked for one of IPC_STAT, SHM_STAT, SHM_INFO.
fn ask(id: i32, what: i32) -> io::Result<(i32, libc::shmid_ds)> {
    // SAFETY: a struct of our own, which has room for the answer to any of them.
    unsafe {
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        match libc::shmctl(id, what, &mut stat) {
            -1 => Err(io::Error::last_os_error()),
            result => Ok((result, stat)),
        }
    }
}

fn stat(id: i32) -> io::Result<libc::shmid_ds> {
    ask(id, libc::IPC_STAT).map(|(_, stat)| stat)
}

/// The ids of the segments of this length.
pub fn attached(bytes: usize) -> impl Iterator<Item = i32> {
    const SHM_STAT: i32 = 13;
    const SHM_INFO: i32 = 14;
    let last = ask(0, SHM_INFO).map_or(-1, |(last, _)| last);
    let found = (0..=last).filter_map(|index| ask(index, SHM_STAT).ok());
    found.filter(move |(_, stat)| stat.shm_segsz == bytes).map(|(id, _)| id)
}

/// Whether somebody has a segment of this user attached, which was made at this time (0 = not known). Without it the id
/// is unused, or another segment's by now. `None`: it cannot be told from here.
pub fn is_attached(id: i32, owner: u32, made: u64) -> Option<bool> {
    // SAFETY: has no arguments and always succeeds.
    let user = unsafe { libc::geteuid() };
    match stat(id) {
        Ok(stat) => {
            let is_it = stat.shm_perm.uid == owner && (made == 0 || stat.shm_ctime as u64 == made);
            Some(is_it && stat.shm_nattch > 0)
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EINVAL | libc::EIDRM) => Some(false),
            Some(libc::EACCES) if owner == user => Some(false),
            _ => None,
        },
    }
}

/// Whether a process, or one that has ended and was not waited for, has this pid.
pub fn pid_exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: takes no pointers; signal 0 only checks that the pid exists.
    let there = unsafe { libc::kill(pid, 0) } == 0;
    there || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Whether a member of a group of this user lives.
pub fn life_of(member: Member, owner: u32) -> Life {
    let attached = is_attached(member.segment, owner, member.made);
    Life::of_holder(member.pid, attached, || pid_exists(member.pid))
}

/// Of a segment. `None` if no process has it attached, if `owner` does not own it, or if other users have access.
pub fn facts(id: i32, owner: u32) -> Option<libc::shmid_ds> {
    let stat = stat(id).ok()?;
    let perm = &stat.shm_perm;
    // The creator keeps access after IPC_SET changed the owner, so both are checked.
    let own = [perm.uid, perm.cuid] == [owner; 2] && perm.mode & 0o077 == 0;
    (own && stat.shm_nattch > 0).then_some(stat)
}

impl Segment {
    pub fn attach(id: i32, owner: u32, write: bool) -> Option<Segment> {
        let access = if write { 0 } else { libc::SHM_RDONLY };
        // SAFETY: the kernel chooses the place.
        let at = unsafe { libc::shmat(id, std::ptr::null(), access) };
        if at as isize == -1 {
            return None;
        }
        let mut segment = Segment { at: at.cast(), words: 0 };
        // Checked after attaching: from here on the id cannot be reused for another segment.
        segment.words = facts(id, owner)?.shm_segsz.min(MAX_BYTES) / 8;
        Some(segment)
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many as the segment has, for as long as it is attached.
        unsafe { std::slice::from_raw_parts(self.at, self.words) }
    }

    /// Copies all words. Each word is read atomically, the copy as a whole is not.
    pub fn copy(&self) -> Vec<u64> {
        self.words().iter().map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// Stores a word at this byte. False: there is none, or it was attached to be read.
    pub fn store(&self, at: u64, word: u64) -> bool {
        let place = self.words().get(at as usize / 8);
        place.map(|place| place.store(word, Ordering::SeqCst)).is_some()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: attached by us; no reference outlives us.
        unsafe { libc::shmdt(self.at.cast()) };
    }
}

/// A segment of this process alone, for as long as it is attached, with its id. Fails where members of a group cannot
/// make theirs either.
pub fn make(bytes: usize) -> io::Result<(Segment, i32)> {
    // SAFETY: plain calls; the segment is nobody else's, and goes with this process at the latest.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | 0o600);
        let at = if id < 0 { id as isize } else { libc::shmat(id, std::ptr::null(), 0) as isize };
        let made = match at {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok((Segment { at: at as *const AtomicU64, words: bytes / 8 }, id)),
        };
        if id >= 0 {
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_segment_of_the_owners_own_is_attached() {
        // SAFETY: plain calls on a segment of our own.
        let (me, id) = unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, 64, libc::IPC_CREAT | 0o600);
            (libc::geteuid(), id)
        };
        assert!(facts(id, me).is_none(), "nobody has it");
        assert!(Segment::attach(id, me + 1, false).is_none());
        let segment = Segment::attach(id, me, true).unwrap();
        assert!(segment.store(56, 7) && !segment.store(64, 7));
        assert_eq!(Segment::attach(id, me, false).unwrap().copy()[7], 7);
        assert_eq!(facts(id, me).unwrap().shm_cpid, std::process::id() as i32);
        // SAFETY: a segment of this test; `stat` has room for its record.
        unsafe {
            let mut stat: libc::shmid_ds = std::mem::zeroed();
            libc::shmctl(id, libc::IPC_STAT, &mut stat);
            stat.shm_perm.mode = 0o606;
            libc::shmctl(id, libc::IPC_SET, &mut stat);
        }
        assert!(facts(id, me).is_none(), "open to others");
        // SAFETY: a segment of this test; removing it takes no pointer.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        let attached = |made| is_attached(id, me, made);
        let made = stat(id).unwrap().shm_ctime as u64;
        assert_eq!([0, made, made + 1].map(attached), [Some(true), Some(true), Some(false)]);
        let member = Member { pid: std::process::id(), segment: id, made };
        assert_eq!(life_of(member, me), Life::Alive);
        drop(segment);
        assert_eq!(attached(0), Some(false));
        assert_eq!(life_of(member, me), Life::Dead, "it runs, without the segment");
        assert!(Segment::attach(id, me, false).is_none());
        assert!(make(1 << 20).is_ok());
    }
}
