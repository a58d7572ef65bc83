//! NVML: what `doctor` checks of it, and what `top` shows of the cards.

#[cfg(feature = "top")]
pub mod cards;

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

use super::Error;

type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type Plain = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;

/// The driver version and device count that NVML reports.
#[derive(Clone, Debug)]
pub struct Nvml {
    pub driver_version: String,
    pub devices: u32,
}

fn open() -> Result<Library, Error> {
    // SAFETY: NVML's initialisers are those that nvidia-smi runs.
    unsafe { Library::new("libnvidia-ml.so.1") }.map_err(Error::NotFound)
}

fn check(name: &'static str, result: c_int) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        result => Err(Error::Nvml { name, result }),
    }
}

pub fn ask() -> Result<Nvml, Error> {
    let library = open()?;
    // SAFETY: the types are those of the library's interface; the text keeps its last NUL.
    unsafe {
        let find = Error::NotFound;
        let init = library.get::<Plain>(b"nvmlInit_v2").map_err(find)?;
        let version = library.get::<Text>(b"nvmlSystemGetDriverVersion").map_err(find)?;
        let count = library.get::<Count>(b"nvmlDeviceGetCount_v2").map_err(find)?;
        let shutdown = library.get::<Plain>(b"nvmlShutdown").map_err(find)?;
        check("nvmlInit_v2", init())?;
        let (mut text, mut devices) = ([0 as c_char; 96], 0);
        let found = check(
            "nvmlSystemGetDriverVersion",
            version(text.as_mut_ptr(), text.len() as c_uint - 1),
        )
        .and_then(|()| check("nvmlDeviceGetCount_v2", count(&mut devices)));
        shutdown();
        found?;
        let driver_version = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
        Ok(Nvml { driver_version, devices })
    }
}
