//! The simulated devices: how many, how large, which of them this process sees.

use crate::abi::{GIB, KIB, MIB};
use crate::error::{Done, Error};
use crate::shared::{MAX_DEVICES, Shared, StateError};
use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) const NAME: &str = "Simulated NVIDIA H200";
/// The newest that the table has functions of.
pub(crate) const DRIVER_VERSION: i32 = 13040;
pub(crate) const SM_COUNT: u64 = 132;
pub(crate) const THREADS_PER_SM: u64 = 2048;
/// What NVML counts above what CUDA calls the total.
pub(crate) const RESERVED: u64 = 615 * MIB;

pub(crate) struct Devices {
    pub count: usize,
    pub bytes: u64,
    /// Which device an ordinal of this process is.
    pub visible: Vec<usize>,
    pub shared: Shared,
}

/// There are no devices: see [`devices`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoDevices;

/// A variable of the environment is wrong, or a file that it names.
#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error(transparent)]
    Spec(#[from] BadSpec),
    #[error(transparent)]
    State(#[from] StateError),
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "VRAMTRACE_SIM={spec}: want NxSIZE such as 2x24GiB, with 1 to {} devices of 1GiB to 512GiB \
     (MiB, GiB, MB, GB; decimals are allowed)",
    MAX_DEVICES
)]
struct BadSpec {
    spec: String,
}

/// The devices. What is wrong with the environment is printed, once.
pub(crate) fn devices() -> Result<&'static Devices, NoDevices> {
    static DEVICES: OnceLock<Result<Devices, SetupError>> = OnceLock::new();
    let made = DEVICES.get_or_init(|| {
        let made = from_environment();
        if let Err(error) = &made {
            eprintln!("vramtrace-sim: {error}");
        }
        made
    });
    made.as_ref().map_err(|_| NoDevices)
}

fn from_environment() -> Result<Devices, SetupError> {
    let spec = std::env::var("VRAMTRACE_SIM").unwrap_or_default();
    let (count, bytes) = parse_spec(&spec)?;
    let listed = std::env::var("CUDA_VISIBLE_DEVICES").map(|list| parse_visible(&list, count));
    let visible = listed.unwrap_or_else(|_| (0..count).collect());
    let state = std::env::var_os("VRAMTRACE_SIM_STATE").filter(|path| !path.is_empty());
    let shared = Shared::open(state.map(PathBuf::from).as_deref(), count, bytes)?;
    Ok(Devices { count, bytes, visible, shared })
}

/// `NxSIZE`, for example 2x24GiB; empty: 1x24GiB.
fn parse_spec(spec: &str) -> Result<(usize, u64), BadSpec> {
    if spec.is_empty() {
        return Ok((1, 24 * GIB));
    }
    let wrong = || BadSpec { spec: spec.into() };
    let (count, size) = spec.split_once('x').ok_or_else(wrong)?;
    let count: usize = count.trim().parse().map_err(|_| wrong())?;
    let size = size.trim();
    let digits = size.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(size.len());
    let number: f64 = size[..digits].parse().map_err(|_| wrong())?;
    let unit = match size[digits..].trim().to_ascii_lowercase().as_str() {
        "g" | "gib" => GIB,
        "m" | "mib" => MIB,
        "gb" => 1_000_000_000,
        "mb" => 1_000_000,
        _ => return Err(wrong()),
    };
    let bytes = (number * unit as f64) as u64 / (4 * KIB) * (4 * KIB);
    if !(1..=MAX_DEVICES).contains(&count) || !(GIB..=512 * GIB).contains(&bytes) {
        return Err(wrong());
    }
    Ok((count, bytes))
}

/// As the driver reads CUDA_VISIBLE_DEVICES: ordinals or the beginnings of UUIDs, up to the first
/// that is not there; a device named twice hides all.
fn parse_visible(list: &str, count: usize) -> Vec<usize> {
    let mut visible = Vec::new();
    for item in list.split(',').map(str::trim) {
        let found = match item.parse::<usize>() {
            Ok(ordinal) => Some(ordinal).filter(|&ordinal| ordinal < count),
            Err(_) => item.strip_prefix("GPU-").filter(|rest| !rest.is_empty()).and_then(|_| {
                let mut fits = (0..count).filter(|&index| uuid_text(index).starts_with(item));
                fits.next().filter(|_| fits.next().is_none())
            }),
        };
        match found {
            Some(index) if visible.contains(&index) => return Vec::new(),
            Some(index) => visible.push(index),
            None => break,
        }
    }
    visible
}

pub(crate) fn uuid(index: usize) -> [u8; 16] {
    let mut bytes = *b"\x5f\x1a\x20\x0e\xc3\x7d\x4b\x61\x9a\x52\x76\x72\x61\x6d\x00\x00";
    // First as well as last, so that the beginning of a UUID is enough to name a device.
    bytes[3] = bytes[3].wrapping_add(index as u8);
    bytes[15] = index as u8;
    bytes
}

pub(crate) fn uuid_text(index: usize) -> String {
    let hex: String = uuid(index).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The device behind an ordinal of this process.
pub(crate) fn by_ordinal(ordinal: i32) -> Done<usize> {
    let devices = devices().map_err(|_| Error::NO_DEVICE)?;
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| devices.visible.get(ordinal).copied())
        .ok_or(Error::INVALID_DEVICE)
}

/// The ordinal of a device in this process.
pub(crate) fn ordinal(index: usize) -> i32 {
    devices()
        .ok()
        .and_then(|devices| devices.visible.iter().position(|&other| other == index))
        .map_or(-1, |ordinal| ordinal as i32)
}

/// CUdevice_attribute as an H200 answers it: those that the recorder and the clients of the tests ask for.
pub(crate) fn attribute(attribute: i32) -> Option<i32> {
    let setting = std::env::var_os("VRAMTRACE_SIM_NVML");
    let is_exclusive = setting.is_some_and(|value| value == "strangers-exclusive");
    Some(match attribute {
        16 => SM_COUNT as i32,
        // EXCLUSIVE_PROCESS, or the default.
        20 => 3 * i32::from(is_exclusive),
        39 => THREADS_PER_SM as i32,
        // Compute capability 9.0; memory pools.
        75 => 9,
        76 => 0,
        115 => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        assert_eq!(parse_spec(""), Ok((1, 24 * GIB)));
        assert_eq!(parse_spec("8x141GiB"), Ok((8, 141 * GIB)));
        assert_eq!(parse_spec("2x1.5g"), Ok((2, 1536 * MIB)));
        assert_eq!(parse_spec("1x24GB"), Ok((1, 24_000_000_000 / 4096 * 4096)));
        for wrong in ["24GiB", "0x24GiB", "17x24GiB", "1x24", "1x0GiB", "1x1TiB", "x", "1x-2GiB"] {
            let line = parse_spec(wrong).unwrap_err().to_string();
            assert!(line.contains(wrong) && line.contains("2x24GiB"), "{line}");
        }
    }

    #[test]
    fn visible_devices() {
        assert_eq!(parse_visible("1,0", 3), [1, 0]);
        assert_eq!(parse_visible("2,7,1", 3), [2]);
        assert_eq!(parse_visible("1,1", 3), [0usize; 0]);
        assert_eq!(parse_visible("", 3), [0usize; 0]);
        assert_eq!(parse_visible("-1", 3), [0usize; 0]);
        assert_eq!(parse_visible(&uuid_text(2), 3), [2]);
        assert_eq!(parse_visible(&uuid_text(1)[..12], 3), [1]);
        assert_eq!(parse_visible("GPU-", 1), [0usize; 0]);
    }
}
