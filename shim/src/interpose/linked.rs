//! The function that a caller is linked to, where the library exports one of the same name in front
//! of it.
//!
//! It is found without calling the loader, since the program may hold a lock. The calling library is
//! linked to the one that defines the function, so some of the addresses that the loader has written
//! into the caller's tables lie in that library. Where a process holds two copies of such a library,
//! each gets its own calls.

use crate::runtime::elf::Object;
use crate::runtime::mapped_modules::{Loaded, holding};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The functions of one library that are exported in front of it: `N` names, and the callers seen.
pub struct LinkedFunctions<const N: usize> {
    names: [&'static str; N],
    callers: [Caller<N>; CALLERS],
    used: AtomicUsize,
}

/// For PyTorch libc10, libc10_cuda and libtorch_cpu call, for streams extensions too; there is room for a second copy.
const CALLERS: usize = 24;

/// A calling library, and the functions that it is linked to.
struct Caller<const N: usize> {
    /// 0: unused, or being filled in.
    start: AtomicUsize,
    end: AtomicUsize,
    /// In the order of the names; 0: it has none.
    real: [AtomicUsize; N],
}

impl<const N: usize> LinkedFunctions<N> {
    pub const fn new(names: [&'static str; N]) -> LinkedFunctions<N> {
        LinkedFunctions {
            names,
            callers: [const {
                Caller {
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    real: [const { AtomicUsize::new(0) }; N],
                }
            }; CALLERS],
            used: AtomicUsize::new(0),
        }
    }

    /// The function that the code at `caller` would have called by this name without the export.
    /// `by_name`: the function found by its name, for callers that are linked to none.
    #[inline]
    pub fn real(
        &self,
        index: usize,
        caller: usize,
        by_name: impl Fn() -> Option<usize>,
    ) -> Option<usize> {
        match self.known(index, caller) {
            Some(0) | None => self.unknown(index, caller, by_name),
            real => real,
        }
    }

    /// The same for a library that has called before. 0: it is linked to no function of this name.
    #[inline(always)]
    pub fn known(&self, index: usize, caller: usize) -> Option<usize> {
        for known in &self.callers {
            let start = known.start.load(Ordering::Acquire);
            if start == 0 {
                break;
            }
            if (start..known.end.load(Ordering::Relaxed)).contains(&caller) {
                return Some(known.real[index].load(Ordering::Relaxed));
            }
        }
        None
    }

    /// Where this library is, if it has called before, and its functions.
    pub fn known_caller(&self, caller: usize) -> Option<(Range<usize>, [usize; N])> {
        self.callers.iter().find_map(|known| {
            let start = known.start.load(Ordering::Acquire);
            let library = start..known.end.load(Ordering::Relaxed);
            let real = || known.real.each_ref().map(|real| real.load(Ordering::Relaxed));
            (start != 0 && library.contains(&caller)).then(|| (library, real()))
        })
    }

    #[cold]
    fn unknown(
        &self,
        index: usize,
        caller: usize,
        by_name: impl Fn() -> Option<usize>,
    ) -> Option<usize> {
        let by_name = || by_name().or_else(|| self.of_another(index));
        match self.known(index, caller) {
            Some(_) => by_name(),
            None => self.register(index, caller, by_name),
        }
    }

    /// An address in each library that has called.
    pub fn callers(&self) -> impl Iterator<Item = usize> {
        let starts = self.callers.iter().map(|known| known.start.load(Ordering::Acquire));
        starts.take_while(|start| *start != 0)
    }

    #[cold]
    fn register(
        &self,
        index: usize,
        caller: usize,
        by_name: impl Fn() -> Option<usize>,
    ) -> Option<usize> {
        let Some(library) = holding(caller) else { return by_name() };
        let name = self.names[index].as_bytes();
        // SAFETY: it has just called this function, so it is loaded.
        let object = unsafe { library.object() };
        let found = defining(&object, name);
        let at = self.used.fetch_add(1, Ordering::Relaxed);
        if let (Some(target), Some(slot)) = (found.as_ref(), self.callers.get(at)) {
            for (real, name) in slot.real.iter().zip(self.names) {
                real.store(target.function(name.as_bytes()).unwrap_or(0), Ordering::Relaxed);
            }
            slot.end.store(library.end, Ordering::Relaxed);
            slot.start.store(library.start, Ordering::Release);
        }
        match found {
            Some(target) => target.function(name),
            None => by_name(),
        }
    }

    /// The function that another caller is linked to: where there is one copy of the library, the same.
    fn of_another(&self, index: usize) -> Option<usize> {
        let real = |known: &Caller<N>| known.real[index].load(Ordering::Relaxed);
        self.callers.iter().map(real).find(|real| *real != 0)
    }
}

/// The library that defines the function for this one: itself, or one that it is linked to.
fn defining(caller: &Object, name: &[u8]) -> Option<Object> {
    let ours = holding(defining as *const () as usize)?;
    let defines = |object: &Object| object.function(name).is_some();
    if defines(caller) {
        return Some(*caller);
    }
    let mut last: Option<Loaded> = None;
    for address in caller.references() {
        let again = |library: &Loaded| (library.start..library.end).contains(&address);
        if again(&ours) || last.as_ref().is_some_and(again) {
            continue;
        }
        let Some(library) = holding(address) else { continue };
        last = Some(library);
        // SAFETY: the caller is linked to it and runs, so it is loaded.
        let object = unsafe { library.object() };
        if defines(&object) {
            return Some(object);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_of_no_library_gets_the_function_of_another() {
        static FUNCTION: LinkedFunctions<1> = LinkedFunctions::new(["getppid"]);
        const NOBODY: usize = 16;
        assert_eq!(FUNCTION.real(0, NOBODY, || None), None, "nobody is linked to it");
        // SAFETY: has no arguments.
        unsafe { libc::getppid() };
        let here = defining as *const () as usize;
        let real = FUNCTION.real(0, here, || None);
        assert!(real.is_some() && real != Some(here));
        assert_eq!(FUNCTION.real(0, NOBODY, || None), real);
        assert_eq!(FUNCTION.real(0, NOBODY, || Some(1)), Some(1), "its name comes first");
    }
}
