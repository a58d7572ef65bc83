//! The devices of this process: ordinal, UUID, name, size.

use once_cell::race::OnceRef;
use std::ffi::CString;
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

/// The devices used so far, each queried once. They stay.
pub struct Devices {
    known: [OnceRef<'static, Device>; DeviceId::UNKNOWN.0 as usize],
}

impl Default for Devices {
    fn default() -> Self {
        Devices { known: [const { OnceRef::new() }; DeviceId::UNKNOWN.0 as usize] }
    }
}

impl Devices {
    /// The device, if it is known.
    pub fn known(&self, id: DeviceId) -> Option<&'static Device> {
        self.known.get(id.0 as usize)?.get()
    }

    /// The device. At its first use `ask` queries the driver; `define` is called once for each device,
    /// before a record of this thread names it.
    pub fn get(
        &self,
        id: DeviceId,
        ask: impl FnOnce(DeviceId) -> Option<Device>,
        define: impl FnOnce(&Device),
    ) -> Option<&'static Device> {
        let slot = self.known.get(id.0 as usize)?;
        if slot.get().is_none() {
            // A racing thread's copy is leaked: once.
            let queried = Box::leak(Box::new(ask(id)?));
            if slot.set(queried).is_ok() {
                define(queried);
            }
        }
        slot.get()
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
