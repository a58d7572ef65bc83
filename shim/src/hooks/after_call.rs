//! What is done at the end of a call, outside all locks.

use crate::hooks::state::Process;
use crate::hooks::{before_call, live_sites};
use crate::runtime::{log, own_stack, reserve};
use vramtrace_format::StopReason;

/// At the end of each driver call.
#[inline]
pub fn after_call(process: &'static Process) {
    if reserve::is_used() {
        stop_for_want_of_memory(process);
    }
    if process.cap.has_news() {
        before_call::report_news(process);
    }
    if process.trace_writer.is_due() {
        own_stack::run(|| maintain(process));
        process.nvml.now_and_then(process);
    }
}

/// The kernel gives no more pages. What is left is for the cap.
#[cold]
pub(super) fn stop_for_want_of_memory(process: &Process) {
    if process.trace_writer.stop(StopReason::MapFailed, libc::ENOMEM) {
        log::line(format_args!(
            "the system gives this process no more memory (its limits: RLIMIT_AS, RLIMIT_DATA, \
             vm.max_map_count, overcommit); recording ends here, the program goes on"
        ));
    }
}

/// At the end of a call that comes with a lock of the program held: nobody else may be asked.
#[inline]
pub fn after_block(process: &'static Process) {
    if reserve::is_used() {
        stop_for_want_of_memory(process);
    }
    if process.trace_writer.is_due_after_block() {
        own_stack::run(|| maintain(process));
    }
}

fn maintain(process: &'static Process) {
    process.trace_writer.maintain(process, false);
    live_sites::refresh(process);
}
