//! Calls that ask about devices and the driver.

use crate::abi::*;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use std::ffi::{CStr, c_char, c_void};

unsafe fn put<T>(out: *mut T, value: T) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { out.write(value) };
    Ok(())
}

pub unsafe fn driver_version(out: *mut i32) -> Done {
    unsafe { put(out, device::DRIVER_VERSION) }
}

pub unsafe fn count(out: *mut i32) -> Done {
    unsafe { put(out, driver().devices.visible.len() as i32) }
}

pub unsafe fn get(out: *mut i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put(out, ordinal) }
}

unsafe fn put_text(out: *mut c_char, length: i32, text: &str) -> Done {
    if out.is_null() || length <= 0 {
        return Err(Error::INVALID_VALUE);
    }
    let fits = text.len().min(length as usize - 1);
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out as *mut u8, fits);
        *out.add(fits) = 0;
    }
    Ok(())
}

pub unsafe fn name(out: *mut c_char, length: i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put_text(out, length, device::NAME) }
}

pub unsafe fn uuid(out: *mut Uuid, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    unsafe { put(out, Uuid(device::uuid(index))) }
}

pub unsafe fn luid(_out: *mut c_char, _mask: *mut u32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    // Windows only.
    Err(Error::NOT_SUPPORTED)
}

pub unsafe fn total(out: *mut usize, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put(out, driver().devices.bytes as usize) }
}

/// The first version of the call: 32 bits, as much as fits.
pub unsafe fn total_v1(out: *mut u32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put(out, u32::try_from(driver().devices.bytes).unwrap_or(u32::MAX)) }
}

pub unsafe fn attribute(out: *mut i32, attribute: i32, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    unsafe { put(out, device::attribute(index, attribute).ok_or(Error::INVALID_VALUE)?) }
}

pub unsafe fn capability(major: *mut i32, minor: *mut i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe {
        put(major, 9)?;
        put(minor, 0)
    }
}

/// CUdevprop: ten numbers and more, from the attributes that took its place.
pub unsafe fn properties(out: *mut [i32; 14], ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    let of = |attribute| device::attribute(index, attribute).unwrap_or(0);
    let mut all = [0; 14];
    for (at, attribute) in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].into_iter().enumerate() {
        all[at] = of(attribute);
    }
    unsafe { put(out, all) }
}

pub unsafe fn pci(out: *mut c_char, length: i32, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    unsafe { put_text(out, length, &device::pci_text(index)) }
}

pub unsafe fn by_pci(out: *mut i32, text: Name) -> Done {
    if text.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let found = device::by_pci(&text, driver().devices.count).map(device::ordinal);
    unsafe { put(out, found.filter(|&ordinal| ordinal >= 0).ok_or(Error::INVALID_DEVICE)?) }
}

pub unsafe fn can_access_peer(out: *mut i32, ordinal: i32, peer: i32) -> Done {
    let (one, other) = (device::by_ordinal(ordinal)?, device::by_ordinal(peer)?);
    unsafe { put(out, (one != other) as i32) }
}

pub unsafe fn p2p_attribute(out: *mut i32, attribute: i32, ordinal: i32, peer: i32) -> Done {
    let (one, other) = (device::by_ordinal(ordinal)?, device::by_ordinal(peer)?);
    if one == other || !(1..=4).contains(&attribute) {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { put(out, (attribute != 1) as i32) }
}

pub unsafe fn texture_1d_width(
    out: *mut usize,
    _format: i32,
    _channels: u32,
    ordinal: i32,
) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put(out, 1 << 28) }
}

pub unsafe fn affinity_support(out: *mut i32, _kind: i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    unsafe { put(out, 0) }
}

/// The private tables are the real driver's own; who needs one finds that it is not there.
pub unsafe fn export_table(_out: *mut *const c_void, _id: *const Uuid) -> Done {
    Err(Error::NOT_FOUND)
}

pub unsafe fn flush_writes(_target: i32, _scope: i32) -> Done {
    crate::context::current().map(|_| ())
}

// Textures and surfaces are names only: kernels that would read them do not run.

pub unsafe fn texture_create(
    out: *mut u64,
    resource: *const c_void,
    _texture: *const c_void,
    _view: *const c_void,
) -> Done {
    crate::context::current()?;
    if resource.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { put(out, crate::memory::next_id()) }
}

pub unsafe fn texture_destroy(_object: u64) -> Done {
    crate::context::current().map(|_| ())
}

pub unsafe fn surface_create(out: *mut u64, resource: *const c_void) -> Done {
    unsafe { texture_create(out, resource, std::ptr::null(), std::ptr::null()) }
}

/// Exported and found, as on the real driver, but not simulated.
pub unsafe fn unsupported() -> Done {
    Err(Error::NOT_SUPPORTED)
}

pub unsafe fn profiler() -> Done {
    Ok(())
}
