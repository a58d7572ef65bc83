//! NVML's memory info under a cap: the same figures as cuMemGetInfo shows. A process without its
//! own context (a monitor) sees the real ones.

use super::info::{Shown, shown};
use super::prelude::*;

pub fn memory_info(call: Call<impl Row>, device: NvmlDevice, memory: Out<NvmlMemory>) -> CUresult {
    gave(call.forward(), memory, |real| {
        if let Some(seen) = seen(call.p, device, real.total, real.free) {
            memory.set(NvmlMemory { total: seen.total, free: seen.free, used: seen.used() });
        }
    })
}

pub fn memory_info_v2(
    call: Call<impl Row>,
    device: NvmlDevice,
    memory: Out<NvmlMemory_v2>,
) -> CUresult {
    gave(call.forward(), memory, |real| {
        if let Some(seen) = seen(call.p, device, real.total, real.free) {
            let (total, free, used) = (seen.total, seen.free, seen.used());
            memory.set(NvmlMemory_v2 { total, reserved: 0, free, used, ..real });
        }
    })
}

/// `None`: the program gets NVML's own figures.
fn seen(p: &'static Process, handle: NvmlDevice, total: u64, free: u64) -> Option<Shown> {
    if !p.cap.is_set() || !p.contexts.any() {
        return None;
    }
    let device = p.nvml.device_of(&p.devices, handle)?;
    if !p.contexts.any_on(device.id) {
        return None;
    }
    // NVML's total includes the driver's own reserve, CUDA's does not. The program gets CUDA's total
    // from both.
    let total = total.min(device.total_bytes);
    shown(p, device.id, Shown { total, free })
}
