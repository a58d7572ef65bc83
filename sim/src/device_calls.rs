//! Calls that ask about devices and the driver.

use crate::abi::*;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use std::ffi::{c_char, c_void};

fn put<T>(out: Out<T>, value: T) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(value);
    Ok(())
}

pub(crate) fn driver_version(out: Out<i32>) -> Done {
    put(out, device::DRIVER_VERSION)
}

pub(crate) fn count(out: Out<i32>) -> Done {
    put(out, driver().devices.visible.len() as i32)
}

pub(crate) fn get(out: Out<i32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put(out, ordinal)
}

fn put_text(out: Out<c_char>, length: i32, text: &str) -> Done {
    if out.is_null() || length <= 0 {
        return Err(Error::INVALID_VALUE);
    }
    let fits = text.len().min(length as usize - 1);
    for (at, byte) in text.bytes().take(fits).chain([0]).enumerate() {
        out.at(at).set(byte as c_char);
    }
    Ok(())
}

pub(crate) fn name(out: Out<c_char>, length: i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put_text(out, length, device::NAME)
}

pub(crate) fn uuid(out: Out<Uuid>, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    put(out, Uuid(device::uuid(index)))
}

pub(crate) fn luid(_out: Out<c_char>, _mask: Out<u32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    // Windows only.
    Err(Error::NOT_SUPPORTED)
}

pub(crate) fn total(out: Out<usize>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put(out, driver().devices.bytes as usize)
}

/// The first version of the call: 32 bits, as much as fits.
pub(crate) fn total_v1(out: Out<u32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put(out, u32::try_from(driver().devices.bytes).unwrap_or(u32::MAX))
}

pub(crate) fn attribute(out: Out<i32>, attribute: i32, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    put(out, device::attribute(index, attribute).ok_or(Error::INVALID_VALUE)?)
}

pub(crate) fn capability(major: Out<i32>, minor: Out<i32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put(major, 9)?;
    put(minor, 0)
}

/// CUdevprop: ten numbers and more, from the attributes that replaced it.
pub(crate) fn properties(out: Out<[i32; 14]>, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    let of = |attribute| device::attribute(index, attribute).unwrap_or(0);
    let mut all = [0; 14];
    for (at, attribute) in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].into_iter().enumerate() {
        all[at] = of(attribute);
    }
    put(out, all)
}

pub(crate) fn pci(out: Out<c_char>, length: i32, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    put_text(out, length, &device::pci_text(index))
}

pub(crate) fn by_pci(out: Out<i32>, text: Name) -> Done {
    let found = device::by_pci(&text.text()?, driver().devices.count).map(device::ordinal);
    put(out, found.filter(|&ordinal| ordinal >= 0).ok_or(Error::INVALID_DEVICE)?)
}

pub(crate) fn can_access_peer(out: Out<i32>, ordinal: i32, peer: i32) -> Done {
    let (one, other) = (device::by_ordinal(ordinal)?, device::by_ordinal(peer)?);
    put(out, (one != other) as i32)
}

pub(crate) fn p2p_attribute(out: Out<i32>, attribute: i32, ordinal: i32, peer: i32) -> Done {
    let (one, other) = (device::by_ordinal(ordinal)?, device::by_ordinal(peer)?);
    if one == other || !(1..=4).contains(&attribute) {
        return Err(Error::INVALID_VALUE);
    }
    put(out, (attribute != 1) as i32)
}

pub(crate) fn texture_1d_width(
    out: Out<usize>,
    _format: i32,
    _channels: u32,
    ordinal: i32,
) -> Done {
    device::by_ordinal(ordinal)?;
    put(out, 1 << 28)
}

pub(crate) fn affinity_support(out: Out<i32>, _kind: i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    put(out, 0)
}

/// The private tables are the real driver's own; who needs one finds that it is not there.
pub(crate) fn export_table(_out: Out<In<c_void>>, _id: In<Uuid>) -> Done {
    Err(Error::NOT_FOUND)
}

pub(crate) fn flush_writes(_target: i32, _scope: i32) -> Done {
    crate::contexts::current().map(|_| ())
}

// Textures and surfaces are names only: kernels that would read them do not run.

pub(crate) fn texture_create(
    out: Out<u64>,
    resource: In<c_void>,
    _texture: In<c_void>,
    _view: In<c_void>,
) -> Done {
    crate::contexts::current()?;
    if resource.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    put(out, crate::memory::next_id())
}

pub(crate) fn texture_destroy(_object: u64) -> Done {
    crate::contexts::current().map(|_| ())
}

pub(crate) fn surface_create(out: Out<u64>, resource: In<c_void>) -> Done {
    texture_create(out, resource, In::none(), In::none())
}

/// Exported and found, as on the real driver, but not simulated.
pub(crate) fn unsupported() -> Done {
    Err(Error::NOT_SUPPORTED)
}

pub(crate) fn profiler() -> Done {
    Ok(())
}
