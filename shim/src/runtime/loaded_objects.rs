//! The loaded programs and libraries, where the C library has no `_dl_find_object`: glibc 2.28 to 2.34, as in
//! RHEL 8 and 9, Debian 11 and Ubuntu 20.04. From glibc 2.35 on the counters alone are used, see [`generation`].
//!
//! A native stack needs the object of each address, and its table of frames. The other way to it is
//! `dl_iterate_phdr`, which waits for a lock of the loader. A hook must not wait for it: another thread
//! may call the driver from a library's constructor while it holds that lock, and in a forked child the
//! holder may no longer exist. So a look-up goes through the loader's list by that function only once it
//! holds the lock, which is tried, never waited for. There are few: a thread keeps what it found
//! while the counters of the loader stay as they are (objects ever loaded, and objects loaded now).
//!
//! The counters and the lock are variables of the loader that have no names (`_rtld_global` is one
//! structure). They are found by their contents, and checked against the counts of `dl_iterate_phdr`
//! at each look-up. Where they are not found, native stacks are off.
//!
//! The first search for them waits for the lock; it is done at load (`interpose::start`).
//!
//! Known limitations: a child that was forked while another thread held the lock has no native stacks. The loader
//! unmaps a library shortly before it removes it from its list: a walk in between that finds generated code of another
//! thread at those addresses takes it for the library's code.

use crate::runtime::elf;
use crate::runtime::leaked::Leaked;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A loaded program or library: its addresses, and the loader's record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub start: usize,
    pub end: usize,
    pub link_map: usize,
    /// 0: it has none.
    pub eh_frame_hdr: usize,
}

impl Entry {
    /// `None`: nothing of the object is loaded.
    fn of(info: &libc::dl_phdr_info, link_map: usize) -> Option<Entry> {
        let headers = match info.dlpi_phdr.is_null() {
            true => &[][..],
            // SAFETY: the object's program headers, which are mapped as long as it is listed.
            false => unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) },
        };
        let mut entry = Entry { start: usize::MAX, end: 0, link_map, eh_frame_hdr: 0 };
        for header in headers {
            let at = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    entry.start = entry.start.min(at & !4095);
                    entry.end = entry.end.max(at.wrapping_add(header.p_memsz as usize));
                }
                libc::PT_GNU_EH_FRAME => entry.eh_frame_hdr = at,
                _ => {}
            }
        }
        (entry.start < entry.end).then_some(entry)
    }

    fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The variables of the loader that are read. It may be writing them, each in one piece.
#[derive(Clone, Copy)]
struct Variables {
    /// A `pthread_mutex_t`, of which this is the first word.
    lock: &'static AtomicU64,
    namespaces: &'static AtomicU64,
    /// In its lower half.
    loaded: &'static AtomicU64,
    ever: &'static AtomicU64,
    iterate: Iterate,
}

type Iterate = extern "C" fn(Callback, &mut Report<'_>) -> c_int;
type Callback = extern "C" fn(&libc::dl_phdr_info, usize, &mut Report<'_>) -> c_int;
type Report<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> bool;

/// Calls `report` with each object, in load order, until it returns false.
fn each_object(iterate: Iterate, mut report: Report<'_>) {
    extern "C" fn call(info: &libc::dl_phdr_info, _: usize, report: &mut Report<'_>) -> c_int {
        c_int::from(!report(info))
    }
    iterate(call, &mut report);
}

impl Variables {
    fn loaded(&self) -> u64 {
        u64::from(self.loaded.load(Relaxed) as u32)
    }

    /// Changes whenever an object is loaded or unloaded; never 0.
    fn generation(&self) -> u64 {
        (self.ever.load(Relaxed) << 32) | self.loaded()
    }

    fn unloaded(&self) -> u64 {
        self.ever.load(Relaxed).wrapping_sub(self.loaded())
    }

    /// `None`: the loader's variables are not where they are expected.
    fn find() -> Option<Variables> {
        const RECURSIVE: u32 = libc::PTHREAD_MUTEX_RECURSIVE as u32;
        const MUTEX: usize = size_of::<libc::pthread_mutex_t>() / 8;
        let (global, bytes) = elf::startup_variable(b"_rtld_global")?;
        let iterate = elf::c_library_function(b"dl_iterate_phdr")?;
        // SAFETY: the function of that name, which passes the loader's record and the reference on.
        let iterate = unsafe { core::mem::transmute::<usize, Iterate>(iterate) };
        let (mut ever, mut unloaded) = (0, 0);
        each_object(iterate, &mut |info| {
            (ever, unloaded) = (info.dlpi_adds, info.dlpi_subs);
            false
        });
        // SAFETY: the loader's variable, of that size, which holds pointers and so is aligned to words. Atomics,
        // since the loader may be writing it.
        let words = unsafe { core::slice::from_raw_parts(global as *const AtomicU64, bytes / 8) };
        let word = |n: usize| words.get(n).map_or(0, |word| word.load(Relaxed));
        // It begins with the first namespace: the first object, and the number of objects.
        if ever == 0 || words.len() < 2 || word(0) as usize != elf::first_object() {
            return None;
        }
        if u64::from(word(1) as u32) != ever.wrapping_sub(unloaded) {
            return None;
        }
        // A count of namespaces, two locks or three, the counter. A lock's kind is its fifth number.
        let is_lock = |n: usize| word(n + 2) as u32 == RECURSIVE;
        (2..words.len().saturating_sub(3 * MUTEX + 2)).find_map(|n| {
            let found = (1..=16).contains(&word(n)) && is_lock(n + 1) && is_lock(n + 1 + MUTEX);
            let counter = [2, 3].map(|locks| n + 1 + locks * MUTEX);
            let counter = counter.into_iter().find(|at| found && word(*at) == ever)?;
            let [namespaces, lock] = [n, n + 1 + MUTEX].map(|at| &words[at]);
            let (loaded, ever) = (&words[1], &words[counter]);
            Some(Variables { lock, namespaces, loaded, ever, iterate })
        })
    }

    /// Runs `work` while the loader does not change its list. `None`: the lock was not free.
    fn locked<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let lock: *mut libc::pthread_mutex_t = self.lock.as_ptr().cast();
        for attempt in 0..SPINS + YIELDS {
            // SAFETY: the loader's lock, which is an ordinary mutex.
            if unsafe { libc::pthread_mutex_trylock(lock) } == 0 {
                let result = work();
                // SAFETY: locked above.
                unsafe { libc::pthread_mutex_unlock(lock) };
                return Some(result);
            }
            if attempt < SPINS { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
        None
    }

    /// The object that contains this address. `Err`: the variables are others than they were taken for.
    fn holding(&self, address: usize) -> Result<Option<Entry>, Mistaken> {
        // The loader's record of the next object, and the generation by the counts that it reports.
        let (mut next, mut is_listed, mut reported) = (elf::first_object(), true, 0);
        let mut found = None;
        // The lock is recursive.
        let look = || {
            each_object(self.iterate, &mut |info| {
                reported = (info.dlpi_adds << 32) | info.dlpi_adds.wrapping_sub(info.dlpi_subs);
                // SAFETY: the list's next link, under the loader's lock.
                let link = unsafe { elf::link(next) };
                let after = link.filter(|(base, _)| *base == info.dlpi_addr as usize);
                is_listed = after.is_some();
                let entry = Entry::of(info, next).filter(|entry| entry.holds(address));
                (next, found) = (after.map_or(0, |(_, after)| after), entry);
                is_listed && found.is_none()
            });
            is_listed && reported == self.generation()
        };
        match self.locked(look) {
            None => Ok(None),
            Some(true) => Ok(found),
            Some(false) => Err(Mistaken),
        }
    }
}

struct Mistaken;

/// Failed attempts to take the lock before a look-up gives up. The loader changes its list within a microsecond.
const SPINS: u32 = 300;
const YIELDS: u32 = 30;

/// Those of this process, once they were looked for.
static VARIABLES: Leaked<Option<Variables>> = Leaked::NONE;

fn variables() -> Option<&'static Variables> {
    VARIABLES.get().unwrap_or_else(|| VARIABLES.put(Variables::find())).as_ref()
}

/// The object that contains this address.
pub fn holding(address: usize) -> Option<Entry> {
    match variables()?.holding(address) {
        Ok(found) => found,
        Err(Mistaken) => {
            VARIABLES.put(None);
            None
        }
    }
}

/// Whether the loader's variables were found. The first call may wait for a lock of the loader.
pub fn can_ask() -> bool {
    variables().is_some()
}

/// A number that changes whenever an object is loaded or unloaded. `None`: the loader's variables were not found
/// at the start, or there are several namespaces (`dlmopen`), of which the others have counters of their own.
#[inline]
pub fn generation() -> Option<u64> {
    if_counted(Variables::generation)
}

/// How many objects were unloaded; while one is being loaded it may be one less. `None` as [`generation`].
#[inline]
pub fn unloaded() -> Option<u64> {
    if_counted(Variables::unloaded)
}

#[inline]
fn if_counted(count: impl Fn(&Variables) -> u64) -> Option<u64> {
    let variables = VARIABLES.get()?.as_ref()?;
    (variables.namespaces.load(Relaxed) == 1).then(|| count(variables))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::loader;
    use crate::runtime::mapped_modules;

    /// Found while no library comes or goes: another test may open one just then.
    fn found() -> Variables {
        for _ in 0..100 {
            if let Some(found) = Variables::find() {
                return found;
            }
            std::thread::yield_now();
        }
        panic!("the loader's variables were not found");
    }

    fn holding(all: &Variables, address: usize) -> Option<Entry> {
        all.holding(address).unwrap_or_else(|Mistaken| panic!("they were not the loader's"))
    }

    #[test]
    fn says_the_same_as_the_c_library() {
        if loader::find_object().is_none() {
            return;
        }
        let all = found();
        let here = 0u8;
        for address in [
            says_the_same_as_the_c_library as *const () as usize,
            libc::getppid as *const () as usize,
            all.ever.as_ptr() as usize,
            &raw const here as usize,
            Box::into_raw(Box::new(5)) as usize,
            16,
        ] {
            let theirs = mapped_modules::holding(address);
            let ours = holding(&all, address);
            // Of an object with gaps between its segments newer C libraries give the one of code.
            let within = |theirs: Entry, ours: Entry| {
                let is_inside = ours.start <= theirs.start && theirs.end <= ours.end;
                if is_inside {
                    Entry { start: ours.start, end: ours.end, ..theirs }
                } else {
                    theirs
                }
            };
            let (ours, theirs) = (ours.map(same), theirs.map(same));
            let theirs = theirs.map(|theirs| ours.map_or(theirs, |ours| within(theirs, ours)));
            assert_eq!(ours, theirs, "{address:x}");
        }
        // The end of the last page, or of the last byte: both are right.
        fn same(entry: Entry) -> Entry {
            Entry { end: entry.end.next_multiple_of(4096), ..entry }
        }
    }

    #[test]
    fn a_library_that_comes_and_goes() {
        let all = found();
        let (mut found, mut missing) = (0, 0);
        for name in [c"libBrokenLocale.so.1", c"libnsl.so.1", c"libutil.so.1", c"libanl.so.1"] {
            // SAFETY: libraries of the system without initialisers of note.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            if handle.is_null() {
                continue;
            }
            // SAFETY: it was just opened.
            let object = unsafe { elf::Object::of_handle(handle) };
            let code = object.base();
            let entry = holding(&all, code).expect("it is loaded");
            assert_eq!(entry.link_map, handle as usize);
            found += 1;
            // SAFETY: opened above.
            unsafe { libc::dlclose(handle) };
            missing += usize::from(holding(&all, code).is_none());
        }
        assert!(found > 0 && missing > 0, "{found} found, {missing} missing");
    }

    #[test]
    fn readers_while_libraries_come_and_go() {
        let all = found();
        let code = libc::getppid as *const () as usize;
        let stop = core::sync::atomic::AtomicBool::new(false);
        let found = [const { core::sync::atomic::AtomicU64::new(0) }; 3];
        std::thread::scope(|scope| {
            let (all, stop) = (&all, &stop);
            let readers = found.each_ref().map(|found| {
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        if let Some(entry) = holding(all, code) {
                            assert!(entry.start <= code && code < entry.end);
                            found.fetch_add(1, Relaxed);
                        }
                    }
                })
            });
            // On a busy machine a reader begins late. One that failed has ended.
            let is_waiting = || {
                found.iter().any(|found| found.load(Relaxed) == 0)
                    && !readers.iter().any(|reader| reader.is_finished())
            };
            let mut turn = 0;
            while turn < 300 || is_waiting() {
                turn += 1;
                // SAFETY: C strings; the handle is closed once.
                unsafe {
                    let handle = libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW);
                    if !handle.is_null() {
                        libc::dlclose(handle);
                    }
                }
            }
            stop.store(true, Relaxed);
        });
    }

    #[test]
    fn a_lock_that_another_thread_keeps_is_not_waited_for() {
        let all = found();
        let code = libc::getppid as *const () as usize;
        let other =
            || std::thread::scope(|scope| scope.spawn(|| holding(&all, code)).join().unwrap());
        let held = || all.locked(other);
        assert_eq!(std::iter::repeat_with(held).flatten().next(), Some(None));
        assert!(std::iter::repeat_with(other).flatten().next().is_some(), "later it is free");
    }
}
