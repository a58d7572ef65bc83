//! System V shared memory segments that hold live and group pages. They are attached to read figures or to store an
//! order. A segment cannot be truncated, so reading it cannot raise SIGBUS.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::group::GROUP_BYTES;
use vramtrace_format::live::LIVE_BYTES;

/// Most bytes of a segment that are read: those of the longest page, and a word that shows that it is longer.
const MOST_BYTES: usize = 8 + if GROUP_BYTES > LIVE_BYTES { GROUP_BYTES } else { LIVE_BYTES };

/// Attributes of a segment from shmctl(IPC_STAT).
pub struct Facts {
    /// Pid of the creator in this pid namespace; 0 if it has none here.
    pub creator: u32,
    bytes: usize,
}

/// An attached segment; dropping it detaches.
pub struct Segment {
    at: *const AtomicU64,
    words: usize,
}

fn stat(id: i32) -> io::Result<libc::shmid_ds> {
    // SAFETY: a struct of our own.
    unsafe {
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        match libc::shmctl(id, libc::IPC_STAT, &mut stat) {
            0 => Ok(stat),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether no process has the segment attached. Unknown errors count as attached.
pub fn is_gone(id: i32) -> bool {
    match stat(id) {
        Ok(stat) => stat.shm_nattch == 0,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or_default();
            [libc::EINVAL, libc::EIDRM, libc::EACCES].contains(&errno)
        }
    }
}

/// `None` if no process has it attached, if `owner` does not own it, or if other users have access.
pub fn facts(id: i32, owner: u32) -> Option<Facts> {
    let stat = stat(id).ok()?;
    let perm = &stat.shm_perm;
    // The creator keeps access after IPC_SET changed the owner, so both are checked.
    let own = [perm.uid, perm.cuid] == [owner; 2] && perm.mode & 0o077 == 0;
    (own && stat.shm_nattch > 0)
        .then_some(Facts { creator: stat.shm_cpid.max(0) as u32, bytes: stat.shm_segsz })
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
        segment.words = facts(id, owner)?.bytes.min(MOST_BYTES) / 8;
        Some(segment)
    }

    fn words(&self) -> &[AtomicU64] {
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

/// Fails if this process cannot make a segment of this size, as members of a group must. `bytes`: its size.
pub fn can_be_made(bytes: usize) -> Result<(), io::Error> {
    // SAFETY: plain calls; the segment is nobody's, and goes at once.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | 0o600);
        let at = if id < 0 { -1 } else { libc::shmat(id, std::ptr::null(), 0) as isize };
        let made = if at == -1 { Err(io::Error::last_os_error()) } else { Ok(()) };
        if id >= 0 {
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        }
        if at != -1 {
            libc::shmdt(at as *const libc::c_void);
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
        assert_eq!(facts(id, me).unwrap().creator, std::process::id());
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
        assert!(!is_gone(id));
        drop(segment);
        assert!(is_gone(id));
        assert!(Segment::attach(id, me, false).is_none());
        assert!(can_be_made(1 << 20).is_ok());
    }
}
