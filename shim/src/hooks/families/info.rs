//! How much memory there is, as the program sees it: under a cap, the cap's share.

use crate::driver::cuda::{CUDA_SUCCESS, CUresult};
use crate::driver::param::Out;
use crate::hooks::call::{Call, Function};
use crate::hooks::process::refresh::refresh_before_refusal;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::target::device_id;
use vramtrace_format::DeviceId;

/// Device bytes as shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub total: u64,
    pub free: u64,
}

impl Shown {
    pub fn used(self) -> u64 {
        self.total - self.free
    }

    /// The figures that a program sees under `limit`, of which `counted` bytes are in use.
    pub fn under(self, limit: u64, counted: u64) -> Shown {
        let total = self.total.min(limit);
        let free = self.free.min(limit.saturating_sub(counted));
        Shown { total, free: free.min(total) }
    }
}

/// The figures of a device under its cap; `None` without one.
pub fn shown(p: &'static Process, device: DeviceId, driver: Shown) -> Option<Shown> {
    let own = p.cap.enforced(device);
    if own.is_none() && p.cap.enforced_by_group(device).is_none() {
        return None;
    }
    // Costs a few microseconds, as the driver's own call does. The figures must be those by which the
    // next request is judged.
    refresh_before_refusal(p, device);
    let own = own.map(|limit| (limit, p.cap.counted(device, p.ledger.live(device))));
    let group = p.cap.enforced_by_group(device);
    let under = |seen: Shown, (limit, counted)| seen.under(limit, counted);
    Some(own.into_iter().chain(group).fold(driver, under))
}

/// cuMemGetInfo.
pub fn mem_get_info(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Out<usize>, Out<usize>) -> CUresult>,
    free: Out<usize>,
    total: Out<usize>,
) -> CUresult {
    if !p.cap.is_set() {
        return call.forward();
    }
    let (mut real_free, mut real_total) = (0, 0);
    // SAFETY: both places outlive the call.
    let result = unsafe { call.real_with((Out::to(&mut real_free), Out::to(&mut real_total))) };
    if result == CUDA_SUCCESS {
        let driver = Shown { total: real_total as u64, free: real_free as u64 };
        let seen = shown(p, current_target(p).device, driver).unwrap_or(driver);
        free.set(seen.free as usize);
        total.set(seen.total as usize);
    }
    result
}

/// cuMemGetInfo of CUDA 2.0.
pub fn mem_get_info_v1(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Out<u32>, Out<u32>) -> CUresult>,
    free: Out<u32>,
    total: Out<u32>,
) -> CUresult {
    if !p.cap.is_set() {
        return call.forward();
    }
    let (mut real_free, mut real_total) = (0, 0);
    // SAFETY: both places outlive the call.
    let result = unsafe { call.real_with((Out::to(&mut real_free), Out::to(&mut real_total))) };
    if result == CUDA_SUCCESS {
        let driver = Shown { total: real_total.into(), free: real_free.into() };
        let seen = shown(p, current_target(p).device, driver).unwrap_or(driver);
        free.set(seen.free as u32);
        total.set(seen.total as u32);
    }
    result
}

/// The whole device, as the program is shown it.
fn total_shown(p: &'static Process, device: i32, total: u64) -> u64 {
    let device = device_id(device);
    let group = p.cap.enforced_by_group(device).map(|(limit, _)| limit);
    p.cap.enforced(device).into_iter().chain(group).fold(total, u64::min)
}

/// cuDeviceTotalMem.
pub fn device_total_mem(
    p: &'static Process,
    call: &Call<impl Function>,
    bytes: Out<usize>,
    device: i32,
) -> CUresult {
    let result = call.forward();
    if result == CUDA_SUCCESS
        && p.cap.is_set()
        && let Some(real) = bytes.get()
    {
        bytes.set(total_shown(p, device, real as u64) as usize);
    }
    result
}

/// cuDeviceTotalMem of CUDA 2.0.
pub fn device_total_mem_v1(
    p: &'static Process,
    call: &Call<impl Function>,
    bytes: Out<u32>,
    device: i32,
) -> CUresult {
    let result = call.forward();
    if result == CUDA_SUCCESS
        && p.cap.is_set()
        && let Some(real) = bytes.get()
    {
        bytes.set(total_shown(p, device, real.into()) as u32);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: Shown = Shown { total: 100, free: 90 };

    #[test]
    fn total_and_free_are_the_caps_share() {
        assert_eq!(DRIVER.under(40, 15), Shown { total: 40, free: 25 });
        assert_eq!(DRIVER.under(40, 15).used(), 15);
        assert_eq!(DRIVER.under(1000, 0), DRIVER);
    }

    #[test]
    fn free_is_never_more_than_the_drivers_own_nor_below_zero() {
        let crowded = Shown { total: 100, free: 5 };
        assert_eq!(crowded.under(40, 15), Shown { total: 40, free: 5 });
        assert_eq!(DRIVER.under(40, 50), Shown { total: 40, free: 0 });
        assert_eq!(DRIVER.under(40, 50).used(), 40);
    }
}
