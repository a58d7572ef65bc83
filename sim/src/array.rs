//! Arrays and mipmapped arrays: linear storage, in as many bytes as the card's blocks take. Up to 1 MiB they share pages with
//! arrays of the same context whose elements have the same size, above they take whole ones. As measured on an H100.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::next_id;
use crate::streams;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// CUDA_ARRAY3D_LAYERED, SURFACE_LDST, CUBEMAP, TEXTURE_GATHER, DEPTH_TEXTURE,
/// COLOR_ATTACHMENT, SPARSE, DEFERRED_MAPPING, VIDEO_ENCODE_DECODE.
const FLAGS: u32 = 0x1ff;
const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
/// No memory of its own: it is mapped later.
const NO_MEMORY: u32 = SPARSE | DEFERRED;
const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

/// An array, or a mipmapped one.
struct Array {
    device: usize,
    context: u32,
    /// 0: none yet.
    address: Pointer,
}

static ARRAYS: Mutex<BTreeMap<usize, Array>> = Mutex::new(BTreeMap::new());

fn with<R>(work: impl FnOnce(&mut BTreeMap<usize, Array>) -> R) -> R {
    work(&mut ARRAYS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Bytes of an element, and how many texels wide and high the block is that it stands for.
fn element(format: i32, channels: u32) -> Done<(u64, u64)> {
    let one = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        0xc0 | 0xc6 => return Ok((1, 1)),
        0xc1 | 0xc3 | 0xc7 | 0xc9 => return Ok((2, 1)),
        0xc2 | 0xc4 | 0xc8 | 0xca | 0x50 => return Ok((4, 1)),
        0xc5 | 0xcb => return Ok((8, 1)),
        // Block compressed: 4 x 4 texels in 8 or 16 bytes.
        0x91 | 0x92 | 0x97 | 0x98 => return Ok((8, 4)),
        0x93..=0x96 | 0x99..=0x9e => return Ok((16, 4)),
        _ => return Err(Error::INVALID_VALUE),
    };
    if !matches!(channels, 1 | 2 | 4) {
        return Err(Error::INVALID_VALUE);
    }
    Ok((one * channels as u64, 1))
}

/// Bytes that the card takes: rows of 64 bytes in blocks of 8 and more, whole blocks.
fn padded(desc: &Array3dDesc) -> Done<u64> {
    let (bytes, block) = element(desc.format, desc.channels)?;
    let columns = (desc.width as u64).div_ceil(block);
    let rows = (desc.height.max(1) as u64).div_ceil(block);
    let depth = desc.depth.max(1) as u64;
    let whole = |length: u64, most: u64| {
        length.checked_next_multiple_of(length.next_power_of_two().min(most))
    };
    let is_solid = desc.depth > 0 && desc.flags & (LAYERED | CUBEMAP) == 0;
    let (rows, depth) = match is_solid {
        true => (rows.checked_next_multiple_of(8), whole(depth, 16)),
        false => (whole(rows.max(8), 128), Some(depth)),
    };
    let pitch = columns.checked_mul(bytes).and_then(|pitch| pitch.checked_next_multiple_of(64));
    let layer = pitch.zip(rows);
    layer
        .and_then(|(pitch, rows)| pitch.checked_mul(rows)?.checked_mul(depth?))
        .ok_or(Error::INVALID_VALUE)
}

fn check(desc: &Array3dDesc) -> Done {
    element(desc.format, desc.channels)?;
    let largest = desc.width.max(desc.height).max(desc.depth);
    if desc.width == 0 || desc.flags & !FLAGS != 0 || largest > 131_072 {
        return Err(Error::INVALID_VALUE);
    }
    if desc.depth != 0 && desc.height == 0 && desc.flags & LAYERED == 0 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(())
}

fn add(out: Out<Handle>, context: &contexts::Context, desc: &Array3dDesc, size: u64) -> Done {
    streams::refuse_while_capturing()?;
    let address = match desc.flags & NO_MEMORY {
        0 => {
            let (element, _) = element(desc.format, desc.channels)?;
            let mut memory = driver().memory(context.device).lock();
            memory.allocate_in((context.id, element), size, context.id)?
        }
        _ => 0,
    };
    let array = Array { device: context.device, context: context.id, address };
    let handle = 0xa770_0000_0000 + next_id() as usize * 16;
    with(|all| all.insert(handle, array));
    out.put(handle as Handle)
}

fn create_any(out: Out<Handle>, desc: Array3dDesc) -> Done {
    let context = contexts::current()?;
    out.check()?;
    check(&desc)?;
    add(out, context, &desc, padded(&desc)?)
}

pub(crate) fn create(out: Out<Handle>, desc: In<ArrayDesc>) -> Done {
    let desc = desc.get()?;
    let ArrayDesc { width, height, format, channels } = desc;
    create_any(out, Array3dDesc { width, height, depth: 0, format, channels, flags: 0 })
}

pub(crate) fn create_3d(out: Out<Handle>, desc: In<Array3dDesc>) -> Done {
    create_any(out, desc.get()?)
}

pub(crate) fn destroy(handle: Handle) -> Done {
    let array = with(|all| all.remove(&(handle as usize))).ok_or(Error::INVALID_HANDLE)?;
    if array.address != 0 {
        driver().memory(array.device).lock().free(array.address)?;
    }
    Ok(())
}

pub(crate) fn mipmapped_create(out: Out<Handle>, desc: In<Array3dDesc>, levels: u32) -> Done {
    let context = contexts::current()?;
    let desc = desc.get()?;
    check(&desc)?;
    if out.is_null() || levels == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let largest = desc.width.max(desc.height).max(desc.depth).max(1);
    let smaller = |length: usize, level: u32| {
        if length == 0 { 0 } else { (length >> level).max(1) }
    };
    let mut size = 0u64;
    for level in 0..levels.min(largest.ilog2() + 1) {
        let layered = desc.flags & LAYERED != 0;
        let depth = if layered { desc.depth } else { smaller(desc.depth, level) };
        let (width, height) = (smaller(desc.width, level), smaller(desc.height, level));
        let bytes = padded(&Array3dDesc { width, height, depth, ..desc })?;
        size = size.checked_add(bytes).ok_or(Error::OUT_OF_MEMORY)?;
    }
    add(out, context, &desc, size)
}

pub(crate) fn forget_context(context: u32) {
    with(|all| all.retain(|_, array| array.context != context));
}
