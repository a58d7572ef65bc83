//! The file of an exportable object: its bytes, and a description of it behind them.

use crate::abi::*;
use crate::aperture::{Aperture, HOST, memory_file};
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::system;
use std::ffi::c_void;

pub(crate) const DESCRIPTION: u64 = 0x5349_4d49_5043_0003;

pub(crate) fn map_at(address: Pointer, size: u64, fd: i32, offset: u64) -> Done {
    // SAFETY: the range lies in an aperture or is an object's place in one: whatever was mapped there
    // before is memory of the simulated device, of which nothing holds a reference.
    let got = unsafe {
        libc::mmap(
            address as *mut c_void,
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            fd,
            offset as i64,
        )
    };
    if got == libc::MAP_FAILED { Err(Error::MAP_FAILED) } else { Ok(()) }
}

/// Behind the bytes of an exportable object's file.
#[repr(C)]
pub(crate) struct Description {
    pub magic: u64,
    pub size: u64,
    pub place: u64,
    pub multicast_devices: u64,
    pub prop: AllocationProp,
}

pub(crate) fn describe(fd: i32, at: u64, description: &Description) -> bool {
    let length = size_of::<Description>();
    let from = description as *const Description as *const c_void;
    // SAFETY: it reads the bytes of the description, which outlives the call.
    unsafe { libc::pwrite(fd, from, length, at as i64) == length as isize }
}

/// Moves an exportable object into a memory file, which is mapped at the same address. Returns the file.
pub(crate) fn own_file(
    aperture: &Aperture,
    backing: Pointer,
    size: u64,
    prop: &AllocationProp,
) -> Option<i32> {
    let (fd, _) = memory_file(c"vramtrace-sim-share", size + 4 * KIB)?;
    let place = driver().at(backing).map_or(HOST, |memory| memory.index) as u64;
    let description =
        Description { magic: DESCRIPTION, size, place, multicast_devices: 0, prop: *prop };
    if !describe(fd, size, &description) || map_at(backing, size, fd, 0).is_err() {
        aperture.restore(backing, size);
        system::close(fd);
        return None;
    }
    Some(fd)
}
