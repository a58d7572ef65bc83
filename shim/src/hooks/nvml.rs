//! NVML's memory info under a cap: the same figures as cuMemGetInfo shows. A process without a
//! context of its own (a monitor) sees the real ones.

use super::info::{Shown, shown};
use crate::driver::cuda::{CUDA_SUCCESS, CUresult, NvmlDevice, NvmlMemory, NvmlMemory_v2};
use crate::hooks::call::Call;
use crate::hooks::state::Process;

/// # Safety
/// As nvmlDeviceGetMemoryInfo.
pub unsafe fn memory_info(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(NvmlDevice, *mut NvmlMemory) -> CUresult>,
    device: NvmlDevice,
    memory: *mut NvmlMemory,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(device, memory) };
    if result == CUDA_SUCCESS
        && !memory.is_null()
        // SAFETY: NVML has written it; the program looks at it after this call.
        && let memory = unsafe { &mut *memory }
        && let Some(seen) = seen(p, device, memory.total, memory.free)
    {
        memory.total = seen.total;
        memory.free = seen.free;
        memory.used = seen.used();
    }
    result
}

/// # Safety
/// As nvmlDeviceGetMemoryInfo_v2.
pub unsafe fn memory_info_v2(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(NvmlDevice, *mut NvmlMemory_v2) -> CUresult>,
    device: NvmlDevice,
    memory: *mut NvmlMemory_v2,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(device, memory) };
    if result == CUDA_SUCCESS
        && !memory.is_null()
        // SAFETY: NVML has written it; the program looks at it after this call.
        && let memory = unsafe { &mut *memory }
        && let Some(seen) = seen(p, device, memory.total, memory.free)
    {
        memory.total = seen.total;
        memory.reserved = 0;
        memory.free = seen.free;
        memory.used = seen.used();
    }
    result
}

/// `None`: NVML's own figures stand.
fn seen(p: &'static Process, handle: NvmlDevice, total: u64, free: u64) -> Option<Shown> {
    if !p.cap.is_set() || !p.contexts.any() {
        return None;
    }
    let device = p.nvml.device_of(&p.devices, handle)?;
    if !p.contexts.any_on(device.id) {
        return None;
    }
    // NVML's total has the driver's own reserve in it; the program is shown one total everywhere.
    let total = total.min(device.total_bytes);
    shown(p, device.id, Shown { total, free })
}
