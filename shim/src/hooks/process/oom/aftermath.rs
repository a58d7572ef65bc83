//! Records what follows a refusal. Libraries such as NVSHMEM and NCCL turn an out-of-memory into another
//! error, or report nothing. So the next failed call and the exit status of the process are recorded.

use super::names::with_names;
use crate::driver::api::Api;
use crate::driver::cuda::CUDA_ERROR_DEINITIALIZED;
use crate::hooks::process::state::Process;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use vramtrace_format::oom::{Cause, Figures, OtherLimit};
use vramtrace_format::policy::OomReport;
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Event, Refused, RefusedBy};

/// Not known.
const NO_STATUS: i32 = i32::MIN;
/// Results that do not count as the next failed call: out of memory (recorded as a refusal), not found, not
/// ready, and that of calls of destructors after the driver has ended.
const ANSWERS: [i32; 4] = [2, 500, 600, CUDA_ERROR_DEINITIALIZED];

/// What `exit` was called with, or `main` returned.
static STATUS: AtomicI32 = AtomicI32::new(NO_STATUS);
static IS_KEPT: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn note_status(status: c_int, _: *mut c_void) {
    STATUS.store(status, Relaxed);
}

#[derive(Default)]
pub struct Aftermath {
    /// A request was refused, and no call has failed since.
    waits: AtomicBool,
    last: Lock<Last>,
}

#[derive(Default)]
struct Last {
    refused: Option<(DeviceId, Refused)>,
    /// The first call that failed after a refusal.
    error: Option<(Api, i32)>,
}

/// Registers a handler by which the C library passes the exit status. Called in cuInit only: it may
/// call malloc and takes a lock of the C library, which is not permitted during a refusal.
pub fn keep_exit_status() {
    if !IS_KEPT.swap(true, Relaxed) {
        // SAFETY: a function of ours; the library is never unloaded.
        unsafe { on_exit(note_status, null_mut()) };
    }
}

impl Aftermath {
    #[cold]
    pub fn refused(&self, device: DeviceId, refused: &Refused) {
        *self.last.lock() = Last { refused: Some((device, *refused)), error: None };
        self.waits.store(true, Relaxed);
    }

    /// Notes a call that returned an error.
    #[inline]
    pub fn failed(&self, p: &Process, api: Api, result: i32) {
        if self.waits.load(Relaxed) && !ANSWERS.contains(&result) {
            self.note(p, api, result);
        }
    }

    #[cold]
    fn note(&self, p: &Process, api: Api, result: i32) {
        if self.waits.swap(false, Relaxed) {
            self.last.lock().error = Some((api, result));
            p.trace_writer.record(&Event::ErrorAfterRefusal { api: api as u16, result });
        }
    }

    /// Called when the process exits normally.
    pub fn at_exit(&self, p: &'static Process) {
        let Last { refused: Some((device, refused)), error } =
            std::mem::take(&mut *self.last.lock())
        else {
            return;
        };
        let status = STATUS.load(Relaxed);
        if status != NO_STATUS && status != 0 {
            p.trace_writer.record(&Event::ExitStatus { status });
        }
        let Some((api, result)) = error else { return };
        if p.config.oom_report == OomReport::Off || status == 0 {
            return;
        }
        let who = with_names(p, |names| names.library(refused.stack, false));
        // The program itself, and PyTorch, report a refusal.
        let Some(library) = who.filter(|library| !library.own && !library.is_torch_cache) else {
            return;
        };
        let other = OtherLimit::of(|name| p.config.setting(name));
        let whose = match (refused.by, Figures::of_refused(&refused, other).cause()) {
            (RefusedBy::Group, _) => "the group's cap",
            (_, Cause::Mps) => "MPS (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT)",
            (_, Cause::Cgroup) => "the kernel's cgroup (dmem.max)",
            (RefusedBy::Driver, _) => "the card",
            _ => "the cap",
        };
        let ended = match status {
            NO_STATUS => String::new(),
            status => format!("; the process ended with status {status}"),
        };
        log::line(format_args!(
            "{} was refused {} on cuda:{} by {whose} and went on; the next error was {} with {result}{ended}",
            library.title,
            Bytes(refused.size),
            device.0,
            api.name(),
        ));
    }
}
