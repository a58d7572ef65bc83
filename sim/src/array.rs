//! Arrays and mipmapped arrays: linear storage, in as many bytes as the card's blocks take. Up to 1 MiB they share pages with
//! arrays of the same context whose elements have the same size, above they take whole ones. As measured on an H100.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{next_id, round_up};
use crate::streams;
use std::collections::HashMap;
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

#[derive(Clone)]
struct Array {
    desc: Array3dDesc,
    device: usize,
    context: u32,
    /// 0: none yet.
    address: Pointer,
    size: u64,
    /// Part of a mipmapped array.
    level_of: usize,
}

struct Mipmapped {
    desc: Array3dDesc,
    levels: Vec<usize>,
    device: usize,
    context: u32,
    address: Pointer,
    size: u64,
}

#[derive(Default)]
struct Arrays {
    arrays: HashMap<usize, Array>,
    mipmapped: HashMap<usize, Mipmapped>,
}

static ARRAYS: Mutex<Option<Arrays>> = Mutex::new(None);

fn with<R>(work: impl FnOnce(&mut Arrays) -> R) -> R {
    let mut guard = ARRAYS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_default())
}

fn new_handle() -> usize {
    0xa770_0000_0000 + next_id() as usize * 16
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

fn pitch(desc: &Array3dDesc) -> Done<(u64, u64)> {
    let (bytes, block) = element(desc.format, desc.channels)?;
    let columns = (desc.width as u64).div_ceil(block);
    let rows = (desc.height.max(1) as u64).div_ceil(block);
    Ok((columns.checked_mul(bytes).ok_or(Error::INVALID_VALUE)?, rows))
}

/// Bytes that the card takes: rows of 64 bytes in blocks of 8 and more, whole blocks.
fn padded(desc: &Array3dDesc) -> Done<u64> {
    let (pitch, rows) = pitch(desc)?;
    let depth = desc.depth.max(1) as u64;
    let whole = |length: u64, most: u64| {
        length.checked_next_multiple_of(length.next_power_of_two().min(most))
    };
    let is_solid = desc.depth > 0 && desc.flags & (LAYERED | CUBEMAP) == 0;
    let (rows, depth) = match is_solid {
        true => (rows.checked_next_multiple_of(8), whole(depth, 16)),
        false => (whole(rows.max(8), 128), Some(depth)),
    };
    let layer = pitch.checked_next_multiple_of(64).zip(rows);
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

fn allocate(context: &contexts::Context, desc: &Array3dDesc, size: u64) -> Done<Pointer> {
    if desc.flags & NO_MEMORY != 0 {
        return Ok(0);
    }
    let (element, _) = element(desc.format, desc.channels)?;
    driver().memory(context.device).lock().allocate_in((context.id, element), size, context.id)
}

fn create_any(out: Out<Handle>, desc: Array3dDesc) -> Done {
    let context = contexts::current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    check(&desc)?;
    streams::refuse_while_capturing()?;
    let size = padded(&desc)?;
    let address = allocate(context, &desc, size)?;
    let (device, context) = (context.device, context.id);
    let array = Array { desc, device, context, address, size, level_of: 0 };
    let handle = new_handle();
    with(|all| all.arrays.insert(handle, array));
    out.set(handle as Handle);
    Ok(())
}

pub(crate) fn create(out: Out<Handle>, desc: In<ArrayDesc>) -> Done {
    let desc = desc.get()?;
    let ArrayDesc { width, height, format, channels } = desc;
    create_any(out, Array3dDesc { width, height, depth: 0, format, channels, flags: 0 })
}

pub(crate) fn create_v1(out: Out<Handle>, desc: In<ArrayDescV1>) -> Done {
    let desc = desc.get()?;
    let (width, height) = (desc.width as usize, desc.height as usize);
    let (format, channels) = (desc.format, desc.channels);
    create_any(out, Array3dDesc { width, height, depth: 0, format, channels, flags: 0 })
}

pub(crate) fn create_3d(out: Out<Handle>, desc: In<Array3dDesc>) -> Done {
    create_any(out, desc.get()?)
}

pub(crate) fn create_3d_v1(out: Out<Handle>, desc: In<Array3dDescV1>) -> Done {
    let desc = desc.get()?;
    create_any(
        out,
        Array3dDesc {
            width: desc.width as usize,
            height: desc.height as usize,
            depth: desc.depth as usize,
            format: desc.format,
            channels: desc.channels,
            flags: desc.flags,
        },
    )
}

fn find(handle: Handle) -> Done<Array> {
    with(|all| all.arrays.get(&(handle as usize)).cloned()).ok_or(Error::INVALID_HANDLE)
}

/// Address, bytes of a row and rows of a layer.
pub(crate) fn storage(handle: Handle) -> Done<(Pointer, u64, u64)> {
    let array = find(handle)?;
    if array.address == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (pitch, rows) = pitch(&array.desc)?;
    Ok((array.address, pitch, rows))
}

pub(crate) fn destroy(handle: Handle) -> Done {
    let array = find(handle)?;
    // A level goes with its mipmapped array.
    if array.level_of != 0 {
        return Err(Error::INVALID_HANDLE);
    }
    with(|all| all.arrays.remove(&(handle as usize))).ok_or(Error::INVALID_HANDLE)?;
    if array.address != 0 {
        driver().memory(array.device).lock().free(array.address)?;
    }
    Ok(())
}

pub(crate) fn get_desc(out: Out<ArrayDesc>, handle: Handle) -> Done {
    let Array3dDesc { width, height, format, channels, .. } = find(handle)?.desc;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(ArrayDesc { width, height, format, channels });
    Ok(())
}

pub(crate) fn get_desc_3d(out: Out<Array3dDesc>, handle: Handle) -> Done {
    let desc = find(handle)?.desc;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(desc);
    Ok(())
}

/// Only arrays whose memory is mapped later have requirements to ask for; of others the driver
/// refuses to report them.
fn write_requirements(out: Out<ArrayRequirements>, flags: u32, size: u64, device: i32) -> Done {
    crate::device::by_ordinal(device)?;
    if out.is_null() || flags & DEFERRED == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let size = round_up(size, 64 * KIB)? as usize;
    out.set(ArrayRequirements { size, alignment: 64 << 10, reserved: [0; 4] });
    Ok(())
}

pub(crate) fn requirements(out: Out<ArrayRequirements>, handle: Handle, device: i32) -> Done {
    let array = find(handle)?;
    write_requirements(out, array.desc.flags, array.size, device)
}

pub(crate) fn mipmapped_create(out: Out<Handle>, desc: In<Array3dDesc>, levels: u32) -> Done {
    let context = contexts::current()?;
    let desc = desc.get()?;
    check(&desc)?;
    if out.is_null() || levels == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let largest = desc.width.max(desc.height).max(desc.depth).max(1);
    let levels = levels.min(largest.ilog2() + 1);
    let smaller = |length: usize, level: u32| {
        if length == 0 { 0 } else { (length >> level).max(1) }
    };
    let mut descs = Vec::new();
    let mut total = 0u64;
    for level in 0..levels {
        let layered = desc.flags & LAYERED != 0;
        let depth = if layered { desc.depth } else { smaller(desc.depth, level) };
        let one = Array3dDesc {
            width: smaller(desc.width, level),
            height: smaller(desc.height, level),
            depth,
            ..desc
        };
        descs.push((one, total));
        total = total.checked_add(padded(&one)?).ok_or(Error::OUT_OF_MEMORY)?;
    }
    streams::refuse_while_capturing()?;
    let size = total;
    let address = allocate(context, &desc, size)?;
    let handle = new_handle();
    let (device, context) = (context.device, context.id);
    let levels = descs
        .into_iter()
        .map(|(desc, offset)| {
            let at = if address == 0 { 0 } else { address + offset };
            let size = padded(&desc).unwrap_or(0);
            let array = Array { desc, device, context, address: at, size, level_of: handle };
            let level = new_handle();
            with(|all| all.arrays.insert(level, array));
            level
        })
        .collect();
    let whole = Mipmapped { desc, levels, device, context, address, size };
    with(|all| all.mipmapped.insert(handle, whole));
    out.set(handle as Handle);
    Ok(())
}

pub(crate) fn mipmapped_destroy(handle: Handle) -> Done {
    let removed = with(|all| {
        let removed = all.mipmapped.remove(&(handle as usize))?;
        for level in &removed.levels {
            all.arrays.remove(level);
        }
        Some(removed)
    })
    .ok_or(Error::INVALID_HANDLE)?;
    if removed.address != 0 {
        driver().memory(removed.device).lock().free(removed.address)?;
    }
    Ok(())
}

pub(crate) fn mipmapped_level(out: Out<Handle>, handle: Handle, level: u32) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let found = with(|all| {
        let whole = all.mipmapped.get(&(handle as usize)).ok_or(Error::INVALID_HANDLE)?;
        whole.levels.get(level as usize).copied().ok_or(Error::INVALID_VALUE)
    })?;
    out.set(found as Handle);
    Ok(())
}

pub(crate) fn mipmapped_requirements(
    out: Out<ArrayRequirements>,
    handle: Handle,
    device: i32,
) -> Done {
    let found = with(|all| {
        all.mipmapped.get(&(handle as usize)).map(|whole| (whole.desc.flags, whole.size))
    });
    let (flags, size) = found.ok_or(Error::INVALID_HANDLE)?;
    write_requirements(out, flags, size, device)
}

pub(crate) fn forget_context(context: u32) {
    with(|all| {
        all.arrays.retain(|_, array| array.context != context);
        all.mipmapped.retain(|_, whole| whole.context != context && whole.desc.width != 0);
    });
}
