//! How many code objects were freed, all of them and by the hash of their addresses. As long as the number of a live code
//! object's address does not change, the object at that address is the same one: it cannot have been freed.
//!
//! The interpreter frees code objects by one function, which `PyCode_Type` points to (`tp_dealloc`). [`count_frees`] puts
//! [`code_freed`] in its place, which counts and calls it.
//!
//! A thread counts the free of an object before the object's memory is used again, and the interpreter's lock orders the
//! two. So a thread on whose stack the next object at that address is sees the new number.

use crate::runtime::each_call::EACH_CALL;
use crate::runtime::elf::Object;
use crate::runtime::mapped_modules::Mark;
use std::ffi::c_void;
use std::mem::transmute;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Addresses with the same hash have one number.
const PLACES: usize = 4096;

/// 0: frees are not counted, or were so often that the number would begin anew.
struct Numbers([AtomicU32; PLACES]);

static FREED: Numbers = Numbers([const { AtomicU32::new(0) }; PLACES]);
/// One more than the number of all that were freed; 0: they are not counted.
static ALL: &AtomicU64 = &EACH_CALL.codes_freed;
/// [`ALL`] of earlier interpreters, which is no less than each number of theirs.
static BEFORE: AtomicU64 = AtomicU64::new(0);

impl Numbers {
    #[inline(always)]
    fn of(&self, code: usize) -> &AtomicU32 {
        let hash = (code as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.0[(hash >> (u64::BITS - PLACES.ilog2())) as usize]
    }

    fn count(&self, code: usize) {
        let next = |number: u32| (number != 0).then(|| number.wrapping_add(1));
        let _ = self.of(code).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Counts from this number on; 0: frees are not counted.
    fn begin(&self, from: u32) {
        // Released after the function was replaced: see `count_frees`.
        self.0.iter().for_each(|number| number.store(from, Ordering::Release));
    }
}

/// The number of this address.
#[inline(always)]
pub fn number(code: usize) -> &'static AtomicU32 {
    FREED.of(code)
}

/// One more than the number of code objects that were freed; 0: they are not counted.
#[inline(always)]
pub fn all() -> u64 {
    ALL.load(Ordering::Acquire)
}

/// A code object is freed.
fn freed(code: usize) {
    FREED.count(code);
    ALL.fetch_add(1, Ordering::Relaxed);
}

/// From now on frees are counted, by numbers that no earlier interpreter's code had.
fn begin() {
    let from = BEFORE.load(Ordering::Relaxed) + 1;
    FREED.begin(from as u32);
    ALL.store(from, Ordering::Release);
}

/// Another interpreter's code is read from now on.
pub fn end() {
    BEFORE.fetch_max(ALL.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    FREED.begin(0);
}

type Deallocate = unsafe extern "C-unwind" fn(*mut c_void);
/// In a type object of a release build: the function that frees objects of the type.
const DEALLOCATE: usize = 48;
/// The interpreter's function.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// Stands in the place of the interpreter's `code_dealloc`, which may run Python code (callbacks of weak references).
unsafe extern "C-unwind" fn code_freed(code: *mut c_void) {
    freed(code as usize);
    // The interpreter read this function's address by a plain load.
    fence(Ordering::Acquire);
    // SAFETY: the interpreter's function, kept before this one took its place, with the interpreter's argument.
    unsafe { transmute::<usize, Deallocate>(REPLACED.load(Ordering::Relaxed))(code) }
}

/// Counts the code objects that are freed from now on; returns the word that was replaced, by which an interpreter is known that
/// was unloaded and loaded again. `None`: the type object is not as expected; frames are then compared by the contents of their
/// code objects.
///
/// Another thread that is about to free an object may have read the interpreter's function before. That object is on no
/// stack any more, and a number is kept, after it was set in [`Numbers::begin`], for objects on the reader's stack alone.
///
/// # Safety
/// `code_type` is the address of a variable of `interpreter`, which is loaded: `PyCode_Type` of CPython up to 3.13. No other
/// interpreter of which frees were counted is loaded.
pub unsafe fn count_frees(interpreter: &Object, code_type: usize) -> Option<Mark> {
    let place = code_type + DEALLOCATE;
    if !place.is_multiple_of(align_of::<AtomicUsize>())
        || !interpreter.is_data(place, size_of::<AtomicUsize>())
    {
        return None;
    }
    let own = code_freed as *const () as usize;
    let mark = Mark { at: place, value: own as u64 };
    // SAFETY: an aligned word of the object's data, which may be written to, and which is loaded.
    let place = unsafe { &*(place as *const AtomicUsize) };
    let found = place.load(Ordering::Acquire);
    if found != own {
        // In a debug build another field is there. Of another library's function it is not known what it calls.
        if !interpreter.contains(found) {
            return None;
        }
        REPLACED.store(found, Ordering::Release);
        place.compare_exchange(found, own, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    }
    begin();
    Some(mark)
}

#[cfg(test)]
pub mod for_tests {
    /// As if the interpreter had been found.
    pub fn begin() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(super::begin);
    }

    /// As if the interpreter had freed it.
    pub fn freed(code: usize) {
        super::freed(code);
    }

    /// As if frees were not counted at its address.
    pub fn uncount(code: usize) {
        super::number(code).store(0, super::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::elf::object_at;

    #[test]
    fn a_number_changes_until_it_would_begin_anew() {
        let freed = Numbers([const { AtomicU32::new(0) }; PLACES]);
        let number = |code| freed.of(code).load(Ordering::Relaxed);
        let (code, other) = (0x7f12_3456_7010, 0x7f12_3456_7080);
        freed.count(code);
        assert_eq!(number(code), 0);
        freed.begin(1);
        freed.count(code);
        freed.count(code);
        assert_eq!((number(code), number(other)), (3, 1));
        freed.of(code).store(u32::MAX, Ordering::Relaxed);
        freed.count(code);
        freed.count(code);
        assert_eq!((number(code), number(other)), (0, 1));
    }

    #[test]
    fn addresses_of_code_objects_have_numbers_of_their_own() {
        let freed = Numbers([const { AtomicU32::new(0) }; PLACES]);
        let mut taken = std::collections::HashSet::new();
        let places = (0..256).map(|n| freed.of(0x7f12_3456_7010 + n * 208) as *const _ as usize);
        assert!(places.filter(|place| taken.insert(*place)).count() > 230);
    }

    #[test]
    fn what_is_no_type_object_is_left_alone() {
        static DATA: [AtomicUsize; 8] = [const { AtomicUsize::new(16) }; 8];
        let code = object_at as *const () as usize;
        let here = object_at(code).unwrap();
        let heap = Box::new([code; 8]);
        let constant: &'static [usize; 8] = &[16; 8];
        for at in [&raw const DATA as usize, &raw const *heap as usize, constant.as_ptr() as usize]
        {
            // SAFETY: words that can be read; none of them is a function in data of this program's.
            assert_eq!(unsafe { count_frees(&here, at) }, None);
        }
        assert!(DATA.iter().all(|word| word.load(Ordering::Relaxed) == 16));
        assert_eq!((heap[6], constant[6]), (code, 16));
    }
}
