//! How many code objects were freed. As long as their number stays, the object at the address of a live code object is the
//! same one.
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
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// A number that changes with each code object that is freed: twice their number, of all interpreters so far, and while they are
/// counted 1 more.
#[inline(always)]
pub fn all() -> u64 {
    EACH_CALL.codes_freed.load(Ordering::Acquire)
}

/// Another interpreter's code is read from now on.
pub fn end() {
    EACH_CALL.codes_freed.fetch_and(!1, Ordering::Relaxed);
}

type Deallocate = extern "C-unwind" fn(*mut c_void);
/// In a type object of a release build: the function that frees objects of the type.
const DEALLOCATE: usize = 48;
/// The interpreter's function.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// Stands in the place of the interpreter's `code_dealloc`, which may run Python code (callbacks of weak references).
unsafe extern "C-unwind" fn code_freed(code: *mut c_void) {
    EACH_CALL.codes_freed.fetch_add(2, Ordering::Relaxed);
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
/// stack any more, and what was read is kept with a number that was odd then, for objects on the reader's stack alone.
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
    // By a number that no earlier interpreter's code had, and after the function was replaced.
    let _ = EACH_CALL
        .codes_freed
        .fetch_update(Ordering::Release, Ordering::Relaxed, |freed| Some((freed | 1) + 2));
    Some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::elf::object_at;

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
