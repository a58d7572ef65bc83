//! NVML's memory info under a cap: the same figures as cuMemGetInfo shows. A process without its
//! own context (a monitor) sees the real ones.

use super::info::{Shown, shown};
use crate::driver::cuda::{CUDA_SUCCESS, CUresult, NvmlDevice, NvmlMemory, NvmlMemory_v2};
use crate::driver::param::Out;
use crate::hooks::call::{Call, Function};
use crate::hooks::process::state::Process;

/// nvmlDeviceGetMemoryInfo.
pub fn memory_info(
    p: &'static Process,
    call: &Call<impl Function>,
    device: NvmlDevice,
    memory: Out<NvmlMemory>,
) -> CUresult {
    let result = call.forward();
    if result == CUDA_SUCCESS
        && let Some(real) = memory.get()
        && let Some(seen) = seen(p, device, real.total, real.free)
    {
        memory.set(NvmlMemory { total: seen.total, free: seen.free, used: seen.used() });
    }
    result
}

/// nvmlDeviceGetMemoryInfo_v2.
pub fn memory_info_v2(
    p: &'static Process,
    call: &Call<impl Function>,
    device: NvmlDevice,
    memory: Out<NvmlMemory_v2>,
) -> CUresult {
    let result = call.forward();
    if result == CUDA_SUCCESS
        && let Some(real) = memory.get()
        && let Some(seen) = seen(p, device, real.total, real.free)
    {
        let (total, free, used) = (seen.total, seen.free, seen.used());
        memory.set(NvmlMemory_v2 { total, reserved: 0, free, used, ..real });
    }
    result
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
