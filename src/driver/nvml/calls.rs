//! Calls of NVML that its users share. The types are those of its interface, of the versions that the names tell.

use std::ffi::{c_char, c_int, c_uint};

use libloading::{Library, Symbol};

use super::super::Error;

pub type Handle = usize;
type Plain = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type Version = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type HandleAt = unsafe extern "C" fn(c_uint, *mut Handle) -> c_int;
type MemoryOf = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
type ProcessesOf = unsafe extern "C" fn(Handle, *mut c_uint, *mut Process) -> c_int;

const INSUFFICIENT_SIZE: c_int = 7;
/// NVML's value for "not available".
const UNKNOWN_BYTES: u64 = u64::MAX;
/// Entries of a list that are read.
const MOST: usize = 4096;

/// nvmlMemory_v2_t: `used` is without the bytes that the driver reserves, as in nvidia-smi.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memory {
    version: c_uint,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// nvmlProcessInfo_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Process {
    pub pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

impl Process {
    /// `None`: NVML does not say.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.used).filter(|bytes| *bytes != UNKNOWN_BYTES)
    }
}

fn check(name: &'static str, result: c_int) -> Result<(), Error> {
    match result {
        0 => Ok(()),
        result => Err(Error::Nvml { name, result }),
    }
}

/// NVML, initialised.
pub struct Calls {
    library: Library,
}

impl Calls {
    pub fn open() -> Result<Calls, Error> {
        // SAFETY: NVML's initialisers are those that nvidia-smi runs.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.map_err(Error::NotFound)?;
        let calls = Calls { library };
        // SAFETY: the type of the function.
        check("nvmlInit_v2", unsafe { calls.get::<Plain>("nvmlInit_v2")?() })?;
        Ok(calls)
    }

    pub fn shut_down(self) {
        // SAFETY: the type of the function.
        if let Ok(shutdown) = unsafe { self.get::<Plain>("nvmlShutdown") } {
            // SAFETY: as above.
            unsafe { shutdown() };
        }
    }

    /// # Safety
    /// `F` is the type of the function with this name.
    pub unsafe fn get<F>(&self, name: &str) -> Result<Symbol<'_, F>, Error> {
        // SAFETY: as the caller says.
        unsafe { self.library.get(name.as_bytes()) }.map_err(Error::NotFound)
    }

    /// The value that a function writes. `None`: there is no such function, or it fails.
    ///
    /// # Safety
    /// `F` is the type of the function with this name, which `ask` calls.
    pub unsafe fn value<F, T: Default>(
        &self,
        name: &str,
        ask: impl FnOnce(&F, &mut T) -> c_int,
    ) -> Option<T> {
        let mut value = T::default();
        // SAFETY: as the caller says.
        let function = unsafe { self.get::<F>(name).ok()? };
        (ask(&function, &mut value) == 0).then_some(value)
    }

    pub fn driver_version(&self) -> Result<String, Error> {
        let name = "nvmlSystemGetDriverVersion";
        // SAFETY: the type of the function.
        let version = unsafe { self.get::<Version>(name)? };
        // SAFETY: there is room for so many bytes.
        let (result, text) = text(|out, room| unsafe { version(out, room) });
        check(name, result).map(|()| text)
    }

    pub fn count(&self) -> Result<u32, Error> {
        let (name, mut devices) = ("nvmlDeviceGetCount_v2", 0);
        // SAFETY: the type of the function, and a variable of our own.
        check(name, unsafe { self.get::<Count>(name)?(&mut devices) })?;
        Ok(devices)
    }

    pub fn handle(&self, index: u32) -> Option<Handle> {
        let name = "nvmlDeviceGetHandleByIndex_v2";
        // SAFETY: the type of the function.
        unsafe { self.value::<HandleAt, _>(name, |ask, handle| ask(index, handle)) }
    }

    pub fn memory(&self, handle: Handle) -> Option<Memory> {
        let version = 2 << 24 | size_of::<Memory>() as c_uint;
        let mut memory = Memory { version, ..Memory::default() };
        // SAFETY: the type of this version, and a variable of our own.
        let result = unsafe {
            self.get::<MemoryOf>("nvmlDeviceGetMemoryInfo_v2").ok()?(handle, &mut memory)
        };
        (result == 0).then_some(memory)
    }

    /// `kind`: Compute or Graphics. Versions 2 and 3 have the same list. `None`: NVML does not list them.
    pub fn processes(&self, handle: Handle, kind: &str) -> Option<Vec<Process>> {
        let find = |version: &str| {
            let name = format!("nvmlDeviceGet{kind}RunningProcesses_{version}");
            // SAFETY: the type of these two versions.
            unsafe { self.get::<ProcessesOf>(&name).ok() }
        };
        let ask = find("v3").or_else(|| find("v2"))?;
        // SAFETY: the list has room for as many as the count says.
        listed(|count, list| unsafe { ask(handle, count, list) }).ok()
    }
}

/// A text that a function writes into so many bytes, and its result. The text keeps its last NUL.
pub fn text(ask: impl FnOnce(*mut c_char, c_uint) -> c_int) -> (c_int, String) {
    let mut bytes = [0u8; 128];
    let result = ask(bytes.as_mut_ptr().cast(), bytes.len() as c_uint - 1);
    let written = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    (result, String::from_utf8_lossy(written).into_owned())
}

/// A list of NVML: the count goes in as room and comes out as the number of entries. `Err`: NVML's error.
pub fn listed<T: Clone + Default>(
    ask: impl Fn(*mut c_uint, *mut T) -> c_int,
) -> Result<Vec<T>, c_int> {
    let mut list = vec![T::default(); 64];
    for _ in 0..3 {
        let mut count = list.len() as c_uint;
        match ask(&mut count, list.as_mut_ptr()) {
            0 => {
                list.truncate(count as usize);
                return Ok(list);
            }
            // Between two calls there may be more.
            INSUFFICIENT_SIZE => list.resize((count as usize + 16).clamp(64, MOST), T::default()),
            error => return Err(error),
        }
    }
    Err(INSUFFICIENT_SIZE)
}
