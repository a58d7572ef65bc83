//! The orderly end of the process.
//!
//! A destructor of the library, not `atexit`: the loader runs it after the program's own exit
//! handlers, which free most of what is left, and it costs nothing before. `_exit`, `abort` and
//! kills run neither; the trace does not need them.

use super::{Recorder, upkeep::Books};
use crate::{entry, process};
use vramtrace_format::Event;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // In a forked child that used no CUDA there is none.
    let Some(process) = process::existing() else { return };
    // Exit from a signal handler that interrupted one of our hooks: its locks may be held by this
    // very thread.
    entry::outermost(|| {
        let _ = entry::shield::catch(|| process.post_mortems.at_exit(process));
        let _ = entry::shield::catch(|| entry::uncancelled(|| process.recorder.end(process)));
    });
}

impl Recorder {
    /// The last figures, and the sign of an orderly end. Threads that outlive it may still append.
    pub fn end(&self, books: &impl Books) {
        self.keep_up(books, true);
        if self.path().is_some() {
            self.record(&Event::Ended);
        }
        if let Some(live) = self.live() {
            live.end();
        }
    }
}
