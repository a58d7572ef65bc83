//! Records what follows a refusal. Libraries such as NVSHMEM and NCCL turn an out-of-memory into another
//! error, or report nothing. So the next failed call and the exit status of the process are recorded.

use super::names::with_names;
use crate::driver::api::Api;
use crate::driver::cuda::CUDA_ERROR_DEINITIALIZED;
use crate::hooks::process::state::{self, Process};
use crate::runtime::lock::Lock;
use crate::runtime::log;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use vramtrace_format::policy::OomReport;
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Event, Refused, RefusedBy};

/// Results that do not count as the next failed call: out of memory (recorded as a refusal), not found, not
/// ready, and that of calls of destructors after the driver has ended.
const ANSWERS: [i32; 4] = [2, 500, 600, CUDA_ERROR_DEINITIALIZED];

static IS_KEPT: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn note_status(status: c_int, _: *mut c_void) {
    if let Some(process) = state::existing() {
        process.oom.aftermath.status.store((status & 0xFF) + 1, Relaxed);
    }
}

#[derive(Default)]
pub struct Aftermath {
    /// A request was refused, and no call has failed since.
    waits: AtomicBool,
    /// Host memory was refused.
    of_host: AtomicBool,
    /// What `exit` was called with, or `main` returned, plus 1; 0: not known.
    status: AtomicI32,
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
    /// `None`: not known.
    pub fn status(&self) -> Option<i32> {
        Some(self.status.load(Relaxed) - 1).filter(|status| *status >= 0)
    }

    #[cold]
    pub fn refused(&self, device: DeviceId, refused: &Refused) {
        *self.last.lock() = Last { refused: Some((device, *refused)), error: None };
        self.waits.store(true, Relaxed);
    }

    #[cold]
    pub fn host_refused(&self) {
        self.of_host.store(true, Relaxed);
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
            p.trace_writer.record(&Event::Aftermath { api: Some(api as u64), result });
        }
    }

    /// Called when the process exits normally.
    pub fn at_exit(&self, p: &'static Process) {
        let Last { refused, error } = std::mem::take(&mut *self.last.lock());
        let Some(status) = self.status() else { return };
        let was_refused = refused.is_some() || self.of_host.load(Relaxed) || p.oom.cache_ooms() > 0;
        if status != 0 || was_refused {
            p.trace_writer.record(&Event::Aftermath { api: None, result: status });
        }
        let (Some((device, refused)), Some((api, result))) = (refused, error) else { return };
        if p.config.oom_report == OomReport::Off || status == 0 {
            return;
        }
        let who = with_names(p, |names| names.library(refused.stack, false));
        // The program itself, and PyTorch, report a refusal.
        let Some(library) = who.filter(|library| !library.own && !library.is_torch_cache) else {
            return;
        };
        let by = match refused.by {
            RefusedBy::Group => "the group's cap",
            RefusedBy::Driver => "the driver",
            _ => "the cap",
        };
        log::line(format_args!(
            "{} was refused {} on cuda:{} by {by} and went on; the next error was {} with {result}",
            library.title,
            Bytes(refused.size),
            device.0,
            api.name(),
        ));
    }
}
