//! `--simulate`: puts the simulated driver on LD_LIBRARY_PATH under the file names of the real one.

use std::ffi::OsString;

use tempfile::TempDir;
use vramtrace_format::size;
use vramtrace_reader::files;

use super::library;
use crate::error::Failure;

/// One device of 24 GiB.
pub const DEFAULT: &str = "1x24GiB";

/// A private directory with the two libraries and the devices' shared state; removed when dropped.
pub struct Simulated {
    devices: String,
    directory: TempDir,
}

impl Simulated {
    /// `devices` is `NxSIZE`.
    pub fn new(devices: &str) -> Result<Simulated, Failure> {
        check(devices).map_err(|why| Failure::new(format!("--simulate={devices}: {why}")))?;
        let library = library::find(library::SIMULATED)?;
        let links = ["libcuda.so.1", "libnvidia-ml.so.1"].map(|name| (name, &*library));
        let directory = files::temporary_directory("vramtrace-sim-", None, &links)?;
        Ok(Simulated { devices: devices.into(), directory })
    }

    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let path = std::env::var_os("LD_LIBRARY_PATH");
        vec![
            ("LD_LIBRARY_PATH", library::library_path(self.directory.path(), path)),
            ("VRAMTRACE_SIM", self.devices.clone().into()),
            ("VRAMTRACE_SIM_STATE", self.directory.path().join("state").into()),
        ]
    }

    /// Keeps the directory for processes that outlive the command.
    pub fn keep(self) {
        let _ = self.directory.keep();
    }
}

/// An error: why the value of --simulate is wrong, to be printed after it.
fn check(devices: &str) -> Result<(), String> {
    const RIGHT: &str = "write count x size, like 1x24GiB or 2x80GiB";
    let (count, bytes) =
        devices.split_once('x').ok_or_else(|| format!("is not NxSIZE; {RIGHT}"))?;
    if !count.parse::<u32>().is_ok_and(|count| (1..=64).contains(&count)) {
        return Err(format!("`{count}` is no count of devices from 1 to 64; {RIGHT}"));
    }
    size::parse(bytes).map(drop).map_err(|error| format!("`{bytes}` {error}"))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn count_and_size() {
        for good in ["1x24GiB", "8x80g", "64x141GB"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, says) in [
            ("", "NxSIZE"),
            ("24GiB", "NxSIZE"),
            ("0x24GiB", "count"),
            ("65x24GiB", "count"),
            ("2x", "like"),
            ("2x24", "unit"),
        ] {
            let message = check(bad).expect_err(bad);
            assert!(message.contains(says), "{bad}: {message}");
        }
    }
}
