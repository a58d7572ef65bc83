//! Mapped files. Access behind the end of a file that was made shorter, and to a page that cannot be read, raises
//! SIGBUS: a handler puts zeros there, so that the command goes on and can say what is missing.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions, UncheckedAdvice};
use vramtrace_model::trace::Bytes;

/// A file, mapped to be read.
#[derive(Debug)]
pub struct Map {
    // Dropped first: the addresses may be of something else as soon as the map is gone.
    guarded: Guarded,
    map: Mmap,
    /// Other than the file: its pages cannot be read from there again.
    changed: bool,
}

/// Addresses whose faults are handled, until this is dropped.
#[derive(Debug)]
struct Guarded(&'static Range);

/// Never freed: the handler reads them at any time.
#[derive(Debug, Default)]
struct Range {
    start: AtomicUsize,
    /// 0: of no map.
    bytes: AtomicUsize,
    /// The lowest offset at which the file had no page, plus 1. 0: it had all that were read.
    cut: AtomicUsize,
    next: AtomicPtr<Range>,
}

/// The first of all.
static RANGES: AtomicPtr<Range> = AtomicPtr::new(null_mut());
/// Those of maps that are gone.
static FREE: Mutex<Vec<&'static Range>> = Mutex::new(Vec::new());
/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// How many bytes a fault replaces by zeros.
const AT_ONCE: usize = 1 << 20;

impl Map {
    /// Maps a file that is not empty.
    pub fn of(file: &File) -> io::Result<Map> {
        // SAFETY: a file that becomes shorter reads as zeros (see above). Bytes that others change meanwhile are seen
        // old or new: whoever reads a map expects any bytes.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Map { guarded: Guarded::new(map.as_ptr(), map.len()), map, changed: false })
    }

    /// Maps a file with zeros behind it, `bytes` in all. `change` may store into the map: the file stays as it is.
    pub fn with_changes(
        file: &File,
        bytes: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> io::Result<Map> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(bytes);
        let mut map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        let guarded = Guarded::new(map.as_ptr(), map.len());
        put_file(&mut map, file, length)?;
        change(&mut map);
        Ok(Map { guarded, map: map.make_read_only()?, changed: true })
    }

    /// Says that it is read from the start to the end.
    pub fn read_in_order(&self) {
        // A hint to the kernel: a failure changes nothing.
        let _ = self.map.advise(Advice::Sequential);
    }
}

impl Bytes for Map {
    fn cut_at(&self) -> Option<u64> {
        self.guarded.0.cut.load(SeqCst).checked_sub(1).map(|at| at as u64)
    }

    fn release(&self) {
        if !self.changed {
            // SAFETY: a shared map of a file, only read. Its pages come back from the file.
            let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Replaces the begin of a map of zeros by a private map of the file.
fn put_file(map: &mut MmapMut, file: &File, length: usize) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: replaces pages of a map that nothing refers to yet, and no others: `length` is at most its length.
    let at =
        unsafe { libc::mmap(map.as_mut_ptr().cast(), length, access, flags, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Guarded {
    fn new(start: *const u8, bytes: usize) -> Guarded {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let range = free.unwrap_or_else(|| {
            let new: &'static Range = Box::leak(Box::default());
            let add = |first| {
                new.next.store(first, SeqCst);
                Some(std::ptr::from_ref(new).cast_mut())
            };
            let _ = RANGES.fetch_update(SeqCst, SeqCst, add);
            new
        });
        range.start.store(start as usize, SeqCst);
        range.cut.store(0, SeqCst);
        range.bytes.store(bytes, SeqCst);
        Guarded(range)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.bytes.store(0, SeqCst);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

fn install() {
    // SAFETY: plain structs; the handler makes only calls that are safe in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, null(), &mut before);
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &action, null_mut());
    }
}

extern "C" fn on_bus_error(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the facts of the fault, and where errno is.
    let (at, errno) = unsafe { ((*info).si_addr() as usize, *libc::__errno_location()) };
    let mut handled = false;
    let mut next = RANGES.load(SeqCst);
    // SAFETY: ranges are never freed.
    while let Some(range) = unsafe { next.as_ref() } {
        next = range.next.load(SeqCst);
        let (start, bytes) = (range.start.load(SeqCst), range.bytes.load(SeqCst));
        if at >= start && at - start < bytes {
            handled = zeros(range, at - start, bytes);
            break;
        }
    }
    if !handled {
        let default = || {
            // SAFETY: plain numbers; zero is the default action.
            unsafe { std::mem::zeroed() }
        };
        let before = BEFORE.get().copied().unwrap_or_else(default);
        // The access is made again, and what handled it before handles it.
        // SAFETY: an action that was in effect.
        unsafe { libc::sigaction(libc::SIGBUS, &before, null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts zeros at an offset of a range. False: it failed.
fn zeros(range: &Range, offset: usize, bytes: usize) -> bool {
    // SAFETY: has no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let from = offset / page * page;
    let length = AT_ONCE.min(bytes - from);
    let lower = |cut: usize| (cut == 0 || cut > from + 1).then_some(from + 1);
    let _ = range.cut.fetch_update(SeqCst, SeqCst, lower);
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    let start = range.start.load(SeqCst) + from;
    // SAFETY: replaces pages of a map that exists as long as its range has bytes: the thread that faulted uses it.
    unsafe {
        libc::mmap(start as *mut libc::c_void, length, access, flags, -1, 0) != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MIB: usize = 1 << 20;

    fn file(bytes: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; bytes], 0).unwrap();
        file
    }

    #[test]
    fn a_file_that_becomes_shorter_reads_as_zeros() {
        let file = file(4 * MIB);
        let map = Map::of(&file).unwrap();
        assert!(map[4 * MIB - 1] == 7 && map.cut_at().is_none());
        file.set_len(2 * MIB as u64 + 4096).unwrap();
        assert_eq!((map[2 * MIB], map[3 * MIB], map[4 * MIB - 1]), (7, 0, 0));
        assert_eq!(map.cut_at(), Some(3 * MIB as u64));
        assert_eq!((map[2 * MIB + 4096], map[2 * MIB]), (0, 7));
        assert_eq!(map.cut_at(), Some(2 * MIB as u64 + 4096));
        drop(map);
        // The range is used again, and nothing of it stays.
        assert_eq!(Map::of(&self::file(1)).unwrap().cut_at(), None);
    }

    #[test]
    fn changes_are_the_maps_alone_also_behind_the_end_and_in_a_file_that_became_shorter() {
        let file = file(MIB);
        let map = Map::with_changes(&file, 8 << 30, |bytes| {
            file.set_len(4096).unwrap();
            bytes[MIB - 1] = 1;
            bytes[7 << 30] = 2;
            bytes[0] = 3;
        })
        .unwrap();
        assert_eq!((map[0], map[1], map[MIB - 1], map[7 << 30], map[MIB]), (3, 7, 1, 2, 0));
        assert_eq!(file.metadata().unwrap().len(), 4096);
        let mut first = [0];
        file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [7]);
    }
}
