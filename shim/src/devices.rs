//! The devices as this process sees them: ordinal, UUID, name, size.

use crate::entry::cuda::CUuuid;
use crate::entry::{driver, inside};
use std::ffi::CString;
use std::fmt::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use vramtrace_format::{Definition, DeviceId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: DeviceId,
    pub uuid: [u8; 16],
    pub name: String,
    pub total_bytes: u64,
    /// A slice of a GPU (MIG), with a UUID of its own.
    pub mig: bool,
}

impl Device {
    /// Asks the driver, past our own hooks. `None`: it cannot tell yet (before cuInit), or there
    /// is no such device.
    pub fn ask(id: DeviceId) -> Option<Device> {
        inside(|| {
            let driver = driver();
            let mut device = 0;
            let mut total = 0;
            let mut name = [0; 256];
            // SAFETY: each call has room for its answer.
            unsafe {
                if driver.device_get?(&mut device, id.0.into()) != 0
                    || driver.device_total_mem?(&mut total, device) != 0
                {
                    return None;
                }
                let gpu = uuid(driver.device_get_uuid, device);
                // The second version names the slice where the first names the whole GPU.
                let own = uuid(driver.device_get_uuid_v2, device).or(gpu)?;
                if let Some(get_name) = driver.device_get_name {
                    get_name(name.as_mut_ptr().cast(), name.len() as i32 - 1, device);
                }
                Some(Device {
                    id,
                    uuid: own,
                    name: text(&name),
                    total_bytes: total as u64,
                    mig: gpu.is_some_and(|gpu| gpu != own),
                })
            }
        })
    }

    pub fn definition(&self) -> Definition {
        Definition::Device {
            id: self.id,
            uuid: self.uuid,
            name: self.name.clone(),
            total_bytes: self.total_bytes,
            mig: self.mig,
        }
    }

    /// As NVML writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
    pub fn nvml_name(&self) -> CString {
        let mut text = String::from(if self.mig { "MIG-" } else { "GPU-" });
        for (n, byte) in self.uuid.iter().enumerate() {
            if [4, 6, 8, 10].contains(&n) {
                text.push('-');
            }
            let _ = write!(text, "{byte:02x}");
        }
        CString::new(text).unwrap_or_default()
    }
}

/// # Safety
/// `get` is cuDeviceGetUuid or its second version.
unsafe fn uuid(
    get: Option<unsafe extern "C-unwind" fn(*mut CUuuid, i32) -> i32>,
    device: i32,
) -> Option<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: room for the answer.
    (unsafe { get?(&mut uuid, device) } == 0).then_some(uuid.bytes)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Devices that were met, each asked for once.
pub struct Devices {
    met: [AtomicPtr<Device>; DeviceId::UNKNOWN.0 as usize],
}

impl Default for Devices {
    fn default() -> Self {
        Devices { met: [const { AtomicPtr::new(null_mut()) }; DeviceId::UNKNOWN.0 as usize] }
    }
}

impl Devices {
    /// The device, if it was met before.
    pub fn known(&self, id: DeviceId) -> Option<&Device> {
        let met = self.met.get(id.0 as usize)?.load(Ordering::Acquire);
        // SAFETY: what is stored there lives as long as the process's state.
        unsafe { met.as_ref() }
    }

    /// The device; `define` is called once for each, before anyone else sees it through
    /// [`Devices::known`] in a record of this thread.
    pub fn get(&self, id: DeviceId, define: impl FnOnce(&Device)) -> Option<&Device> {
        if let Some(known) = self.known(id) {
            return Some(known);
        }
        let slot = self.met.get(id.0 as usize)?;
        let asked = Box::into_raw(Box::new(Device::ask(id)?));
        // SAFETY: either ours, or the winner's, which is never freed.
        unsafe {
            match slot.compare_exchange(null_mut(), asked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    define(&*asked);
                    Some(&*asked)
                }
                Err(winner) => {
                    drop(Box::from_raw(asked));
                    Some(&*winner)
                }
            }
        }
    }

    /// The met device that NVML calls by this UUID text.
    pub fn by_nvml_name(&self, name: &[u8]) -> Option<&Device> {
        self.all().find(|device| device.nvml_name().as_bytes().eq_ignore_ascii_case(name))
    }

    pub fn all(&self) -> impl Iterator<Item = &Device> {
        (0..DeviceId::UNKNOWN.0).filter_map(|n| self.known(DeviceId(n)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_nvml_writes_them() {
        let mut device = Device {
            id: DeviceId(0),
            uuid: std::array::from_fn(|n| n as u8 * 16 + 1),
            name: text(b"H200\0..."),
            total_bytes: 1,
            mig: false,
        };
        assert_eq!(device.name, "H200");
        let name = device.nvml_name();
        assert_eq!(name.to_bytes(), b"GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
        device.mig = true;
        assert!(device.nvml_name().to_bytes().starts_with(b"MIG-0111"));
    }
}
