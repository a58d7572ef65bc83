//! The CUDA driver and its devices for `doctor`, NVML for `doctor`, `top` and `metrics`. Both libraries are opened at run
//! time, so that the command starts on machines without them.

pub mod nvml;

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

/// A driver or NVML call that failed, or a library that could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", loading(.0))]
    NotFound(libloading::Error),
    #[error("{name}: {}", shown(.name, *.result))]
    Call { name: &'static str, result: c_int },
}

/// Results that tell what to do.
const CUDA: [(c_int, &str); 8] = [
    (3, "CUDA_ERROR_NOT_INITIALIZED"),
    (34, "CUDA_ERROR_STUB_LIBRARY"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (999, "CUDA_ERROR_UNKNOWN"),
];
const NVML: [(c_int, &str); 4] = [
    (4, "no permission"),
    (9, "the driver is not loaded"),
    (15, "the GPU is lost"),
    (18, "the driver's libraries and its kernel module are of different versions"),
];

fn shown(name: &str, result: c_int) -> String {
    let (known, kind) = match name.starts_with("nvml") {
        true => (&NVML[..], "NVML error"),
        false => (&CUDA[..], "error"),
    };
    let known = known.iter().find(|(number, _)| *number == result);
    known.map_or(format!("{kind} {result}"), |(_, text)| format!("{text} ({kind} {result})"))
}

/// The loader's error message with its reason.
pub fn loading(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), |reason| reason.to_string())
}

/// Calls a function of a library by `with`, which returns its result: an error, if it is not 0.
///
/// # Safety
/// `F` is the type of the function with this name.
unsafe fn call<F: Copy>(
    library: &Library,
    name: &'static str,
    with: impl FnOnce(F) -> c_int,
) -> Result<(), Error> {
    // SAFETY: as the caller says.
    let function: F = *unsafe { library.get(name.as_bytes()) }.map_err(Error::NotFound)?;
    match with(function) {
        0 => Ok(()),
        result => Err(Error::Call { name, result }),
    }
}

/// A text that a function writes into so many bytes.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> Result<(), Error>) -> Result<String, Error> {
    let mut bytes = [0u8; 128];
    write(bytes.as_mut_ptr().cast(), bytes.len() as c_uint - 1)?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

#[derive(Clone, Debug)]
pub struct GpuDevice {
    pub ordinal: u32,
    pub name: String,
    pub uuid: [u8; 16],
    pub total_bytes: u64,
}

/// A function that writes what it is asked for of a device.
type Of<T> = extern "C" fn(&mut T, c_int) -> c_int;

/// The version of CUDA that the driver is for (13000 is 13.0), and the visible devices.
pub fn devices() -> Result<(u32, Vec<GpuDevice>), Error> {
    // SAFETY: the driver's initialisers are those that every CUDA program runs.
    let cuda = unsafe { Library::new("libcuda.so.1") }.map_err(Error::NotFound)?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: these are the types that libcuda documents.
    unsafe {
        call(&cuda, "cuInit", |init: extern "C" fn(c_uint) -> c_int| init(0))?;
        type Number = extern "C" fn(&mut c_int) -> c_int;
        call(&cuda, "cuDriverGetVersion", |get: Number| get(&mut version))?;
        call(&cuda, "cuDeviceGetCount", |get: Number| get(&mut count))?;
    }
    let describe = |ordinal| {
        let (mut device, mut uuid, mut total) = (0, [0; 16], 0);
        type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
        // SAFETY: these are the types that libcuda documents; there is room for so many bytes.
        let name = unsafe {
            call(&cuda, "cuDeviceGet", |get: Of<c_int>| get(&mut device, ordinal))?;
            call(&cuda, "cuDeviceGetUuid_v2", |get: Of<[u8; 16]>| get(&mut uuid, device))?;
            call(&cuda, "cuDeviceTotalMem_v2", |get: Of<usize>| get(&mut total, device))?;
            text(|to, room| {
                call(&cuda, "cuDeviceGetName", |get: Name| get(to, room as c_int, device))
            })?
        };
        Ok(GpuDevice { ordinal: ordinal as u32, name, uuid, total_bytes: total as u64 })
    };
    Ok((version as u32, (0..count).map(describe).collect::<Result<_, _>>()?))
}
