//! Memory that processes of one user share: System V segments. Unlike a mapped file, a segment cannot
//! be truncated. (A process that touches a truncated mapping dies by SIGBUS.)
//!
//! A segment is marked for removal as soon as it is attached: the kernel frees it when the last process
//! that has it has ended, however it ends, and until then others may attach it by its id. So if no
//! process has an id attached, its owner has exited, in whatever pid namespace it was.
//!
//! System calls are made directly: some libraries interpose `shmat` and run their own code in it.

use crate::runtime::faults::{Site, pages_granted};
use crate::runtime::secure_dir::{Wrong, errno};
use libc::{SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A segment that this process keeps attached.
pub struct Segment<const WORDS: usize> {
    pub id: i32,
    pub words: &'static [AtomicU64; WORDS],
}

impl<const WORDS: usize> Segment<WORDS> {
    const BYTES: usize = WORDS * 8;

    /// Creates a segment of zeros, accessible to this user only.
    pub fn create() -> Result<Segment<WORDS>, Wrong> {
        if !pages_granted(Site::Segment) {
            return Err(Wrong::Errno(libc::ENOSPC));
        }
        let flags = libc::IPC_CREAT | 0o600;
        // SAFETY: a system call that takes no pointers.
        let id = unsafe { libc::syscall(SYS_shmget, libc::IPC_PRIVATE, Self::BYTES, flags) };
        if id < 0 {
            return Err(errno());
        }
        let id = id as i32;
        let attached = Segment::attached(id);
        // SAFETY: a system call on the segment just created; it takes no pointers.
        unsafe { libc::syscall(SYS_shmctl, id, libc::IPC_RMID, 0) };
        attached
    }

    /// The segment of this id, if it is this user's, closed to others and of this size.
    pub fn attach(id: i32) -> Result<Segment<WORDS>, Wrong> {
        let segment = Segment::attached(id)?;
        // While it is attached its id cannot be reused.
        match attach_count(id, Self::BYTES) {
            Ok(_) => Ok(segment),
            Err(wrong) => {
                segment.detach();
                Err(wrong)
            }
        }
    }

    /// Detaches a segment that is not used after all. No reference to its words may exist.
    pub fn detach(self) {
        // SAFETY: attached at this address, and not used any more.
        unsafe { libc::syscall(SYS_shmdt, self.words.as_ptr()) };
    }

    fn attached(id: i32) -> Result<Segment<WORDS>, Wrong> {
        if !pages_granted(Site::Segment) {
            return Err(Wrong::Errno(libc::ENOMEM));
        }
        // SAFETY: the kernel chooses the place. A segment is never shorter than it was made.
        unsafe {
            match libc::syscall(SYS_shmat, id, 0, 0) {
                -1 => Err(errno()),
                at => Ok(Segment { id, words: &*(at as *const [AtomicU64; WORDS]) }),
            }
        }
    }
}

/// Whether this user's segment of this id no longer exists: it was removed, or the id is another user's
/// by now. False if that cannot be determined. Other versions of this library may have made it in
/// another size.
pub fn is_removed(id: i32) -> bool {
    match own_stat(id) {
        Ok(stat) => stat.shm_nattch == 0,
        Err(Wrong::Errno(errno)) => [libc::EINVAL, libc::EIDRM, libc::EACCES].contains(&errno),
        Err(_) => true,
    }
}

/// The first words of this user's segment of this id, whatever its size. `None`: it is removed, too
/// short, or not this user's alone.
pub fn first_words<const WORDS: usize>(id: i32) -> Option<[u64; WORDS]> {
    let segment = Segment::<WORDS>::attached(id).ok()?;
    // While it is attached its id cannot be reused.
    let long_enough = own_stat(id).is_ok_and(|stat| stat.shm_segsz >= WORDS * 8);
    let words = segment.words;
    let first = long_enough.then(|| std::array::from_fn(|at| words[at].load(SeqCst)));
    segment.detach();
    first
}

/// The number of processes that have it attached, if owner, mode and size are as expected.
fn attach_count(id: i32, bytes: usize) -> Result<u64, Wrong> {
    let stat = own_stat(id)?;
    match stat.shm_segsz == bytes {
        true => Ok(stat.shm_nattch),
        false => Err(Wrong::OtherSize),
    }
}

/// The kernel's record of a segment, if owner and mode are as expected. The creator must be this user
/// too: it keeps access to a segment that it gives away.
fn own_stat(id: i32) -> Result<libc::shmid_ds, Wrong> {
    // SAFETY: a struct of our own; always succeeds.
    let (stat, user) = unsafe {
        let mut stat: libc::shmid_ds = std::mem::zeroed();
        if libc::syscall(SYS_shmctl, id, libc::IPC_STAT, &mut stat) < 0 {
            return Err(errno());
        }
        (stat, libc::geteuid())
    };
    let perm = &stat.shm_perm;
    match [perm.cuid, perm.uid].into_iter().find(|owner| *owner != user) {
        Some(owner) => Err(Wrong::Owner(owner)),
        None if perm.mode & 0o077 != 0 => Err(Wrong::Mode((perm.mode & 0o777).into())),
        None => Ok(stat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use testkit::in_child;

    type Page = Segment<64>;

    /// What it returns, from a child that ends.
    fn id_of_child(run: impl FnOnce() -> i32) -> i32 {
        let (mut out, mut into) = std::io::pipe().unwrap();
        let ended = in_child(|| into.write_all(&run().to_ne_bytes()).is_ok());
        assert_eq!(ended, Ok(true));
        let mut id = [0; 4];
        out.read_exact(&mut id).unwrap();
        i32::from_ne_bytes(id)
    }

    #[test]
    fn it_is_shared_while_somebody_has_it_and_removed_then() {
        let ours = Page::create().unwrap();
        ours.words[5].store(7, SeqCst);
        assert!(!is_removed(ours.id));
        assert_eq!(Page::attach(ours.id).unwrap().words[5].load(SeqCst), 7);
        assert_eq!(Segment::<65>::attach(ours.id).err(), Some(Wrong::OtherSize));
        ours.words[0].store(5, SeqCst);
        assert_eq!(first_words::<1>(ours.id), Some([5]));
        assert_eq!(first_words::<65>(ours.id), None, "it is shorter");
        let theirs = id_of_child(|| Page::create().map_or(-1, |segment| segment.id));
        assert!(theirs >= 0 && is_removed(theirs), "it went with its process");
        assert!(Page::attach(theirs).is_err());
    }

    #[test]
    fn what_another_user_made_is_not_ours_though_it_is_given_to_us() {
        if testkit::user() != 0 {
            testkit::skip("segments of another user: needs root");
            return;
        }
        // SAFETY: the structure is ours, and only the id of the new segment is used.
        let given = id_of_child(|| unsafe {
            libc::setuid(65534);
            let id = libc::shmget(libc::IPC_PRIVATE, Page::BYTES, libc::IPC_CREAT | 0o600);
            let mut stat: libc::shmid_ds = std::mem::zeroed();
            libc::shmctl(id, libc::IPC_STAT, &mut stat);
            stat.shm_perm.uid = 0;
            libc::shmctl(id, libc::IPC_SET, &mut stat);
            id
        });
        // SAFETY: makes a segment, and touches no memory.
        let wide = unsafe { libc::shmget(libc::IPC_PRIVATE, Page::BYTES, libc::IPC_CREAT | 0o660) };
        let refused = [given, wide].map(|id| Page::attach(id).err());
        assert_eq!(refused, [Some(Wrong::Owner(65534)), Some(Wrong::Mode(0o660))]);
        assert!(is_removed(given) && is_removed(wide));
        for id in [given, wide] {
            // SAFETY: a segment of this test, which is attached nowhere.
            unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}
