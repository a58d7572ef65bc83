//! The devices of this process: ordinal, UUID, name, size.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use vramtrace_format::{Definition, DeviceId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub id: DeviceId,
    pub uuid: [u8; 16],
    pub name: String,
    pub total_bytes: u64,
    /// A slice of a GPU (MIG), with its own UUID.
    pub mig: bool,
}

impl Device {
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
        CString::new(vramtrace_format::uuid::text(&self.uuid, self.mig)).unwrap_or_default()
    }
}

/// The devices used so far, each queried once.
pub struct Devices {
    known: [AtomicPtr<Device>; DeviceId::UNKNOWN.0 as usize],
}

impl Default for Devices {
    fn default() -> Self {
        Devices { known: [const { AtomicPtr::new(null_mut()) }; DeviceId::UNKNOWN.0 as usize] }
    }
}

impl Devices {
    /// The device, if it is known.
    pub fn known(&self, id: DeviceId) -> Option<&Device> {
        let known = self.known.get(id.0 as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or a device that lives as long as the process's state.
        unsafe { known.as_ref() }
    }

    /// The device. At its first use `ask` queries the driver; `define` is called once for each device,
    /// before a record of this thread names it.
    pub fn get(
        &self,
        id: DeviceId,
        ask: impl FnOnce(DeviceId) -> Option<Device>,
        define: impl FnOnce(&Device),
    ) -> Option<&Device> {
        if let Some(known) = self.known(id) {
            return Some(known);
        }
        let slot = self.known.get(id.0 as usize)?;
        let queried = Box::into_raw(Box::new(ask(id)?));
        // SAFETY: either ours, or the winner's, which is never freed.
        unsafe {
            match slot.compare_exchange(null_mut(), queried, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    define(&*queried);
                    Some(&*queried)
                }
                Err(winner) => {
                    drop(Box::from_raw(queried));
                    Some(&*winner)
                }
            }
        }
    }

    /// The known device with this UUID in NVML's form.
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
            name: "H200".into(),
            total_bytes: 1,
            mig: false,
        };
        let name = device.nvml_name();
        assert_eq!(name.to_bytes(), b"GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
        device.mig = true;
        assert!(device.nvml_name().to_bytes().starts_with(b"MIG-0111"));
    }
}
