//! Memory that processes of one user share: System V segments. Unlike a mapped file, a segment cannot
//! be truncated. (A process that touches a truncated mapping dies by SIGBUS.)
//!
//! A segment is marked for removal as soon as it is attached: the kernel frees it when the last process
//! that has it has ended, however it ends, and until then others may attach it by its id. Forked children do
//! not get it. So a process that made a segment lives, and runs the same program, while it is attached: this needs no
//! /proc, no file and no descriptor, and holds in whatever namespace of pids, times or mounts the two are. It cannot be
//! told from another IPC namespace, or by another user.
//!
//! System calls are made directly: some libraries interpose `shmat` and run their own code in it.

use crate::runtime::faults::pages_granted;
use crate::runtime::forked_child;
use crate::runtime::secure_dir::{Wrong, errno, user};
use crate::runtime::system::segment_control;
use libc::{SYS_shmat, SYS_shmdt, SYS_shmget};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

/// A segment that this process keeps attached.
pub struct Segment<const WORDS: usize> {
    pub id: i32,
    pub words: &'static [AtomicU64; WORDS],
}

impl<const WORDS: usize> Segment<WORDS> {
    const BYTES: usize = WORDS * 8;

    /// Creates a segment of zeros, accessible to this user only.
    pub fn create() -> Result<Segment<WORDS>, Wrong> {
        if !pages_granted("segment") {
            return Err(Wrong::Errno(libc::ENOSPC));
        }
        let flags = libc::IPC_CREAT | 0o600;
        // SAFETY: a system call that takes no pointers.
        let id = unsafe { libc::syscall(SYS_shmget, libc::IPC_PRIVATE, Self::BYTES, flags) };
        if id < 0 {
            return Err(errno());
        }
        let id = id as i32;
        // For good, and for this process alone.
        let range = forked_child::reserve(Self::BYTES).ok_or_else(errno);
        // SAFETY: in place of what was reserved there.
        let attached = range.and_then(|range| range.put(|at| unsafe { Segment::at(id, at) }));
        segment_control(id, libc::IPC_RMID);
        attached
    }

    /// Attaches a segment that is as long as this one.
    ///
    /// # Safety
    /// `at` is null, or a range of this process that nobody uses, which it replaces.
    unsafe fn at(id: i32, at: *mut c_void) -> Result<Segment<WORDS>, Wrong> {
        let flags = if at.is_null() { 0 } else { libc::SHM_REMAP };
        // SAFETY: the caller's contract; without a place the kernel chooses one.
        match unsafe { libc::syscall(SYS_shmat, id, at, flags) } {
            -1 => Err(errno()),
            // SAFETY: attached there. A segment is never shorter than it was made.
            at => Ok(Segment { id, words: unsafe { &*(at as *const [AtomicU64; WORDS]) } }),
        }
    }

    /// When it was made, in seconds; 0 = not known.
    pub fn made(&self) -> u64 {
        own_stat(self.id).map_or(0, |stat| stat.shm_ctime as u64)
    }

    /// Calls `report` with the ids of this user's segments of this size that somebody has attached.
    pub fn each_attached(mut report: impl FnMut(i32)) -> Result<(), Wrong> {
        const SHM_STAT: i32 = 13;
        const SHM_INFO: i32 = 14;
        let (last, _) = segment_control(0, SHM_INFO).ok_or_else(errno)?;
        for (id, stat) in (0..=last).filter_map(|index| segment_control(index, SHM_STAT)) {
            let is_right = stat.shm_segsz == Self::BYTES && stat.shm_nattch > 0;
            if is_right && is_own(&stat).is_ok() {
                report(id);
            }
        }
        Ok(())
    }

    /// The segment of this id, if it is this user's, closed to others and of this size.
    pub fn attach(id: i32) -> Result<Segment<WORDS>, Wrong> {
        if !pages_granted("segment") {
            return Err(Wrong::Errno(libc::ENOMEM));
        }
        // SAFETY: the kernel chooses the place.
        let segment = unsafe { Segment::at(id, null_mut()) }?;
        // While it is attached its id cannot be reused.
        let wrong = match own_stat(id) {
            Ok(stat) if stat.shm_segsz == Self::BYTES => return Ok(segment),
            Ok(_) => Wrong::OtherSize,
            Err(wrong) => wrong,
        };
        segment.detach();
        Err(wrong)
    }

    /// Detaches a segment that is not used after all. No reference to its words may exist.
    pub fn detach(self) {
        // SAFETY: attached at this address, and not used any more.
        unsafe { libc::syscall(SYS_shmdt, self.words.as_ptr()) };
    }
}

/// Whether somebody has this user's segment of this id attached, which was made at this time (0 = not known). Of
/// whatever size. Without it the id is unused, or another segment's by now. `None`: it cannot be told.
pub fn is_attached(id: i32, made: u64) -> Option<bool> {
    match own_stat(id) {
        Ok(stat) => Some(stat.shm_nattch > 0 && (made == 0 || stat.shm_ctime as u64 == made)),
        Err(Wrong::Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => Some(false),
        Err(Wrong::Errno(_)) => None,
        Err(_) => Some(false),
    }
}

/// The kernel's record of a segment, if owner and mode are as expected. The creator must be this user
/// too: it keeps access to a segment that it gives away.
fn own_stat(id: i32) -> Result<libc::shmid_ds, Wrong> {
    let (_, stat) = segment_control(id, libc::IPC_STAT).ok_or_else(errno)?;
    is_own(&stat).map(|()| stat)
}

fn is_own(stat: &libc::shmid_ds) -> Result<(), Wrong> {
    let (perm, user) = (&stat.shm_perm, user());
    match [perm.cuid, perm.uid].into_iter().find(|owner| *owner != user) {
        Some(owner) => Err(Wrong::Owner(owner)),
        None if perm.mode & 0o077 != 0 => Err(Wrong::Mode((perm.mode & 0o777).into())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::Ordering::SeqCst;
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
        let made = ours.made();
        assert_eq!((is_attached(ours.id, 0), is_attached(ours.id, made)), (Some(true), Some(true)));
        assert_eq!(is_attached(ours.id, made + 1), Some(false), "the id is another's by now");
        let mut found = Vec::new();
        Page::each_attached(|id| found.push(id)).unwrap();
        assert!(found.contains(&ours.id));
        assert_eq!(Page::attach(ours.id).unwrap().words[5].load(SeqCst), 7);
        assert_eq!(Segment::<65>::attach(ours.id).err(), Some(Wrong::OtherSize));
        let theirs = id_of_child(|| Page::create().map_or(-1, |segment| segment.id));
        assert_eq!(
            (theirs >= 0, is_attached(theirs, 0)),
            (true, Some(false)),
            "it went with its process"
        );
        assert!(Page::attach(theirs).is_err());
    }

    /// Also if it is forked while the segment is attached, and if it lives on.
    #[test]
    fn a_child_does_not_keep_it() {
        let maker = id_of_child(|| {
            let segment = Page::create().unwrap();
            segment.words[0].store(7, SeqCst);
            // SAFETY: the child only touches memory and waits; it ends with the pipe of the test.
            match unsafe { libc::fork() } {
                0 => {
                    segment.words[0].fetch_add(1, SeqCst);
                    let ended = segment.words[0].load(SeqCst) == 1;
                    let range = forked_child::reserve(4096).unwrap();
                    // SAFETY: as above.
                    let of_child = range.put(|_| unsafe { libc::fork() });
                    if of_child == 0 {
                        // SAFETY: what was put there for the child is writable.
                        unsafe { range.memory.cast::<u64>().write_volatile(1) };
                    }
                    // SAFETY: waits until the test's process has looked, and takes no pointer.
                    unsafe {
                        libc::sleep(if ended { 3 } else { 0 });
                        libc::_exit(0)
                    }
                }
                _ => segment.id,
            }
        });
        assert_eq!(is_attached(maker, 0), Some(false));
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
        assert_eq!([given, wide].map(|id| is_attached(id, 0)), [Some(false); 2]);
        for id in [given, wide] {
            // SAFETY: a segment of this test, which is attached nowhere.
            unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}
