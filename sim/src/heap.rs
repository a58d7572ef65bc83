//! cuMemAlloc and its kin, and what the driver says about pointers.

use crate::abi::*;
use crate::aperture::HOST;
use crate::context;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Owner, round_up};
use crate::{host, pool, stream, vmm};
use std::ffi::c_void;

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;

pub unsafe fn alloc(out: *mut Pointer, size: usize) -> Done {
    let context = context::current()?;
    if out.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    stream::refuse_while_capturing()?;
    let address = driver().memory(context.device).lock().allocate(size as u64, context.id)?;
    unsafe { *out = address };
    Ok(())
}

pub unsafe fn alloc_pitch(
    out: *mut Pointer,
    pitch_out: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Done {
    let context = context::current()?;
    if out.is_null() || pitch_out.is_null() || width == 0 || height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if !matches!(element, 4 | 8 | 16) {
        return Err(Error::INVALID_VALUE);
    }
    stream::refuse_while_capturing()?;
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(Error::OUT_OF_MEMORY)?;
    let size = pitch.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?;
    let address = driver().memory(context.device).lock().allocate(size as u64, context.id)?;
    unsafe {
        *out = address;
        *pitch_out = pitch;
    }
    Ok(())
}

pub unsafe fn free(address: Pointer) -> Done {
    if address == 0 {
        return Ok(());
    }
    context::current()?;
    stream::refuse_while_capturing()?;
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

pub unsafe fn get_info(free: *mut usize, total: *mut usize) -> Done {
    let context = context::current()?;
    let (devices, index) = (driver().devices, context.device);
    if !free.is_null() {
        unsafe { *free = (devices.bytes - devices.shared.used(index)) as usize };
    }
    if !total.is_null() {
        unsafe { *total = devices.bytes as usize };
    }
    Ok(())
}

/// The first version of the call: 32 bits, as much as fits.
pub unsafe fn get_info_v1(free: *mut u32, total: *mut u32) -> Done {
    let (mut free_now, mut total_now) = (0, 0);
    unsafe { get_info(&mut free_now, &mut total_now)? };
    let fit = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    if !free.is_null() {
        unsafe { *free = fit(free_now) };
    }
    if !total.is_null() {
        unsafe { *total = fit(total_now) };
    }
    Ok(())
}

pub unsafe fn address_range(base: *mut Pointer, size: *mut usize, address: Pointer) -> Done {
    context::current()?;
    if base.is_null() && size.is_null() {
        return Ok(());
    }
    let (start, bytes) = match Known::find(address) {
        Some(known) if known.kind != KnownKind::Registered => (known.start, known.size),
        _ => return Err(Error::NOT_FOUND),
    };
    if !base.is_null() {
        unsafe { *base = start };
    }
    if !size.is_null() {
        unsafe { *size = bytes as usize };
    }
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

    unsafe fn write(&self, attribute: i32, address: Pointer, data: *mut c_void) -> Done {
        let shown = |index: usize| if index == HOST { 0 } else { device::ordinal(index) };
        unsafe {
            match attribute {
                1 => {
                    let context = context::by_id(self.context);
                    *(data as *mut Handle) =
                        context.map_or(std::ptr::null_mut(), |context| context.handle());
                }
                2 => *(data as *mut u32) = if self.is_host() { 1 } else { 2 },
                3 => *(data as *mut Pointer) = address,
                4 if self.is_host() || self.kind == KnownKind::Managed => {
                    *(data as *mut Pointer) = address
                }
                6 => *(data as *mut i32) = 0,
                7 => *(data as *mut u64) = self.id,
                8 => *(data as *mut i32) = (self.kind == KnownKind::Managed) as i32,
                9 => *(data as *mut i32) = shown(self.device),
                10 => {
                    let plain = self.kind == KnownKind::Device && self.pool.is_null();
                    *(data as *mut i32) = plain as i32
                }
                11 => *(data as *mut Pointer) = self.start,
                12 => *(data as *mut usize) = self.size as usize,
                13 => *(data as *mut i32) = 1,
                14 => *(data as *mut u64) = self.handle_types as u64,
                15 => *(data as *mut i32) = 0,
                16 => *(data as *mut i32) = 3,
                17 => *(data as *mut Handle) = self.pool,
                18 => *(data as *mut usize) = round_up(self.size, PAGE)? as usize,
                19 => *(data as *mut Pointer) = self.start,
                20 => *(data as *mut u64) = self.id,
                21 => *(data as *mut i32) = 0,
                _ => return Err(Error::INVALID_VALUE),
            }
        }
        Ok(())
    }
}

pub unsafe fn pointer_attribute(data: *mut c_void, attribute: i32, address: Pointer) -> Done {
    if data.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { Known::find(address).ok_or(Error::INVALID_VALUE)?.write(attribute, address, data) }
}

/// Unknown pointers are no error here: their attributes are zero.
pub unsafe fn pointer_attributes(
    count: u32,
    attributes: *mut i32,
    data: *mut *mut c_void,
    address: Pointer,
) -> Done {
    if attributes.is_null() || data.is_null() || count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let known = Known::find(address);
    for index in 0..count as usize {
        let (attribute, at) = unsafe { (*attributes.add(index), *data.add(index)) };
        if !(1..=22).contains(&attribute) || at.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let written = match &known {
            Some(known) => unsafe { known.write(attribute, address, at) },
            None => Err(Error::INVALID_VALUE),
        };
        if written.is_err() {
            unsafe {
                match attribute {
                    1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => *(at as *mut u64) = 0,
                    9 => *(at as *mut i32) = -2,
                    5 => {}
                    _ => *(at as *mut i32) = 0,
                }
            }
        }
    }
    Ok(())
}

pub unsafe fn set_pointer_attribute(value: *const c_void, attribute: i32, at: Pointer) -> Done {
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is the only one that can be set.
    if value.is_null() || attribute != 6 {
        return Err(Error::INVALID_VALUE);
    }
    Known::find(at).map(|_| ()).ok_or(Error::INVALID_VALUE)
}
