//! A client of the CUDA driver API for `doctor`. libcuda is opened at run time, so that the command
//! starts on machines without it.

pub mod nvml;

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library;

type CUresult = c_int;

/// A driver or NVML call that failed, or a library that could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}", loading(.0))]
    NotFound(libloading::Error),
    #[error("{name}: {}", shown(*.result))]
    Call { name: &'static str, result: CUresult },
    #[error("{name}: {}", nvml_error(*.result))]
    Nvml { name: &'static str, result: c_int },
}

fn shown(result: CUresult) -> String {
    match result_name(result) {
        Some(known) => format!("{known} ({result})"),
        None => format!("error {result}"),
    }
}

/// An error of NVML by name, where it tells what to do.
fn nvml_error(result: c_int) -> String {
    let name = match result {
        4 => "no permission",
        9 => "the driver is not loaded",
        15 => "the GPU is lost",
        18 => "the driver's libraries and its kernel module are of different versions",
        _ => return format!("NVML error {result}"),
    };
    format!("{name} (NVML error {result})")
}

/// The loader's error message with its reason.
pub fn loading(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), |reason| reason.to_string())
}

/// Names of the common error codes of the driver.
fn result_name(result: CUresult) -> Option<&'static str> {
    Some(match result {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        34 => "CUDA_ERROR_STUB_LIBRARY",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        999 => "CUDA_ERROR_UNKNOWN",
        _ => return None,
    })
}

/// A function of the driver, with its name.
struct Function<F> {
    name: &'static str,
    call: F,
}

impl<F: Copy> Function<F> {
    fn check(&self, with: impl FnOnce(F) -> CUresult) -> Result<(), Error> {
        match with(self.call) {
            0 => Ok(()),
            result => Err(Error::Call { name: self.name, result }),
        }
    }
}

/// Declares the driver functions that are called: one field each, looked up by name.
macro_rules! functions {
    ($($field:ident = $symbol:literal $unsafe:tt ( $($arg:ty),* );)*) => {
        struct Functions { $($field: Function<function!($unsafe $($arg),*)>,)* }

        impl Functions {
            /// # Safety
            /// The library is libcuda, or one that declares these functions as it does.
            unsafe fn find(library: &Library) -> Result<Functions, Error> {
                // SAFETY: these are the types that libcuda documents. The safe ones check every number,
                // and write only where references lead.
                unsafe {
                    Ok(Functions {
                        $($field: Function {
                            name: $symbol,
                            call: *library.get($symbol.as_bytes()).map_err(Error::NotFound)?,
                        },)*
                    })
                }
            }
        }
    };
}

macro_rules! function {
    (safe $($arg:ty),*) => { extern "C" fn($($arg),*) -> CUresult };
    (unsafe $($arg:ty),*) => { unsafe extern "C" fn($($arg),*) -> CUresult };
}

functions! {
    init = "cuInit" safe (c_uint);
    version = "cuDriverGetVersion" safe (&mut c_int);
    count = "cuDeviceGetCount" safe (&mut c_int);
    device = "cuDeviceGet" safe (&mut c_int, c_int);
    name = "cuDeviceGetName" unsafe (*mut c_char, c_int, c_int);
    uuid = "cuDeviceGetUuid_v2" safe (&mut [u8; 16], c_int);
    total = "cuDeviceTotalMem_v2" safe (&mut usize, c_int);
}

pub struct Driver {
    functions: Functions,
    /// Keeps the function pointers valid.
    _library: Library,
}

#[derive(Clone, Debug, Default)]
pub struct GpuDevice {
    pub ordinal: u32,
    pub name: String,
    pub uuid: [u8; 16],
    pub total_bytes: u64,
}

impl Driver {
    /// Opens libcuda.so.1 and initialises it.
    pub fn open() -> Result<Driver, Error> {
        // SAFETY: the driver's initialisers are those that every CUDA program runs.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(Error::NotFound)?;
        // SAFETY: the name says that it is the driver.
        let functions = unsafe { Functions::find(&library)? };
        functions.init.check(|call| call(0))?;
        Ok(Driver { functions, _library: library })
    }

    /// 13000 is CUDA 13.0.
    pub fn version(&self) -> Result<u32, Error> {
        let mut version = 0;
        self.functions.version.check(|call| call(&mut version))?;
        Ok(version as u32)
    }

    pub fn devices(&self) -> Result<Vec<GpuDevice>, Error> {
        let mut count = 0;
        self.functions.count.check(|call| call(&mut count))?;
        (0..count).map(|ordinal| self.describe(ordinal)).collect()
    }

    fn describe(&self, ordinal: c_int) -> Result<GpuDevice, Error> {
        let (mut device, mut name, mut uuid, mut total) = (0, [0u8; 128], [0; 16], 0);
        let room = name.len() as c_int - 1;
        let functions = &self.functions;
        functions.device.check(|call| call(&mut device, ordinal))?;
        // SAFETY: there is room for so many bytes.
        functions.name.check(|call| unsafe { call(name.as_mut_ptr().cast(), room, device) })?;
        functions.uuid.check(|call| call(&mut uuid, device))?;
        functions.total.check(|call| call(&mut total, device))?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(GpuDevice {
            ordinal: ordinal as u32,
            name: name.to_string_lossy().into_owned(),
            uuid,
            total_bytes: total as u64,
        })
    }
}
