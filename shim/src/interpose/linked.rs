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

/// The functions of one library that are exported in front of it: `N` names, and the callers seen.
pub struct LinkedFunctions<const N: usize> {
    names: [&'static str; N],
    /// The first ones are used.
    callers: [Found<Caller<N>>; CALLERS],
}

/// For PyTorch libc10, libc10_cuda and libtorch_cpu call, for streams extensions too; there is room for a second copy, and
/// for others that are unloaded.
const CALLERS: usize = 24;

/// A calling library, and the functions that it is linked to.
struct Caller<const N: usize> {
    library: Range<usize>,
    /// In the order of the names; 0: it has none.
    real: [usize; N],
}

impl<const N: usize> LinkedFunctions<N> {
    pub const fn new(names: [&'static str; N]) -> LinkedFunctions<N> {
        LinkedFunctions { names, callers: [const { Found::none() }; CALLERS] }
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
        self.of(caller).map(|known| known.real[index])
    }

    #[inline(always)]
    fn of(&self, caller: usize) -> Option<&'static Caller<N>> {
        let mut all = self.callers.iter().map_while(Found::last);
        let holds = |fact: &&Fact<Caller<N>>| fact.value.library.contains(&caller) && fact.holds();
        all.find(holds).map(|fact| &fact.value)
    }

    /// Where this library is, if it has called before, and its functions.
    pub fn known_caller(&self, caller: usize) -> Option<(Range<usize>, [usize; N])> {
        self.of(caller).map(|known| (known.library.clone(), known.real))
    }

    #[cold]
    fn unknown(
        &self,
        index: usize,
        caller: usize,
        by_name: impl Fn() -> Option<usize>,
    ) -> Option<usize> {
        let linked = match self.known(index, caller) {
            Some(_) => None,
            None => self.register(index, caller),
        };
        linked.or_else(by_name).or_else(|| self.of_another(index))
    }

    /// An address in each library that has called.
    pub fn callers(&self) -> impl Iterator<Item = usize> {
        self.callers.iter().filter_map(Found::get).map(|known| known.library.start)
    }

    /// `None`: the caller is linked to none.
    fn register(&self, index: usize, caller: usize) -> Option<usize> {
        let library = holding(caller)?;
        let name = self.names[index].as_bytes();
        // SAFETY: it has just called this function, so it is loaded.
        let object = unsafe { library.object() };
        let target = defining(&object, name)?;
        let real = self.names.map(|name| target.function(name.as_bytes()).unwrap_or(0));
        // SAFETY: the caller, and a library that it is linked to.
        let libraries = unsafe { [Library::holding(caller), Library::holding(real[index])] };
        if let [Some(caller), Some(target)] = libraries {
            // Those that were unloaded may come back: first the places that nobody has.
            let unused = self.callers.iter().filter(|place| place.last().is_none());
            let known = || Caller { library: library.start..library.end, real };
            unused.chain(&self.callers).any(|place| place.put([caller, target], known()));
        }
        Some(real[index])
    }

    /// The function that another caller is linked to: where there is one copy of the library, the same.
    fn of_another(&self, index: usize) -> Option<usize> {
        let known = self.callers.iter().filter_map(Found::get);
        known.map(|known| known.real[index]).find(|real| *real != 0)
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
