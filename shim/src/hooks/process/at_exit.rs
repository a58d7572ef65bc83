//! The process's end by `exit`, by return from `main`, and by `_exit`.
//!
//! A destructor of the library, not `atexit`: the loader runs it after the program's own exit
//! handlers, which free most of what is left, and it costs nothing before. `_exit`, `abort` and
//! kills run neither; the trace does not need them.
//!
//! The status of an `_exit` is one more record, stored in memory: a signal handler may call it, a child of `vfork`, or a program
//! whose other threads hold locks. The C library's own calls, in `exit` and after a failed exec of its, do not come here.

use crate::driver::depth::outermost;
use crate::hooks::process::state;
use crate::runtime::loader::{self, Real};
use crate::runtime::panic_boundary;
use crate::runtime::trampoline::{Verdict, trampoline};
use crate::runtime::uncancelled::uncancelled;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // In a forked child that used no CUDA there is none.
    let Some(process) = state::existing() else { return };
    // Exit from a signal handler that interrupted one of our hooks: its locks may be held by this
    // very thread.
    outermost(|| {
        let _ = panic_boundary::catch(|| uncancelled(|| process.patched_entries.look(process)));
        let _ = panic_boundary::catch(|| process.oom.at_exit(process));
        let _ = panic_boundary::catch(|| uncancelled(|| process.trace_writer.end(process)));
    });
}

extern "C" fn leaving(status: c_int) -> Verdict {
    // A child of `vfork` has the memory of its parent, and that one's state.
    let own = |process: &&state::Process| process.trace_writer.is_of(std::process::id());
    if let Some(process) = state::existing().filter(own) {
        outermost(|| _ = panic_boundary::catch(|| process.trace_writer.left(status)));
    }
    let jump = loader::real(Real::Exit);
    if jump == 0 {
        // SAFETY: ends the process, as the C library's function would.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
    Verdict { jump, answer: null_mut() }
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn _exit(status: c_int) -> *mut c_void {
    trampoline!(leaving)
}

/// # Safety
/// The contract of the C library's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Exit(status: c_int) -> *mut c_void {
    trampoline!(leaving)
}
