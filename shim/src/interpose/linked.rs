//! The function that a caller is linked to, where the library exports one of the same name in front
//! of it.
//!
//! It is found without calling the loader, since the program may hold a lock. The calling library is
//! linked to the one that defines the function, so some of the addresses that the loader has written
//! into the caller's tables lie in that library. Where a process holds two copies of such a library,
//! each gets its own calls.

use crate::runtime::elf::Object;
use crate::runtime::found::{Fact, Found, Library};
use crate::runtime::mapped_modules::{Loaded, holding};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A function that is exported in front of a library's, and the callers seen.
pub struct LinkedFunction {
    /// The first ones are used.
    callers: [Found<Caller>; CALLERS],
    /// Where it is by its name; 0: not known.
    named: AtomicUsize,
}

/// For PyTorch libc10, libc10_cuda and libtorch_cpu call, for streams extensions too; there is room for a second copy, and
/// for others that are unloaded.
const CALLERS: usize = 24;

/// A calling library, and the function that it is linked to.
pub struct Caller {
    pub library: Range<usize>,
    pub real: usize,
}

impl LinkedFunction {
    pub const fn without_callers() -> LinkedFunction {
        let callers = [const { Found::none() }; CALLERS];
        LinkedFunction { callers, named: AtomicUsize::new(0) }
    }

    /// The function that the code at `caller` would have called by this name without the export.
    /// `by_name`: the function found by its name, for callers that are linked to none.
    #[inline]
    pub fn real(
        &self,
        name: &str,
        caller: usize,
        by_name: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        match self.known(caller) {
            Some(known) => Some(known.real),
            None => self.unknown(name, caller, by_name),
        }
    }

    /// A library that has called before.
    #[inline(always)]
    pub fn known(&self, caller: usize) -> Option<&'static Caller> {
        let mut all = self.callers.iter().map_while(Found::last);
        let holds = |fact: &&Fact<Caller>| fact.value.library.contains(&caller) && fact.holds();
        all.find(holds).map(|fact| &fact.value)
    }

    #[cold]
    fn unknown(
        &self,
        name: &str,
        caller: usize,
        by_name: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        // Else the function that another caller is linked to: where there is one copy of the library, the same.
        let of_another = || self.callers.iter().find_map(Found::get).map(|known| known.real);
        let named = || self.named(by_name);
        self.register(name, caller).or_else(named).or_else(of_another)
    }

    /// The function by its name, which is looked up until it is found.
    pub fn named(&self, by_name: impl FnOnce() -> Option<usize>) -> Option<usize> {
        match self.named.load(Ordering::Relaxed) {
            0 => by_name().inspect(|found| self.named.store(*found, Ordering::Relaxed)),
            found => Some(found),
        }
    }

    /// An address in each library that has called.
    pub fn callers(&self) -> impl Iterator<Item = usize> {
        self.callers.iter().filter_map(Found::get).map(|known| known.library.start)
    }

    /// `None`: the caller is linked to none.
    fn register(&self, name: &str, caller: usize) -> Option<usize> {
        let library = holding(caller)?;
        // SAFETY: it has just called this function, so it is loaded.
        let object = unsafe { library.object() };
        let real = defined_for(&object, name.as_bytes())?;
        // SAFETY: the caller, and a library that it is linked to.
        let libraries = [caller, real].map(|at| unsafe { Library::holding(at) });
        if let [Some(caller), Some(target)] = libraries {
            // Those that were unloaded may come back: first the places that nobody has.
            let unused = self.callers.iter().filter(|place| place.last().is_none());
            let known = || Caller { library: library.start..library.end, real };
            unused.chain(&self.callers).any(|place| place.put([caller, target], known()));
        }
        Some(real)
    }
}

/// The function in the library that defines it for this one: itself, or one that it is linked to.
fn defined_for(caller: &Object, name: &[u8]) -> Option<usize> {
    let ours = holding(defined_for as *const () as usize)?;
    if let Some(own) = caller.function(name) {
        return Some(own);
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
        if let Some(found) = unsafe { library.object() }.function(name) {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_of_no_library_gets_the_function_of_another() {
        static FUNCTION: LinkedFunction = LinkedFunction::without_callers();
        const NOBODY: usize = 16;
        let real = |caller, by_name| FUNCTION.real("getppid", caller, || by_name);
        assert_eq!(real(NOBODY, None), None, "nobody is linked to it");
        // SAFETY: has no arguments.
        unsafe { libc::getppid() };
        let here = defined_for as *const () as usize;
        let found = real(here, None);
        assert!(found.is_some() && found != Some(here));
        assert_eq!(real(NOBODY, None), found);
        assert_eq!(real(NOBODY, Some(1)), Some(1), "its name comes first");
    }
}
