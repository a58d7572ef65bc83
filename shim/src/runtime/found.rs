//! What was found in libraries that the program may unload: addresses, and what was read there. Another library may be
//! loaded at the same addresses later, or the same one with its data as at the start.
//!
//! * A [`Fact`] holds while its libraries stay loaded. The loader counts what it ever loaded and what is loaded now: the
//!   difference changes when something is unloaded. Then the libraries are looked up again, by addresses and by words of
//!   theirs. So no call of `dlclose` needs to be seen.
//! * A thread that runs code of a library keeps it loaded. One that reads another library [`holds`](hold) all of them: a
//!   thread in `dlclose` waits for it.
//! * A copy of a fact without these counts, for a path on which each instruction counts, is given up before libraries come or
//!   go ([`before_change`]).
//!
//! Known limitation: a call of `dlclose` that the export is not called for is not waited for (of a library that was opened with
//! RTLD_DEEPBIND, in another namespace or looked up in the C library).

use super::elf::Image;
use super::escapes::{Escape, escapes};
use super::leaked::Leaked;
use super::mapped_modules::{self, Loaded, Mark};
use super::tls::thread_pointer;
use super::{errno, futex, hash_table};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, Ordering::SeqCst, fence};
use core::time::Duration;

/// A library as it is loaded.
#[derive(Clone, Copy)]
pub struct Library {
    loaded: Loaded,
    /// Words that another library at its addresses does not have: of its build-id, without which it cannot be known again (but
    /// where it is not known that something was unloaded); and one that is not the same where it was loaded anew.
    marks: [Option<Mark>; 2],
}

impl Library {
    pub fn new(loaded: &Loaded, image: &Image, mark: Option<Mark>) -> Library {
        Library { loaded: *loaded, marks: [image.mark(), mark] }
    }

    /// The library that holds this address.
    ///
    /// # Safety
    /// It is loaded, and stays so for the call.
    pub unsafe fn holding(address: usize) -> Option<Library> {
        let loaded = mapped_modules::holding(address)?;
        // SAFETY: as the caller says.
        Some(Library::new(&loaded, &unsafe { loaded.image() }, None))
    }

    fn is_there(&self) -> bool {
        mapped_modules::holding(self.loaded.start) == Some(self.loaded)
            && (self.marks[0].is_some() || mapped_modules::unloaded().is_none())
            && self.marks.iter().flatten().all(Mark::is_read)
    }
}

/// Never changed and never freed: another thread may be reading it.
#[repr(C, align(64))]
pub struct Fact<T> {
    /// How many were unloaded when it held last; [`ALWAYS`].
    checked: AtomicU64,
    pub value: T,
    libraries: [Library; 2],
}

/// No such number, as the one before it.
const ALWAYS: u64 = 1 << 48;

impl<T> Fact<T> {
    /// They are loaded, and stay so for the call.
    fn new(libraries: [Library; 2], value: T) -> Fact<T> {
        let always = libraries.iter().all(|library| library.loaded.is_of_the_start());
        let checked =
            if always { ALWAYS } else { mapped_modules::unloaded().unwrap_or(ALWAYS - 1) };
        Fact { checked: AtomicU64::new(checked), value, libraries }
    }

    /// Its libraries are never unloaded.
    #[inline(always)]
    pub fn is_for_good(&self) -> bool {
        self.checked.load(Ordering::Relaxed) == ALWAYS
    }

    /// Whether the libraries are loaded in which it was found.
    #[inline(always)]
    pub fn holds(&self) -> bool {
        mapped_modules::unloaded() == Some(self.checked.load(Ordering::Acquire)) || self.check()
    }

    #[cold]
    #[inline(never)]
    fn check(&self) -> bool {
        if self.is_for_good() {
            return true;
        }
        let now = mapped_modules::unloaded();
        let holds = self.libraries.iter().all(Library::is_there);
        if let Some(now) = now.filter(|_| holds) {
            self.checked.store(now, Ordering::Release);
        }
        holds
    }
}

/// The place of a fact.
pub struct Found<T: 'static>(AtomicPtr<Fact<T>>);

impl<T> Default for Found<T> {
    fn default() -> Self {
        Found::none()
    }
}

impl<T> Found<T> {
    pub const fn none() -> Found<T> {
        Found(AtomicPtr::new(null_mut()))
    }

    /// What was found last, whether or not it holds.
    #[inline(always)]
    pub fn last(&self) -> Option<&'static Fact<T>> {
        // SAFETY: null, or never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        self.last().filter(|fact| fact.holds()).map(|fact| &fact.value)
    }

    /// Puts what was found in both libraries here, in place of what holds no more. False: something holds.
    pub fn put(&self, libraries: [Library; 2], value: T) -> bool {
        let known = self.last();
        if known.is_some_and(Fact::holds) {
            return false;
        }
        let known = known.map_or(null_mut(), |known| (&raw const *known).cast_mut());
        let fresh = Box::into_raw(Box::new(Fact::new(libraries, value)));
        let put = self.0.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Relaxed);
        if put.is_err() {
            // SAFETY: nobody has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
        put.is_ok()
    }
}

/// Threads that hold all libraries, by the hash of the thread.
static HOLDERS: [Holders; 16] = [const { Holders(AtomicU32::new(0)) }; 16];
/// Threads in `dlclose`.
static CLOSING: AtomicU32 = AtomicU32::new(0);
/// The process whose threads these are: a forked child has counts of its parent's until it makes its state.
static OWNER: AtomicU32 = AtomicU32::new(0);

#[repr(align(64))]
struct Holders(AtomicU32);

/// Runs `work`, which does not wait, while no library is unloaded. `None`: a thread is in `dlclose`.
#[inline(never)]
pub fn hold<R>(work: impl FnOnce() -> R) -> Option<R> {
    let here = (hash_table::spread(thread_pointer() as u64) >> 32) as usize % HOLDERS.len();
    HOLDERS[here].0.fetch_add(1, SeqCst);
    let result = (!is_closing()).then(work);
    leave(&HOLDERS[here].0);
    result
}

/// In a forked child the threads are not there that it counts.
fn leave(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, SeqCst, |count| count.checked_sub(1));
}

/// Before a process makes its state. `give_up`: what gives copies of facts up.
pub fn begin(give_up: fn()) {
    GIVE_UP.put(give_up);
    OWNER.store(std::process::id(), SeqCst);
    HOLDERS.iter().map(|holders| &holders.0).chain([&CLOSING]).for_each(|all| all.store(0, SeqCst));
}

fn is_closing() -> bool {
    CLOSING.load(SeqCst) != 0
}

/// Runs the program's `dlclose`, once nobody else holds the libraries.
pub fn close<R>(work: impl FnOnce() -> R) -> R {
    struct Closing;
    impl Drop for Closing {
        fn drop(&mut self) {
            leave(&CLOSING);
        }
    }
    CLOSING.fetch_add(1, SeqCst);
    let _closing = Closing;
    before_change();
    let kept = errno::get();
    let is_owner = OWNER.load(SeqCst) == std::process::id();
    for Holders(count) in HOLDERS.iter().filter(|_| is_owner) {
        for turn in 0..=PATIENCE {
            match count.load(SeqCst) {
                0 => break,
                // As the holder of a lock, it has left.
                _ if turn == PATIENCE => count.store(0, SeqCst),
                held => futex::wait(count, held, Duration::from_micros(100)),
            }
        }
    }
    errno::set(kept);
    work()
}

/// About 10 s. Nobody wakes the waiting thread: who holds libraries does not wait.
const PATIENCE: u32 = 60_000;

/// Gives copies of facts up.
static GIVE_UP: Leaked<fn()> = Leaked::NONE;

/// Before libraries come or go.
pub fn before_change() {
    GIVE_UP.get().into_iter().for_each(|give_up| give_up());
}

/// Makes copies of facts, which are given up before libraries come or go. None are made where that may not be seen.
pub fn copied(copy: impl FnOnce()) {
    const UNSEEN: u8 = Escape::DeepBind as u8 | Escape::Namespace as u8;
    if escapes() & UNSEEN == 0 {
        copy();
    }
    fence(SeqCst);
    if is_closing() {
        before_change();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::runtime::elf::Object;
    use core::sync::atomic::AtomicBool;
    use std::sync::Mutex;

    /// Of tests in which something is unloaded.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_fact_holds_until_its_library_is_unloaded() {
        crate::runtime::loaded_objects::can_ask();
        // SAFETY: an address in a library that is loaded.
        let library = |at| unsafe { Library::holding(at) }.unwrap();
        // SAFETY: a library of the system without initialisers, which no other test opens.
        let handle = unsafe { libc::dlopen(c"libthread_db.so.1".as_ptr(), libc::RTLD_LAZY) };
        assert!(!handle.is_null(), "a library of glibc's");
        // SAFETY: it was just opened.
        let at = unsafe { Object::of_handle(handle) }.function(b"td_init").unwrap();
        let (one, libc) = (library(at), library(libc::getppid as *const () as usize));
        let place = Found::none();
        let put = |libraries, value| place.put(libraries, value);
        assert!(put([libc, one], 5));
        assert_eq!(place.get(), Some(&5));
        assert!(!put([libc, libc], 6), "the first one holds");
        assert!(!place.last().unwrap().is_for_good());
        // SAFETY: opened above.
        unsafe { libc::dlclose(handle) };
        assert_eq!(place.get(), None);
        assert!(place.last().is_some());
        assert!(put([libc, libc], 7));
        assert!(place.get() == Some(&7) && place.last().unwrap().is_for_good());
        // Without a build-id it cannot be known again.
        let nameless = Library { marks: [None; 2], ..libc };
        assert!(libc.is_there() && !nameless.is_there());
        let (value, at) = (1u64, &raw const nameless as usize);
        let marked = Library { marks: [libc.marks[0], Some(Mark { at, value })], ..libc };
        assert!(!marked.is_there(), "its data is not what it was");
    }

    #[test]
    fn a_thread_that_holds_libraries_is_waited_for() {
        let _one = ONE.lock();
        static LEFT: AtomicBool = AtomicBool::new(false);
        let holding = AtomicBool::new(false);
        begin(|| ());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                hold(|| {
                    holding.store(true, SeqCst);
                    while !is_closing() {
                        std::thread::yield_now();
                    }
                    std::thread::yield_now();
                    LEFT.store(true, SeqCst);
                })
            });
            while !holding.load(SeqCst) {
                std::thread::yield_now();
            }
            close(|| {
                assert!(LEFT.load(SeqCst));
                assert_eq!(hold(|| ()), None, "while something is unloaded");
            });
        });
        assert_eq!(hold(|| 5), Some(5));
    }

    #[test]
    fn copies_are_given_up_before_libraries_come_or_go() {
        let _one = ONE.lock();
        static COPIED: AtomicBool = AtomicBool::new(false);
        begin(|| COPIED.store(false, SeqCst));
        let copy = || copied(|| COPIED.store(true, SeqCst));
        copy();
        assert!(COPIED.load(SeqCst));
        close(|| {
            assert!(!COPIED.load(SeqCst));
            copy();
            assert!(!COPIED.load(SeqCst), "while something is unloaded");
        });
    }
}
