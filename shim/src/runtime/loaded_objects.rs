//! The loaded programs and libraries, where the C library has no `_dl_find_object`: glibc 2.28 to 2.34, as in
//! RHEL 8 and 9, Debian 11 and Ubuntu 20.04. From glibc 2.35 on the counters alone are used, see [`generation`].
//!
//! A native stack needs the object of each address, and its table of frames. The other way to it is
//! `dl_iterate_phdr`, which waits for a lock of the loader. A hook must not wait for it: another thread
//! may call the driver from a library's constructor while it holds that lock, and in a forked child the
//! holder may no longer exist.
//!
//! A table of all of them is read without any lock. Each look-up compares it with two counters of the
//! loader: objects ever loaded, and objects loaded now. If one differs, the table is rebuilt under the
//! lock that the loader holds while it changes its list. That lock is only tried, never waited for: in
//! a forked child a thread that no longer exists may hold it.
//!
//! The counters and the lock are variables of the loader that have no names (`_rtld_global` is one
//! structure). They are found by their contents, and checked against the counts of `dl_iterate_phdr`
//! each time that the table is built. Where they are not found, native stacks are off.
//!
//! The first search for them waits for the lock; it is done at load (`interpose::start`).
//!
//! Known limitations: a child that was forked while another thread held the lock has no native stacks,
//! unless the table was up to date. The loader unmaps a library shortly before it removes it
//! from its list: a walk in between that finds generated code of another thread at those addresses takes
//! it for the library's code.

use crate::runtime::elf;
use crate::runtime::fallible::TryPush;
use crate::runtime::zero_pages::{ZeroPages, Zeroed};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, fence,
};

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
}

/// The same as atomics, for readers that run while it is written.
struct Slot([AtomicUsize; 4]);

impl Slot {
    fn get(&self) -> Entry {
        let [start, end, link_map, eh_frame_hdr] =
            [0, 1, 2, 3].map(|field: usize| self.0[field].load(Relaxed));
        Entry { start, end, link_map, eh_frame_hdr }
    }

    fn put(&self, entry: &Entry) {
        let Entry { start, end, link_map, eh_frame_hdr } = *entry;
        for (field, value) in self.0.iter().zip([start, end, link_map, eh_frame_hdr]) {
            field.store(value, Relaxed);
        }
    }
}

/// Most objects of a process. With more of them, native stacks are off.
const MOST: usize = 1 << 13;

struct Slots([Slot; MOST]);

// SAFETY: zero bytes are numbers.
unsafe impl Zeroed for Slots {}

/// The variables of the loader that are read. It may be writing them, each in one piece.
#[derive(Clone, Copy)]
struct Variables {
    lock: *mut libc::pthread_mutex_t,
    namespaces: &'static AtomicU64,
    /// In its lower half.
    loaded: &'static AtomicU64,
    ever: &'static AtomicU64,
    iterate: Iterate,
}

type Iterate = unsafe extern "C" fn(Callback, *mut c_void) -> c_int;
type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Calls `report` with each object, in load order, until it returns false.
fn each_object<F: FnMut(&libc::dl_phdr_info) -> bool>(iterate: Iterate, mut report: F) {
    unsafe extern "C" fn call<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        report: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's record, and the function below.
        let (info, report) = unsafe { (&*info, &mut *report.cast::<F>()) };
        c_int::from(!report(info))
    }
    // SAFETY: `call` has the callback's type, and expects this data.
    unsafe { iterate(call::<F>, (&raw mut report).cast()) };
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
        // SAFETY: the function of that name.
        let iterate = unsafe { core::mem::transmute::<usize, Iterate>(iterate) };
        let (mut ever, mut unloaded) = (0, 0);
        each_object(iterate, |info| {
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
            let lock = words[n + 1 + MUTEX].as_ptr().cast();
            let (namespaces, loaded, ever) = (&words[n], &words[1], &words[counter]);
            Some(Variables { lock, namespaces, loaded, ever, iterate })
        })
    }
}

/// All loaded objects, in order of address.
pub struct LoadedObjects {
    /// [`UNKNOWN`], [`USABLE`] or [`UNUSABLE`].
    state: AtomicU32,
    variables: UnsafeCell<Option<Variables>>,
    /// The process whose thread is rebuilding the table; 0: none.
    writer: AtomicI32,
    /// Odd while the table is written.
    sequence: AtomicU64,
    generation: AtomicU64,
    count: AtomicUsize,
    slots: ZeroPages<Slots>,
}

const UNKNOWN: u32 = 0;
const USABLE: u32 = 1;
const UNUSABLE: u32 = 2;

// SAFETY: `variables` is written before `state` says so; they are addresses of the loader's variables, which stay.
unsafe impl Sync for LoadedObjects {}

/// The objects of this process.
static ALL: LoadedObjects = LoadedObjects::new();

/// The object that contains this address.
pub fn holding(address: usize) -> Option<Entry> {
    ALL.holding(address)
}

/// Whether the loader's variables were found.
pub fn can_ask() -> bool {
    ALL.usable().is_some()
}

/// A number that changes whenever an object is loaded or unloaded. `None`: the loader's variables were not found
/// at the start, or there are several namespaces (`dlmopen`), of which the others have counters of their own.
#[inline]
pub fn generation() -> Option<u64> {
    ALL.if_counted(Variables::generation)
}

/// How many objects were unloaded; while one is being loaded it may be one less. `None` as [`generation`].
#[inline]
pub fn unloaded() -> Option<u64> {
    ALL.if_counted(Variables::unloaded)
}

/// Failed attempts before a look-up gives up. The loader changes its list within a microsecond.
const SPINS: u32 = 300;
const YIELDS: u32 = 30;

impl LoadedObjects {
    const fn new() -> LoadedObjects {
        LoadedObjects {
            state: AtomicU32::new(UNKNOWN),
            variables: UnsafeCell::new(None),
            writer: AtomicI32::new(0),
            sequence: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            slots: ZeroPages::NONE,
        }
    }

    /// As far as they were looked for.
    #[inline]
    fn variables(&self) -> Option<&Variables> {
        if self.state.load(Acquire) != USABLE {
            return None;
        }
        // SAFETY: written before `state` was set, and not changed after that.
        unsafe { (*self.variables.get()).as_ref() }
    }

    fn usable(&self) -> Option<&Variables> {
        if self.state.load(Acquire) == UNKNOWN {
            self.begin();
        }
        self.variables()
    }

    #[inline]
    fn if_counted(&self, count: impl Fn(&Variables) -> u64) -> Option<u64> {
        let variables = self.variables()?;
        (variables.namespaces.load(Relaxed) == 1).then(|| count(variables))
    }

    #[cold]
    fn begin(&self) {
        let Some(_writer) = self.write() else { return };
        if self.state.load(Acquire) != UNKNOWN {
            return;
        }
        let found = Variables::find();
        // SAFETY: nobody reads it before `state` is set.
        unsafe { *self.variables.get() = found };
        self.state.store(if found.is_some() { USABLE } else { UNUSABLE }, Release);
    }

    fn holding(&self, address: usize) -> Option<Entry> {
        let variables = self.usable()?;
        for attempt in 0..SPINS + YIELDS {
            if let Some(found) = self.look(address, variables.generation()) {
                return found;
            }
            if self.refresh(variables) {
                continue;
            }
            match attempt < SPINS {
                true => core::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        None
    }

    /// `None`: the table is not of this generation, or is being written.
    #[inline]
    fn look(&self, address: usize, generation: u64) -> Option<Option<Entry>> {
        let before = self.sequence.load(Acquire);
        if before & 1 != 0 || self.generation.load(Relaxed) != generation {
            return None;
        }
        let slots = self.slots.get()?.0.get(..self.count.load(Relaxed))?;
        let behind = slots.partition_point(|slot| slot.0[0].load(Relaxed) <= address);
        let found = slots[..behind].last().map(Slot::get);
        fence(Acquire);
        if self.sequence.load(Relaxed) != before {
            return None;
        }
        Some(found.filter(|entry| address < entry.end))
    }

    /// Becomes the only writer. In a forked child it replaces a writer that exists only in the parent.
    fn write(&self) -> Option<Writer<'_>> {
        let me = std::process::id() as i32;
        let taken = match self.writer.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => true,
            Err(other) if other == me => false,
            Err(ended) => self.writer.compare_exchange(ended, me, Acquire, Relaxed).is_ok(),
        };
        // `then`, not `then_some`: dropping an unused guard would clear the flag of the current writer.
        #[allow(clippy::unnecessary_lazy_evaluations)]
        taken.then(|| Writer(self))
    }

    /// Rebuilds the table. Returns whether that succeeded.
    #[cold]
    fn refresh(&self, variables: &Variables) -> bool {
        let Some(_writer) = self.write() else { return false };
        let Some(slots) = self.slots.get_or_make() else { return false };
        // SAFETY: the loader's lock, which is an ordinary mutex. Never waited for.
        if unsafe { libc::pthread_mutex_trylock(variables.lock) } != 0 {
            return false;
        }
        let (mut entries, mut has_memory) = (Vec::new(), true);
        // The loader's record of the next object, and the generation by the counts that it reports.
        let (mut next, mut is_listed, mut reported) = (elf::first_object(), true, 0);
        // The lock is recursive.
        each_object(variables.iterate, |info| {
            reported = (info.dlpi_adds << 32) | info.dlpi_adds.wrapping_sub(info.dlpi_subs);
            // SAFETY: the list's next link, under the loader's lock.
            let link = unsafe { elf::link(next) };
            let Some((_, after)) = link.filter(|(base, _)| *base == info.dlpi_addr as usize) else {
                is_listed = false;
                return false;
            };
            let entry = Entry::of(info, core::mem::replace(&mut next, after));
            has_memory = entry.is_none_or(|entry| entries.try_push(entry).is_ok());
            has_memory
        });
        let generation = variables.generation();
        // SAFETY: locked above.
        unsafe { libc::pthread_mutex_unlock(variables.lock) };
        if !has_memory {
            return false;
        }
        if !is_listed || reported != generation || entries.len() > MOST {
            // The loader's variables were not identified correctly, or there are too many objects.
            self.state.store(UNUSABLE, Release);
            return false;
        }
        entries.sort_unstable_by_key(|entry| entry.start);
        // Odd already if the process was forked while a thread was writing.
        let odd = self.sequence.load(Relaxed) | 1;
        self.sequence.store(odd, Relaxed);
        fence(Release);
        slots.0.iter().zip(&entries).for_each(|(slot, entry)| slot.put(entry));
        self.count.store(entries.len(), Relaxed);
        self.generation.store(generation, Relaxed);
        self.sequence.store(odd + 1, Release);
        true
    }
}

struct Writer<'a>(&'a LoadedObjects);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.writer.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::loader;
    use crate::runtime::mapped_modules;

    /// Found while no library comes or goes: another test may open one just then.
    fn usable() -> LoadedObjects {
        for _ in 0..100 {
            let all = LoadedObjects::new();
            if all.usable().is_some() {
                return all;
            }
            std::thread::yield_now();
        }
        panic!("the loader's variables were not found");
    }

    #[test]
    fn says_the_same_as_the_c_library() {
        if loader::find_object().is_none() {
            return;
        }
        let all = usable();
        let here = 0u8;
        for address in [
            says_the_same_as_the_c_library as *const () as usize,
            libc::getppid as *const () as usize,
            all.variables().unwrap().ever.as_ptr() as usize,
            &raw const here as usize,
            Box::into_raw(Box::new(5)) as usize,
            16,
        ] {
            let theirs = mapped_modules::holding(address);
            let ours = all.holding(address);
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
        let all = usable();
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
            let entry = all.holding(code).expect("it is loaded");
            assert_eq!(entry.link_map, handle as usize);
            found += 1;
            // SAFETY: opened above.
            unsafe { libc::dlclose(handle) };
            missing += usize::from(all.holding(code).is_none());
        }
        assert!(found > 0 && missing > 0, "{found} found, {missing} missing");
    }

    #[test]
    fn readers_while_libraries_come_and_go() {
        let all = usable();
        let code = libc::getppid as *const () as usize;
        let stop = core::sync::atomic::AtomicBool::new(false);
        let found = [const { core::sync::atomic::AtomicU64::new(0) }; 3];
        std::thread::scope(|scope| {
            let (all, stop) = (&all, &stop);
            let readers = found.each_ref().map(|found| {
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        if let Some(entry) = all.holding(code) {
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
    fn a_writer_that_stayed_behind_in_another_process() {
        let all = usable();
        let code = libc::getppid as *const () as usize;
        let before = all.holding(code);
        assert!(before.is_some());
        // As a fork leaves them while another thread writes.
        all.writer.store(1, Relaxed);
        all.sequence.fetch_add(1, Relaxed);
        assert_eq!(all.holding(code), before);
        // Of this process: it is waited for, but not for ever.
        // SAFETY: plain call.
        all.writer.store(std::process::id() as i32, Relaxed);
        all.generation.store(0, Relaxed);
        assert_eq!(all.holding(code), None);
        all.writer.store(0, Relaxed);
        // Another test may hold the loader's lock for a moment, which is only tried.
        let pause = std::time::Duration::from_millis(1);
        let held = || {
            all.holding(code).or_else(|| {
                std::thread::sleep(pause);
                None
            })
        };
        assert_eq!((0..5000).find_map(|_| held()), before);
    }
}
