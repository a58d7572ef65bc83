//! The bounds of this thread's stack.

use crate::runtime::tls::{thread_cells, thread_pointer};
use crate::runtime::{elf, loader, readable, system};
use once_cell::race::OnceNonZeroUsize;
use std::cell::Cell;
use std::ffi::c_void;
use std::num::NonZeroUsize;

/// Kept for each thread. A thread has one stack for life, in a forked child too.
#[derive(Clone, Copy)]
#[repr(C)]
struct Known {
    low: usize,
    /// 0: not looked up yet.
    high: usize,
    /// The stack is known to be usable from this address up. 0: not known.
    sure: usize,
}

thread_cells!(fn known() -> &Cell<Known>, 24 bytes of the block at 272);

/// Whether at least `room` bytes of this thread's own stack are certainly left below `sp`.
#[inline]
pub fn has_room(sp: usize, room: usize) -> bool {
    let Known { high, sure, .. } = known().get();
    let enough = sure != 0 && sp < high && sp.saturating_sub(sure) > room;
    enough || find_room(sp, room)
}

/// Whether less than `room` bytes are left of the thread's original stack. False for other stacks,
/// whose bounds are not known.
pub fn is_short(sp: usize, room: usize) -> bool {
    has_room(sp, room);
    let Known { low, high, .. } = known().get();
    (low..high).contains(&sp) && sp - low < room
}

#[cold]
fn find_room(sp: usize, room: usize) -> bool {
    let Known { low, high, .. } = known().get();
    if high == 0 {
        look(sp, true);
        return known().get().high != 0 && has_room(sp, room);
    }
    if !(low..high).contains(&sp) || sp - low <= room {
        return false;
    }
    // The main thread's: another's is certain down to its end. It grows on access, within limits. Only mapped pages are
    // certain. It is grown by more than is needed, so that deeper calls need not check again.
    let lowest = sp - room - PAGE;
    let reached = match is_mapped(lowest) {
        true => Some(lowest),
        false => [lowest.saturating_sub(AHEAD), lowest].into_iter().find(|at| {
            // Another mapping may lie where the stack could have grown to.
            *at > low && !is_mapped(*at) && can_grow_to(*at)
        }),
    };
    if let Some(sure) = reached {
        known().set(Known { low, high, sure });
    }
    reached.is_some()
}

/// How much further than needed a stack is grown.
const AHEAD: usize = 128 << 10;

/// Lets the kernel write to the address, which makes the stack grow. If it cannot grow, the system call
/// fails, where a store would fault. Nothing is mapped there, so nothing is overwritten.
fn can_grow_to(address: usize) -> bool {
    let at = (address & !(PAGE - 1)) as *mut libc::rlimit;
    // SAFETY: the kernel checks the address.
    unsafe { libc::getrlimit(libc::RLIMIT_CPU, at) == 0 }
}

fn is_mapped(address: usize) -> bool {
    mapped_pages::<1>(address & !(PAGE - 1), 1) == 1
}

pub(super) const PAGE: usize = 4096;

/// The upper end of the stack on which `sp` lies; all memory in between can be read.
#[inline]
pub fn high(sp: usize) -> Option<usize> {
    let Known { low, high, .. } = known().get();
    if (low..high).contains(&sp) {
        return Some(high);
    }
    look(sp, high == 0)
}

#[cold]
fn look(sp: usize, first: bool) -> Option<usize> {
    if first && let Some(own) = of_thread(sp) {
        known().set(own);
        if (own.low..own.high).contains(&sp) {
            return Some(own.high);
        }
    }
    // A stack that the program allocated: of a fiber, or for signals. The page of `sp` is certainly mapped, and those behind it
    // are looked at within a limited distance.
    let first = sp & !(PAGE - 1);
    Some(first + PAGE * mapped_pages::<32>(first, 32).max(1))
}

/// The bounds of the thread's original stack. `pthread_getattr_np` gives them, but it calls malloc, and
/// for the main thread it reads a file.
fn of_thread(sp: usize) -> Option<Known> {
    match descriptor_pair(sp) {
        Some((low, high)) => Some(Known { low, high, sure: low }),
        None => of_main_thread(sp).map(|(low, high)| Known { low, high, sure: 0 }),
    }
}

/// For other threads the C library stores address and size of the stack, followed by the size of the
/// guard, in the thread's descriptor at the stack's upper end. The offset differs between versions, so
/// the pair is recognised by its values.
fn descriptor_pair(sp: usize) -> Option<(usize, usize)> {
    const LARGEST: usize = 1 << 36;
    let words = descriptor_words()?;
    // The thread pointer points to the descriptor's start, or behind its end.
    let descriptor = match cfg!(target_arch = "aarch64") {
        true => thread_pointer() - words * size_of::<usize>(),
        false => thread_pointer(),
    };
    // SAFETY: the descriptor is this thread's and has so many words. Other threads may write some.
    let word = |n: usize| unsafe { (descriptor as *const usize).wrapping_add(n).read_volatile() };
    (0..words.saturating_sub(2)).find_map(|n| {
        let (low, size) = (word(n), word(n + 1));
        let fits = size <= LARGEST
            && low <= sp
            && sp < descriptor
            && descriptor < low.checked_add(size)?;
        fits.then(|| (low + guard(word(n + 2), sp - low), descriptor))
    })
}

/// The size of the guard at the stack's lower end, if the value is plausible.
fn guard(size: usize, room: usize) -> usize {
    if size.is_multiple_of(4096) && size < room { size } else { 0 }
}

/// The descriptor's size, which the C library exports for debuggers from glibc 2.34 on. Before, it was always
/// the one below; what is found there is checked.
fn descriptor_words() -> Option<usize> {
    const BEFORE: u32 = if cfg!(target_arch = "aarch64") { 1792 } else { 2304 };
    const NONE: NonZeroUsize = NonZeroUsize::MAX;
    static BYTES: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let bytes = BYTES.get_or_init(|| {
        let bytes = for_debuggers(b"_thread_db_sizeof_pthread", 0, BEFORE).unwrap_or(0);
        NonZeroUsize::new(bytes as usize).unwrap_or(NONE)
    });
    (bytes != NONE).then_some(bytes.get() / size_of::<usize>())
}

/// A number of a variable that the C library exports for debuggers from glibc 2.34 on. Before, it was always `before`.
pub(super) fn for_debuggers(variable: &[u8], number: usize, before: u32) -> Option<u32> {
    // glibc 2.35 has this function. It was looked for at load; a search takes more of a small stack.
    elf::startup_value(variable, number)
        .or_else(|| loader::find_object().is_none().then_some(before))
}

fn of_main_thread(sp: usize) -> Option<(usize, usize)> {
    unsafe extern "C" {
        /// The main thread's stack pointer when the program began.
        static __libc_stack_end: *const c_void;
    }
    const NEAR: usize = 64 << 20;
    // SAFETY: set by the loader, constant.
    let end = unsafe { __libc_stack_end } as usize;
    if sp >= end || end - sp >= NEAR {
        return None;
    }
    let limit = system::limit(libc::RLIMIT_STACK).unwrap_or(8 << 20) as usize;
    Some((end.saturating_sub(limit.min(NEAR)), end))
}

/// How many of `count` pages from `first` on can be read; at most `PAGES`.
pub(super) fn mapped_pages<const PAGES: usize>(first: usize, count: usize) -> usize {
    let mut byte = [0u8; PAGES];
    let remote: [libc::iovec; PAGES] = std::array::from_fn(|n| libc::iovec {
        iov_base: (first + n * PAGE) as *mut c_void,
        iov_len: 1,
    });
    // A byte of each page.
    usize::try_from(readable::copy(&mut byte, &remote[..count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_its_own() {
        let here = 0u8;
        let mine = high(&raw const here as usize).unwrap();
        let theirs = std::thread::spawn(|| {
            let here = 0u8;
            let at = &raw const here as usize;
            let high = high(at).unwrap();
            assert!(high > at && high - at < 16 << 20);
            high
        });
        assert_ne!(mine, theirs.join().unwrap());
    }

    #[test]
    fn the_descriptor_says_what_the_c_library_says() {
        // SAFETY: room for each answer; the attributes are made before they are read, and destroyed.
        let looked = std::thread::Builder::new().stack_size(300 << 10).spawn(|| unsafe {
            let mut attributes = std::mem::zeroed();
            let (mut low, mut size) = (std::ptr::null_mut(), 0);
            libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
            libc::pthread_attr_getstack(&attributes, &mut low, &mut size);
            libc::pthread_attr_destroy(&mut attributes);
            let here = &raw const size as usize;
            (descriptor_pair(here).unwrap(), (low as usize, low as usize + size))
        });
        let ((low, high), (start, end)) = looked.unwrap().join().unwrap();
        assert!((start..start + (64 << 10)).contains(&low), "{low:x} of {start:x}");
        assert!((end - (64 << 10)..end).contains(&high), "{high:x} of {end:x}");
    }

    #[test]
    fn a_stack_of_the_programs_own() {
        let page = crate::runtime::hash_table::pages(3 * 4096).unwrap() as usize;
        // SAFETY: the last of three fresh pages, to which nothing refers.
        unsafe { libc::mprotect((page + 2 * 4096) as *mut c_void, 4096, libc::PROT_NONE) };
        assert_eq!(look(page + 100, false), Some(page + 2 * 4096));
    }
}
