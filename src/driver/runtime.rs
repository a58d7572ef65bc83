//! The CUDA runtime that the loader finds: programs that are linked to it need a driver of its version.

use std::ffi::c_int;

use libloading::Library;

/// The newest first.
const NAMES: [&str; 4] =
    ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"];

#[derive(Clone, Debug)]
pub struct Runtime {
    pub library: String,
    /// 13000 is CUDA 13.0.
    pub version: u32,
}

/// `None`: there is none in the directories of the loader. PyTorch's wheels bring their own.
pub fn find() -> Option<Runtime> {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    NAMES.iter().find_map(|name| {
        // SAFETY: its initialisers are those that every program of the runtime runs.
        let library = unsafe { Library::new(*name) }.ok()?;
        let mut version = 0;
        // SAFETY: the type is that of the library's interface, which writes the number.
        let result = unsafe {
            let get = library.get::<Version>(b"cudaRuntimeGetVersion").ok()?;
            get(&mut version)
        };
        let version = u32::try_from(version).ok().filter(|_| result == 0)?;
        Some(Runtime { library: name.to_string(), version })
    })
}
