//! Words and figures that both reports use.

use vramtrace_format::{DeviceId, PoolId, RefusedBy, StopReason};

use crate::replay::{Live, Stop};
use crate::trace::Definitions;

pub fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::DiskFull => "the disk is full",
        StopReason::FileSizeLimit => "the file size limit (ulimit -f) is reached",
        StopReason::DescriptorLost => "the program closed or reused the trace's descriptor",
        StopReason::MapFailed => "the trace could not be mapped",
        StopReason::WriteFailed => "the trace could not be written",
        StopReason::Panic => "an internal error of the recorder",
        StopReason::CannotPunch => {
            "VRAMTRACE_MAX is reached and the filesystem cannot punch holes; totals went on"
        }
    }
}

/// The reason with the system's own words, where there are some.
pub fn stop_text(stop: &Stop) -> String {
    let reason = stop_reason(stop.reason);
    match stop.errno {
        0 => reason.to_string(),
        errno => format!("{reason} ({})", std::io::Error::from_raw_os_error(errno)),
    }
}

pub fn refused_by(by: RefusedBy) -> &'static str {
    match by {
        RefusedBy::Driver => "driver",
        RefusedBy::Cap => "cap",
        RefusedBy::BadCap => "unreadable cap",
    }
}

pub fn device_name(id: DeviceId, definitions: &Definitions) -> String {
    match definitions.device(id) {
        Some(device) => device.name.clone(),
        None if id == DeviceId::UNKNOWN => "unknown device".to_string(),
        None => "device without a description".to_string(),
    }
}

/// Raw stream handle, by name where it has one.
pub fn stream(handle: u64) -> String {
    match handle {
        0 => "default".to_string(),
        1 => "legacy".to_string(),
        2 => "per-thread".to_string(),
        handle => format!("{handle:#x}"),
    }
}

/// `pool 2, stream default` for stream-ordered allocations; empty for the others.
pub fn place(live: &Live, definitions: &Definitions) -> String {
    if live.pool == PoolId(0) {
        return String::new();
    }
    let handle = definitions.site(live.site).map_or(0, |site| site.stream);
    format!("pool {}, stream {}", live.pool.0, stream(handle))
}

/// The names of the CUresults that memory calls give.
pub fn cuda_result(code: i32) -> String {
    let name = match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        4 => "CUDA_ERROR_DEINITIALIZED",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        304 => "CUDA_ERROR_OPERATING_SYSTEM",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        900 => "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        999 => "CUDA_ERROR_UNKNOWN",
        code => return format!("CUresult {code}"),
    };
    name.to_string()
}
