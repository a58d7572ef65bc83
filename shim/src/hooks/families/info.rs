//! How much memory there is, as the program sees it: under a cap, the cap's share.

use super::prelude::*;
use crate::hooks::process::refresh::refresh_before_refusal;

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
    p.cap.enforced(device).next()?;
    // Costs a few microseconds, as the driver's own call does. The figures must be those by which the
    // next request is judged.
    refresh_before_refusal(p, device);
    Some(p.cap.enforced(device).fold(driver, |seen, (limit, counted)| seen.under(limit, counted)))
}

/// cuMemGetInfo; the figures of CUDA 2.0 have 32 bits.
pub fn mem_get_info<T: Copy + TryInto<u64> + TryFrom<u64>>(
    call: Call<impl Row>,
    free: Out<T>,
    total: Out<T>,
) -> CUresult {
    let (p, result) = (call.p, call.forward());
    if result == CUDA_SUCCESS && p.cap.is_set() {
        let real = |figure: Out<T>| figure.get().and_then(|figure| figure.try_into().ok());
        let real = Shown { total: real(total).unwrap_or(u64::MAX), free: real(free).unwrap_or(0) };
        let seen = shown(p, current_target(p).device, real).unwrap_or(real);
        for (output, bytes) in [(free, seen.free), (total, seen.total)] {
            if let Ok(bytes) = bytes.try_into() {
                output.set(bytes);
            }
        }
    }
    result
}

/// cuDeviceTotalMem; the figure of CUDA 2.0 has 32 bits.
pub fn device_total_mem<T: Copy + TryInto<u64> + TryFrom<u64>>(
    call: Call<impl Row>,
    bytes: Out<T>,
    device: i32,
) -> CUresult {
    let (p, device) = (call.p, device_id(device));
    gave(call.forward(), bytes, |real| {
        if p.cap.is_set()
            && let Ok(total) = real.try_into()
        {
            let total = p.cap.enforced(device).fold(total, |least, (limit, _)| least.min(limit));
            bytes.set(total.try_into().unwrap_or(real));
        }
    })
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
