//! The process's end by `exit` or by return from `main`.
//!
//! A destructor of the library, not `atexit`: the loader runs it after the program's own exit
//! handlers, which free most of what is left, and it costs nothing before. `_exit`, `abort` and
//! kills run neither; the trace does not need them.

use crate::driver::depth::outermost;
use crate::hooks::process::state;
use crate::runtime::panic_boundary;
use crate::runtime::uncancelled::uncancelled;

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
