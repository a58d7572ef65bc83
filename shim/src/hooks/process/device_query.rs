//! The driver's attributes of a device: UUID, name, size.

use crate::driver::cuda::CUuuid;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::model::devices::Device;
use vramtrace_format::DeviceId;

/// Queries the driver without going through the hooks. `None`: before cuInit, or for a device that does
/// not exist.
pub fn ask(id: DeviceId) -> Option<Device> {
    inside(|| {
        let driver = driver();
        let mut device = 0;
        let mut total = 0;
        let mut name = [0; 256];
        if driver.device_get?(&mut device, id.0.into()) != 0
            || driver.device_total_mem?(&mut total, device) != 0
        {
            return None;
        }
        let gpu = uuid(driver.device_get_uuid, device);
        // The second version names the slice where the first names the whole GPU.
        let own = uuid(driver.device_get_uuid_v2, device).or(gpu)?;
        if let Some(get_name) = driver.device_get_name {
            // SAFETY: `name` has room for so many bytes, and one more.
            unsafe { get_name(name.as_mut_ptr().cast(), name.len() as i32 - 1, device) };
        }
        Some(Device {
            id,
            uuid: own,
            name: text(&name),
            total_bytes: total as u64,
            mig: gpu.is_some_and(|gpu| gpu != own),
        })
    })
}

/// `get` is cuDeviceGetUuid or its second version.
fn uuid(
    get: Option<extern "C-unwind" fn(&mut CUuuid, i32) -> i32>,
    device: i32,
) -> Option<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    (get?(&mut uuid, device) == 0).then_some(uuid.bytes)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_the_first_nul() {
        assert_eq!(text(b"H200\0..."), "H200");
        assert_eq!(text(b"H200"), "H200");
    }
}
