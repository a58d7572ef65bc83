//! Values that several tables have.

use vramtrace_format::DeviceId;

use crate::analysis::Level;

/// `None`: not known.
pub(super) fn ordinal(device: DeviceId) -> Option<u32> {
    (device != DeviceId::UNKNOWN).then_some(u32::from(device.0))
}

pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Driver => "driver",
        Level::Tensor => "block",
    }
}
