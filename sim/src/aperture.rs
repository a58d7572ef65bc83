//! Address space that stands for a device's memory: one large sparse mapping at a fixed place.
//!
//! It is backed by a memory file, so that the same bytes can be mapped a second time (VMM, IPC).
//! The mapping itself is made once: later views of it are made from addresses with `mremap`, and
//! so keep working in programs that close every descriptor.

use crate::abi::{MIB, PAGE};
use crate::system;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Far below the kernel's own choices (even with 32 random bits) and below where position
/// independent programs are loaded, so that addresses are the same in every run.
const FIRST: u64 = 0x2000_0000_0000;
const EACH: u64 = 0x0200_0000_0000;
/// Where cuMemAddressReserve finds room, behind 16 devices and the host's aperture.
pub(crate) const RESERVABLE: (u64, u64) = (FIRST + 17 * EACH, 13 * (1 << 40));
/// The aperture of pinned host memory.
pub(crate) const HOST: usize = 16;

/// Part of the file that another process can open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileRange {
    pub fd: i32,
    pub inode: u64,
    pub offset: u64,
}

pub(crate) struct Aperture {
    pub base: u64,
    pub size: u64,
    fd: i32,
    inode: u64,
    /// A bit per page that was written to and so may hold real memory.
    dirty: Box<[AtomicU64]>,
}

impl Aperture {
    /// `index`: device, or [`HOST`].
    pub(crate) fn new(index: usize, capacity: u64) -> Option<Aperture> {
        // Addresses are not memory: with four times as many, fragmentation never is what fails.
        let size = (capacity.saturating_mul(4)).next_power_of_two().clamp(65_536 * MIB, EACH);
        let wanted = FIRST + EACH * index as u64;
        let (fd, inode) = memory_file(c"vramtrace-sim", size).unwrap_or((-1, 0));
        let base = map_fixed(wanted, size, fd)?;
        let bits = (size / PAGE).div_ceil(64) as usize;
        let dirty = (0..bits).map(|_| AtomicU64::new(0)).collect();
        Some(Aperture { base, size, fd, inode, dirty })
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.base && address - self.base < self.size
    }

    pub(crate) fn file_range(&self, address: u64) -> Option<FileRange> {
        (self.fd >= 0 && self.contains(address)).then(|| FileRange {
            fd: self.fd,
            inode: self.inode,
            offset: address - self.base,
        })
    }

    pub(crate) fn mark_dirty(&self, address: u64, size: u64) {
        if !self.contains(address) || size == 0 {
            return;
        }
        let first = (address - self.base) / PAGE;
        let last = (address - self.base + size - 1).min(self.size - 1) / PAGE;
        for page in first..=last {
            let (word, bit) = (&self.dirty[(page / 64) as usize], 1u64 << (page % 64));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    /// Gives the real memory of whole pages back to the system.
    pub(crate) fn clean(&self, address: u64, size: u64) {
        if !self.contains(address) {
            return;
        }
        let first = (address - self.base).div_ceil(PAGE);
        let end = (address - self.base + size) / PAGE;
        let mut run: Option<u64> = None;
        for page in first..=end {
            let was = page < end && {
                let (word, bit) = (&self.dirty[(page / 64) as usize], 1u64 << (page % 64));
                word.load(Relaxed) & bit != 0 && word.fetch_and(!bit, Relaxed) & bit != 0
            };
            match (was, run) {
                (true, None) => run = Some(page),
                (false, Some(start)) => {
                    let at = (self.base + start * PAGE) as *mut libc::c_void;
                    let length = ((page - start) * PAGE) as usize;
                    // SAFETY: whole pages of the aperture, which is mapped for good; nothing in this
                    // library holds a reference into it.
                    unsafe { libc::madvise(at, length, libc::MADV_REMOVE) };
                    run = None;
                }
                _ => {}
            }
        }
    }

    /// Puts the aperture's own pages back where another file was mapped. The program may have
    /// closed our descriptor and opened a file of its own under that number: then fresh memory.
    pub(crate) fn restore(&self, address: u64, size: u64) {
        let ours = self.fd >= 0 && inode(self.fd) == Some(self.inode);
        let (fd, offset, backing) = match ours {
            true => (self.fd, (address - self.base) as i64, 0),
            false => (-1, 0, libc::MAP_ANONYMOUS),
        };
        // SAFETY: the range lies in the aperture, whose memory is the program's: no reference of ours
        // points into it.
        unsafe {
            libc::mmap(
                address as *mut _,
                size as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE | backing,
                fd,
                offset,
            )
        };
    }
}

pub(crate) fn inode(fd: i32) -> Option<u64> {
    system::stat(fd).map(|stat| stat.st_ino)
}

/// May a file be as long as this? Extending one beyond RLIMIT_FSIZE is a signal that kills.
pub(crate) fn may_be_long(size: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) == 0 && limit.rlim_cur >= size }
}

/// A sparse memory file with its inode. None where it may not be as long.
pub(crate) fn memory_file(name: &std::ffi::CStr, size: u64) -> Option<(i32, u64)> {
    if !may_be_long(size) {
        return None;
    }
    // SAFETY: the name ends with NUL.
    let low = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if low < 0 {
        return None;
    }
    // Out of the way of programs that expect the lowest descriptors.
    let fd = match system::duplicate(low, 700) {
        None => low,
        Some(high) => {
            system::close(low);
            high
        }
    };
    match inode(fd) {
        // SAFETY: touches no memory.
        Some(inode) if unsafe { libc::ftruncate(fd, size as i64) } == 0 => Some((fd, inode)),
        _ => {
            system::close(fd);
            None
        }
    }
}

fn map_fixed(wanted: u64, size: u64, fd: i32) -> Option<u64> {
    let backing = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // Without the exact place (a sanitizer, valgrind) any other will do.
    for (at, fixed) in [(wanted, libc::MAP_FIXED_NOREPLACE), (0, 0)] {
        // SAFETY: a new mapping, at a place where nothing is mapped.
        let got = unsafe {
            libc::mmap(
                at as *mut _,
                size as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE | backing | fixed,
                fd,
                0,
            )
        };
        if got == libc::MAP_FAILED {
            continue;
        }
        if at != 0 && got as u64 != at {
            // SAFETY: the mapping that was just made, elsewhere than wanted.
            unsafe { libc::munmap(got, size as usize) };
            continue;
        }
        // SAFETY: the mapping that was just made; its contents stay.
        unsafe { libc::madvise(got, size as usize, libc::MADV_DONTDUMP) };
        return Some(got as u64);
    }
    None
}

/// A second view, at `to`, of the shared bytes mapped at `from`.
pub(crate) fn map_again(from: u64, size: u64, to: u64) -> bool {
    // With an old size of 0 mremap duplicates a shared mapping instead of moving it.
    // SAFETY: `to` lies in a reservation of the program, which holds no memory of ours.
    let got = unsafe {
        libc::mremap(
            from as *mut _,
            0,
            size as usize,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            to as *mut libc::c_void,
        )
    };
    got as u64 == to
}

/// Addresses that belong to nobody else and cannot be used yet.
pub(crate) fn reserve_at(address: u64, size: u64, replace: bool) -> bool {
    let fixed = if replace { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: where nothing is mapped, or over a mapping of the program, which it gave up.
    let got = unsafe {
        libc::mmap(
            address as *mut _,
            size as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    if got != libc::MAP_FAILED && got as u64 != address {
        // SAFETY: the mapping that was just made, elsewhere than wanted.
        unsafe { libc::munmap(got, size as usize) };
    }
    got as u64 == address
}

pub(crate) fn unreserve(address: u64, size: u64) {
    // SAFETY: a reservation of the program, in which nothing is mapped any more.
    unsafe { libc::munmap(address as *mut _, size as usize) };
}
