//! The state of a thread in a process with several interpreters, up to CPython 3.11: such a thread
//! has a state in each interpreter that it has run, and PyGILState knows the first of them only.
//! (From 3.12 on it knows the one that the thread ran last.)

use super::layout::Layout;
use super::memory::{Careful, Memory};
use crate::runtime::tls::thread_pointer;
use std::ffi::c_void;

type Ask = extern "C" fn() -> *mut c_void;

/// The interpreters, newest first, and the state that holds the interpreters' lock.
#[derive(Clone, Copy)]
pub struct Interpreters {
    pub newest: Ask,
    pub current: Ask,
}

/// Offset in a thread's state; the same from 3.8 to 3.11.
const NEXT_STATE: usize = 8;
/// Offset in an interpreter's state.
const NEXT_INTERPRETER: usize = 0;
/// Most entries of a list that are searched.
const MOST: usize = 1000;

impl Interpreters {
    /// Whether there are sub-interpreters. Without them the main interpreter is not freed while a
    /// thread runs Python.
    #[inline]
    pub fn are_several(&self) -> bool {
        // SAFETY: returns the main interpreter's state, whose first field is the next interpreter.
        unsafe {
            let newest = (self.newest)().cast::<usize>();
            !newest.is_null() && newest.add(NEXT_INTERPRETER / size_of::<usize>()).read() != 0
        }
    }

    /// The state in which this thread runs. Other threads may end their interpreters meanwhile, so
    /// everything is read with care.
    #[cold]
    pub fn running(&self, layout: &Layout) -> Option<usize> {
        Careful::with(|memory| self.running_by(memory, layout)).flatten()
    }

    fn running_by(&self, memory: &Careful, layout: &Layout) -> Option<usize> {
        let is_ours = |state: usize| {
            memory.word(state + thread_id(layout.minor)) == Some(thread_pointer())
                && layout.first_frame(memory, state).is_some_and(|(_, frame)| frame != 0)
        };
        let current = (self.current)() as usize;
        // The lock's holder is another thread, or none, if this thread released the lock around its
        // call.
        if current != 0 && is_ours(current) {
            return Some(current);
        }
        // An interpreter that is entered from another one was created later: newest first.
        let mut interpreter = (self.newest)() as usize;
        for _ in 0..MOST {
            if interpreter == 0 {
                break;
            }
            let mut state = memory.word(interpreter + first_state(layout.minor))?;
            for _ in 0..MOST {
                if state == 0 {
                    break;
                }
                if is_ours(state) {
                    return Some(state);
                }
                state = memory.word(state + NEXT_STATE)?;
            }
            interpreter = memory.word(interpreter + NEXT_INTERPRETER)?;
        }
        None
    }
}

/// Offset of the thread id in a thread's state.
fn thread_id(minor: u8) -> usize {
    if minor >= 11 { 152 } else { 176 }
}

/// Offset of the first thread's state in an interpreter's.
fn first_state(minor: u8) -> usize {
    if minor >= 11 { 16 } else { 8 }
}
