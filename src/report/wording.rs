//! Names and formatted figures that several reports use.

use vramtrace_format::{DeviceId, StopReason, SwitchedBy};

use crate::replay::{InUse, OffSpan, State, Stop};
use crate::trace::{Definitions, DeviceInfo};
use crate::units::{seconds, several, size};

/// Of a process whose end is not in its trace, if nothing else tells it.
pub const END_NOT_RECORDED: &str = "its end was not recorded";

/// How a process ended whose exit handlers did not run; `unknown`: where it is not known.
pub fn cut_off(exit_status: Option<i32>, seen: &Option<String>, unknown: &str) -> String {
    let left = exit_status.map(|status| format!("ended by _exit with status {status}"));
    left.or_else(|| seen.clone()).unwrap_or(unknown.into())
}

/// Why the recorder stopped, as a clause.
pub fn stop_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::DiskFull => "the disk is full",
        StopReason::FileSizeLimit => "the file size limit (ulimit -f) is reached",
        StopReason::DescriptorLost => "the trace was deleted, or moved to another directory",
        StopReason::MapFailed => "the trace could not be mapped",
        StopReason::WriteFailed => "the trace could not be written",
        StopReason::Panic => "an internal error of the recorder",
        StopReason::NoTask => "the system made no thread to write the trace with",
        StopReason::CannotPunch => {
            "VRAMTRACE_MAX is reached and all that is there must stay; totals go on"
        }
    }
}

/// The reason, with the text of errno if there is one.
pub fn stop_text(stop: &Stop) -> String {
    let reason = stop_reason(stop.reason);
    match stop.errno {
        0 => reason.to_string(),
        errno => {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("{reason} ({text})")
        }
    }
}

/// What switched the recording off. The end of a process never does: it stands for a pause of the recorder.
pub fn switched_by(by: SwitchedBy) -> &'static str {
    match by {
        SwitchedBy::Order => "vramtrace record",
        SwitchedBy::HostFile => "the file that switches it off on the host",
        SwitchedBy::End => "no thread could write the trace",
    }
}

/// How many times without recording are listed.
const OFF_LISTED: usize = 3;

/// That samples were recorded, how many, and what that means. `None` where all blocks were.
pub fn sampling(state: &State) -> Option<String> {
    let sampling = state.sampling?;
    let each = match sampling.rate_bytes {
        0 => String::new(),
        rate => format!(", one for each {} of blocks on average", size(rate)),
    };
    let mut text = format!(
        "samples of PyTorch's blocks were recorded{each}: totals are exact, bytes of its lines are estimates ± their \
         standard error"
    );
    if sampling.highest_rate_bytes > sampling.least_rate_bytes {
        let [cost, bound] =
            [sampling.cost_share, sampling.bound_share].map(|of| f64::from(of) / 1e4);
        let least = size(sampling.least_rate_bytes);
        text.push_str(&format!(
            "; fewer than the one for {least} of the start: the recorder took {cost:.2} % of the time, above {bound} %"
        ));
    }
    Some(text)
}

/// The times in which the recording was switched off, and what that means.
pub fn off_lines(off: &[OffSpan], running: bool) -> Vec<String> {
    let line = |span: &OffSpan| {
        let until = match (span.until_ns, running) {
            (Some(until), _) => format!("to {}", seconds(until)),
            (None, true) => "on, and is off".to_string(),
            (None, false) => "to the end".to_string(),
        };
        let end = if span.until_end { ", the end" } else { "" };
        let (from, by) = (seconds(span.from_ns), switched_by(span.by));
        format!(
            "the recording was off from {from} {until}{end} ({by}): events of that time are missing; its totals and \
             refusals are counted, and a cap went on"
        )
    };
    let more = off.len().saturating_sub(OFF_LISTED) as u64;
    let more = (more > 0).then(|| format!("it was off {} more", several(more, "time")));
    off.iter().take(OFF_LISTED).map(line).chain(more).collect()
}

/// What the headline of a process's memory counts.
pub fn headline_name(of: &InUse) -> &'static str {
    of.in_nvidia_smi().map_or("recorded", |_| "in nvidia-smi")
}

/// Bytes of pinned host memory from which reports name it.
pub const MUCH_PINNED: u64 = 64 << 20;

/// `6.80 GiB in nvidia-smi`, which does not show managed memory: it is named beside it. Where NVML has no figure of the process,
/// `6.21 GiB recorded`.
pub fn headline(of: &InUse) -> String {
    let beside = of.in_nvidia_smi().map_or(0, |_| of.managed);
    let beside = (beside > 0).then(|| format!(" and {} of managed memory", size(beside)));
    format!("{} {}{}", size(of.headline()), headline_name(of), beside.unwrap_or_default())
}

/// `GPU 0`, `unknown device`.
pub fn gpu_name(device: DeviceId) -> String {
    numbered("GPU ", device)
}

/// `cuda:3`, `unknown device`: as PyTorch names it.
pub(crate) fn cuda_name(device: DeviceId) -> String {
    numbered("cuda:", device)
}

/// `device 0`, `unknown device`: with the number behind a word.
pub fn numbered(word: &str, device: DeviceId) -> String {
    match device {
        DeviceId::UNKNOWN => UNKNOWN_DEVICE.to_string(),
        id => format!("{word}{}", id.0),
    }
}

const UNKNOWN_DEVICE: &str = "unknown device";

/// The product name that the driver reports.
pub fn device_name(id: DeviceId, definitions: &Definitions) -> String {
    described(definitions.device(id), id)
}

/// As [`device_name`], from a definition that may be missing.
pub fn described(info: Option<&DeviceInfo>, id: DeviceId) -> String {
    match info {
        Some(device) => device.name.clone(),
        None if id == DeviceId::UNKNOWN => UNKNOWN_DEVICE.to_string(),
        None => "device without a description".to_string(),
    }
}

/// The name of a CUresult that memory functions return, or `CUresult N`.
pub fn cuda_result(code: i32) -> String {
    let name = match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        999 => "CUDA_ERROR_UNKNOWN",
        code => return format!("CUresult {code}"),
    };
    name.to_string()
}

/// A duration in the unit that suits it: `1.5 ms`, `9.0 s`, `12.5 min`, `3.2 h`, `5.1 days`.
pub fn age(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match seconds {
        0.0 => "0 s".to_string(),
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// Time for which there is one value: `1.0 s`, or `1.0 s to 2.3 h`.
pub fn resolution(finest_ns: u64, coarsest_ns: u64) -> String {
    match (age(finest_ns), age(coarsest_ns)) {
        (finest, coarsest) if finest == coarsest => finest,
        (finest, coarsest) => format!("{finest} to {coarsest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_the_unit_that_suits_them() {
        let text = [0, 1_500_000, 9_000_000_000, 750_000_000_000, 11_520_000_000_000].map(age);
        assert_eq!(text, ["0 s", "1.5 ms", "9.0 s", "12.5 min", "3.2 h"]);
        assert_eq!(age(5 * 86_400_000_000_000), "5.0 days");
    }

    #[test]
    fn an_unknown_device_has_no_ordinal() {
        assert_eq!([DeviceId(3), DeviceId::UNKNOWN].map(cuda_name), ["cuda:3", "unknown device"]);
    }
}
