//! cuMemAlloc and its kin, and what the driver says about pointers.

use crate::abi::*;
use crate::aperture::HOST;
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::vmm::Known;
use crate::{pool, streams, vmm};
use std::ffi::c_void;

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;

pub(crate) fn alloc(out: Out<Pointer>, size: usize) -> Done {
    let context = contexts::current()?;
    if out.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    streams::refuse_while_capturing()?;
    let address = driver().memory(context.device).lock().allocate(size as u64, context.id)?;
    out.put(address)
}

pub(crate) fn alloc_pitch(
    out: Out<Pointer>,
    pitch_out: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Done {
    let context = contexts::current()?;
    if out.is_null() || pitch_out.is_null() || width == 0 || height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if !matches!(element, 4 | 8 | 16) {
        return Err(Error::INVALID_VALUE);
    }
    streams::refuse_while_capturing()?;
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(Error::OUT_OF_MEMORY)?;
    let size = pitch.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?;
    let address = driver().memory(context.device).lock().allocate(size as u64, context.id)?;
    out.set(address);
    pitch_out.set(pitch);
    Ok(())
}

pub(crate) fn free(address: Pointer) -> Done {
    if address == 0 {
        return Ok(());
    }
    contexts::current()?;
    streams::refuse_while_capturing()?;
    let memory = driver().at(address).ok_or(Error::INVALID_VALUE)?;
    if memory.index == HOST && !memory.lock().is_pool_block(address) {
        return Err(Error::INVALID_VALUE);
    }
    let freed = memory.lock().free(address);
    if freed.is_ok() {
        pool::settle(memory);
    }
    freed
}

pub(crate) fn get_info(free: Out<usize>, total: Out<usize>) -> Done {
    let context = contexts::current()?;
    let (devices, index) = (driver().devices, context.device);
    free.set((devices.bytes - devices.shared.used(index)) as usize);
    total.set(devices.bytes as usize);
    Ok(())
}

/// The first version of the call: 32 bits, as much as fits.
pub(crate) fn get_info_v1(free: Out<u32>, total: Out<u32>) -> Done {
    let context = contexts::current()?;
    let (devices, index) = (driver().devices, context.device);
    let fit = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    free.set(fit(devices.bytes - devices.shared.used(index)));
    total.set(fit(devices.bytes));
    Ok(())
}

pub(crate) fn address_range(base: Out<Pointer>, size: Out<usize>, address: Pointer) -> Done {
    contexts::current()?;
    if base.is_null() && size.is_null() {
        return Ok(());
    }
    let known = find(address).ok_or(Error::NOT_FOUND)?;
    base.set(known.start);
    size.set(known.size as usize);
    Ok(())
}

fn find(address: Pointer) -> Option<Known> {
    let Some(memory) = driver().at(address) else { return vmm::find_mapping(address) };
    let locked = memory.lock();
    let (start, block) = locked.find(address)?;
    Some(Known { start, size: block.size, device: memory.index })
}

/// Of the attributes CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL alone, which the recorder asks for.
pub(crate) fn pointer_attribute(data: Out<c_void>, attribute: i32, address: Pointer) -> Done {
    let known = find(address).ok_or(Error::INVALID_VALUE)?;
    match attribute {
        9 if known.device == HOST => data.cast::<i32>().put(0),
        9 => data.cast::<i32>().put(device::ordinal(known.device)),
        _ => Err(Error::INVALID_VALUE),
    }
}
