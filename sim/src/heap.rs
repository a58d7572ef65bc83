//! cuMemAlloc and its kin, and what the driver says about pointers.

use crate::abi::*;
use crate::aperture::HOST;
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Owner, round_up};
use crate::{host, pool, streams, vmm};
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
    out.set(address);
    Ok(())
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
    let (start, bytes) = match Known::find(address) {
        Some(known) if known.kind != KnownKind::Registered => (known.start, known.size),
        _ => return Err(Error::NOT_FOUND),
    };
    base.set(start);
    size.set(bytes as usize);
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownKind {
    Device,
    Managed,
    PinnedHost,
    Registered,
    Mapped,
}

/// What is known about a pointer.
struct Known {
    kind: KnownKind,
    start: Pointer,
    size: u64,
    device: usize,
    context: u32,
    id: u64,
    pool: Handle,
    handle_types: u32,
}

impl Known {
    fn find(address: Pointer) -> Option<Known> {
        if let Some(memory) = driver().at(address) {
            let locked = memory.lock();
            let (start, block) = locked.find(address)?;
            let (kind, pool) = match block.owner {
                Owner::Managed(_) => (KnownKind::Managed, std::ptr::null_mut()),
                Owner::Pool(id) => (KnownKind::Device, pool::handle_of(memory, id)),
                _ => (KnownKind::Device, std::ptr::null_mut()),
            };
            let kind = if memory.index == HOST { KnownKind::PinnedHost } else { kind };
            return Some(Known {
                kind,
                start,
                size: block.size,
                device: memory.index,
                context: block.context,
                id: block.id,
                pool,
                handle_types: 0,
            });
        }
        if let Some(found) = vmm::find_mapping(address) {
            return Some(Known {
                kind: KnownKind::Mapped,
                start: found.start,
                size: found.size,
                device: found.device,
                context: 0,
                id: found.id,
                pool: std::ptr::null_mut(),
                handle_types: found.handle_types,
            });
        }
        host::registered(address).map(|found| Known {
            kind: KnownKind::Registered,
            start: found.start,
            size: found.size,
            device: found.device,
            context: found.context,
            id: found.id,
            pool: std::ptr::null_mut(),
            handle_types: 0,
        })
    }

    fn is_host(&self) -> bool {
        matches!(self.kind, KnownKind::PinnedHost | KnownKind::Registered) || self.device == HOST
    }

    fn write(&self, attribute: i32, address: Pointer, data: Out<c_void>) -> Done {
        let shown = |index: usize| if index == HOST { 0 } else { device::ordinal(index) };
        let flag = |value: bool| i32::from(value);
        match attribute {
            1 => {
                let context = contexts::by_id(self.context);
                let handle = context.map_or(std::ptr::null_mut(), |context| context.handle());
                data.cast().set(handle);
            }
            2 => data.cast().set(if self.is_host() { 1u32 } else { 2 }),
            3 => data.cast().set(address),
            4 if self.is_host() || self.kind == KnownKind::Managed => data.cast().set(address),
            6 | 15 | 21 => data.cast().set(0i32),
            7 | 20 => data.cast().set(self.id),
            8 => data.cast().set(flag(self.kind == KnownKind::Managed)),
            9 => data.cast().set(shown(self.device)),
            10 => data.cast().set(flag(self.kind == KnownKind::Device && self.pool.is_null())),
            11 | 19 => data.cast().set(self.start),
            12 => data.cast().set(self.size as usize),
            13 => data.cast().set(1i32),
            14 => data.cast().set(u64::from(self.handle_types)),
            16 => data.cast().set(3i32),
            17 => data.cast().set(self.pool),
            18 => data.cast().set(round_up(self.size, PAGE)? as usize),
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }
}

pub(crate) fn pointer_attribute(data: Out<c_void>, attribute: i32, address: Pointer) -> Done {
    if data.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    Known::find(address).ok_or(Error::INVALID_VALUE)?.write(attribute, address, data)
}

/// Unknown pointers are no error here: their attributes are zero.
pub(crate) fn pointer_attributes(
    count: u32,
    attributes: Out<i32>,
    data: Out<Out<c_void>>,
    address: Pointer,
) -> Done {
    if attributes.is_null() || data.is_null() || count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let known = Known::find(address);
    for index in 0..count as usize {
        let (attribute, at) = (attributes.at(index).get()?, data.at(index).get()?);
        if !(1..=22).contains(&attribute) || at.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let written = match &known {
            Some(known) => known.write(attribute, address, at),
            None => Err(Error::INVALID_VALUE),
        };
        if written.is_err() {
            match attribute {
                1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => at.cast().set(0u64),
                9 => at.cast().set(-2i32),
                5 => {}
                _ => at.cast().set(0i32),
            }
        }
    }
    Ok(())
}

pub(crate) fn set_pointer_attribute(value: In<c_void>, attribute: i32, at: Pointer) -> Done {
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is the only one that can be set.
    if value.is_null() || attribute != 6 {
        return Err(Error::INVALID_VALUE);
    }
    Known::find(at).map(|_| ()).ok_or(Error::INVALID_VALUE)
}
