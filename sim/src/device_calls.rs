//! Calls that ask about devices and the driver.

use crate::abi::*;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use std::ffi::{c_char, c_void};

pub(crate) fn driver_version(out: Out<i32>) -> Done {
    out.put(device::DRIVER_VERSION)
}

pub(crate) fn count(out: Out<i32>) -> Done {
    out.put(driver().devices.visible.len() as i32)
}

pub(crate) fn get(out: Out<i32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    out.put(ordinal)
}

fn put_text(out: Out<c_char>, length: i32, text: &str) -> Done {
    if length <= 0 {
        return Err(Error::INVALID_VALUE);
    }
    out.check()?;
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
    out.put(Uuid(device::uuid(index)))
}

pub(crate) fn total(out: Out<usize>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    out.put(driver().devices.bytes as usize)
}

/// The first version of the call: 32 bits, as much as fits.
pub(crate) fn total_v1(out: Out<u32>, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    out.put(u32::try_from(driver().devices.bytes).unwrap_or(u32::MAX))
}

pub(crate) fn attribute(out: Out<i32>, attribute: i32, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    out.put(device::attribute(attribute).ok_or(Error::INVALID_VALUE)?)
}

/// The private tables are the real driver's own; who needs one finds that it is not there.
pub(crate) fn export_table(_out: Out<In<c_void>>, _id: In<Uuid>) -> Done {
    Err(Error::NOT_FOUND)
}

/// Exported and found, as on the real driver, but not simulated.
pub(crate) fn unsupported() -> Done {
    Err(Error::NOT_SUPPORTED)
}
