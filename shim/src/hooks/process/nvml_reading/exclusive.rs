//! The bytes of a process that NVML does not list by its pid: in a container with its own pids.
//!
//! Where no other process can use the card, all bytes of the card are this process's, less those that were used before
//! its first context. That is so in the mode EXCLUSIVE_PROCESS, in a MIG instance on which NVML lists one process at
//! most, and where the user says so (`VRAMTRACE_EXCLUSIVE=1`). Else the bytes cannot be told.

use crate::driver::cuda::NvmlDevice;
use crate::driver::functions::{answer, driver};
use crate::driver::nvml::{Figure, Nvml};
use crate::hooks::process::state::Process;
use crate::model::devices::Device;
use once_cell::race::OnceBool;
use std::sync::atomic::{AtomicU64, Ordering};

const CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: u32 = 20;
const CU_COMPUTEMODE_EXCLUSIVE_PROCESS: i32 = 3;

#[derive(Default)]
pub(super) struct Exclusive {
    /// Whether no other process can use the card, once it was asked.
    is_alone: OnceBool,
    /// The card's used bytes before the first context, plus 1; 0: not known.
    before: AtomicU64,
}

impl Exclusive {
    /// The card's used bytes, while this process has no context there.
    pub fn without_context(&self, used: Option<u64>) {
        if let Some(used) = used {
            let used = used.saturating_add(1);
            let _ = self.before.compare_exchange(0, used, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The figure of this process where NVML lists no process with its pid.
    pub fn figure(&self, p: &Process, device: &Device, nvml: Nvml, handle: NvmlDevice) -> Figure {
        let before = self.before.load(Ordering::Relaxed);
        if before == 0 || !self.is_alone(p, device, nvml, handle) {
            return Figure::Absent;
        }
        nvml.memory(handle).map_or(Figure::Absent, |memory| {
            Figure::Bytes(memory.used.saturating_add(1).saturating_sub(before))
        })
    }

    fn is_alone(&self, p: &Process, device: &Device, nvml: Nvml, handle: NvmlDevice) -> bool {
        self.is_alone.get_or_init(|| {
            let own_slice = || device.mig && nvml.processes(handle).len() <= 1;
            p.config.exclusive || is_in_exclusive_mode(device) || own_slice()
        })
    }
}

fn is_in_exclusive_mode(device: &Device) -> bool {
    let (which, ordinal) = (CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, i32::from(device.id.0));
    let mode = answer(0, |mode| Some(driver().device_get_attribute?(mode, which, ordinal)));
    mode == Some(CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
}
