//! What is done at the end of a call, outside all locks.

use crate::driver::cuda::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::hooks::call::before_call;
use crate::hooks::call::{Call, Row};
use crate::hooks::process::live_sites;
use crate::hooks::process::state::Process;
use crate::runtime::log::{self, Once};
use crate::runtime::{attention, own_stack, reserve};
use vramtrace_format::{DeviceId, StopReason};

/// At the end of each driver call.
#[inline(always)]
pub fn after_call(process: &'static Process) {
    if attention::is_any() {
        attend(process);
    }
    if process.trace_writer.is_due() {
        maintain_and_ask(process);
    }
}

#[cold]
fn attend(process: &Process) {
    if reserve::is_used() {
        stop_without_host_memory(process);
    }
    if attention::is_asked(attention::ESCAPED) {
        process.usage.record_escapes(&process.trace_writer);
    }
    if attention::is_asked(attention::NEWS) {
        before_call::report_news(process);
    }
}

#[cold]
#[inline(never)]
fn maintain_and_ask(process: &'static Process) {
    own_stack::run(|| maintain(process));
    process.cap.keep_group();
    process.nvml.now_and_then(process);
}

/// The kernel maps no more pages for this process. Ends the recording; the memory that is left serves
/// the cap.
#[cold]
pub(in crate::hooks) fn stop_without_host_memory(process: &Process) {
    let stopped = process.trace_writer.stop(StopReason::MapFailed, libc::ENOMEM);
    let capped = process.cap.is_set() && !process.cap.only_warns();
    let rest = match (stopped, capped) {
        (true, true) => {
            "recording ends here; under the cap, GPU memory that cannot be counted is refused"
        }
        (true, false) => "recording ends here, the program goes on",
        (false, true) => "under the cap, GPU memory that cannot be counted is refused",
        (false, false) => return,
    };
    if Once::NoHostMemory.begins() {
        log::line(format_args!(
            "the system refuses host memory to this process (see RLIMIT_AS, RLIMIT_DATA, \
             vm.max_map_count, overcommit); {rest}"
        ));
    }
}

/// The recorder has no host memory to follow what this call would allocate. Under a cap the call is refused; otherwise it is
/// made, and not recorded.
#[cold]
pub(in crate::hooks) fn unfollowed(call: Call<impl Row>, device: DeviceId) -> CUresult {
    stop_without_host_memory(call.p);
    if call.p.cap.must_count(device) { CUDA_ERROR_OUT_OF_MEMORY } else { call.forward() }
}

/// At the end of a call that PyTorch makes with a lock held. It may not wait for anything, so neither
/// the driver nor NVML is called. Returns whether work was due.
#[inline]
pub fn after_block(process: &'static Process) -> bool {
    if reserve::is_used() {
        stop_without_host_memory(process);
    }
    let is_due = process.trace_writer.is_due_after_block();
    if is_due {
        maintain_after_block(process);
    }
    is_due
}

#[cold]
#[inline(never)]
fn maintain_after_block(process: &'static Process) {
    process.trace_writer.leave_to_ask();
    own_stack::run(|| maintain(process));
}

fn maintain(process: &'static Process) {
    process.trace_writer.maintain(process, false);
    live_sites::refresh(process);
}
