//! Copies and fills. They really move bytes: device memory is ordinary memory of this process.

use crate::abi::*;
use crate::array;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::managed;
use crate::streams;
use crate::vmm;

/// Checks that the device may use a range, and notes that it did.
fn device(address: Pointer, size: u64, writes: bool) -> Done {
    if size == 0 {
        return Ok(());
    }
    if let Some(memory) = driver().at(address) {
        let is_managed = {
            let locked = memory.lock();
            let (start, block) = locked.find(address).ok_or(Error::INVALID_VALUE)?;
            if address - start + size > block.size {
                return Err(Error::INVALID_VALUE);
            }
            matches!(block.owner, crate::memory::Owner::Managed(_))
        };
        if writes {
            memory.aperture.mark_dirty(address, size);
        }
        if is_managed {
            managed::touch(address, size);
        }
        return Ok(());
    }
    if vmm::is_usable(address, size) { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

/// A pointer of either kind: what the driver does not know is the program's own memory.
fn unified(address: Pointer, size: u64, writes: bool) -> Done {
    if driver().at(address).is_some() || vmm::is_reservable(address) {
        device(address, size, writes)
    } else if address == 0 && size != 0 {
        Err(Error::INVALID_VALUE)
    } else {
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Host,
    Device,
    Unified,
}

fn check(side: Side, address: Pointer, size: u64, writes: bool) -> Done {
    match side {
        Side::Host if address == 0 && size != 0 => Err(Error::INVALID_VALUE),
        // Pinned or managed memory may stand where host memory is wanted.
        Side::Host | Side::Unified => unified(address, size, writes),
        Side::Device => device(address, size, writes),
    }
}

fn flat(to: (Side, Pointer), from: (Side, Pointer), size: usize) -> Done {
    contexts::current()?;
    check(to.0, to.1, size as u64, true)?;
    check(from.0, from.1, size as u64, false)?;
    move_bytes(from.1, to.1, size);
    Ok(())
}

/// The caller has checked device ranges; host ranges are the program's own memory, of which the CUDA
/// interface requires `size` valid bytes.
fn move_bytes(from: Pointer, to: Pointer, size: usize) {
    // SAFETY: both ranges hold `size` bytes (see above). `copy` permits them to overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
}

/// Runs work now, or makes it a node of the graph that the stream captures.
fn enqueue(stream: StreamArg, kind: i32, work: impl Fn() -> Done + Send + Sync + 'static) -> Done {
    match streams::place(stream)?.capture {
        Some(capture) => capture.add_work(kind, Box::new(work)),
        None => work(),
    }
}

const COPY: i32 = 1;
const FILL: i32 = 2;

pub(crate) fn any(to: Pointer, from: Pointer, size: usize) -> Done {
    flat((Side::Unified, to), (Side::Unified, from), size)
}

pub(crate) fn any_async(to: Pointer, from: Pointer, size: usize, stream: StreamArg) -> Done {
    enqueue(stream, COPY, move || flat((Side::Unified, to), (Side::Unified, from), size))
}

pub(crate) fn peer(to: Pointer, _: Handle, from: Pointer, _: Handle, size: usize) -> Done {
    flat((Side::Device, to), (Side::Device, from), size)
}

pub(crate) fn peer_async(
    to: Pointer,
    _: Handle,
    from: Pointer,
    _: Handle,
    size: usize,
    stream: StreamArg,
) -> Done {
    enqueue(stream, COPY, move || flat((Side::Device, to), (Side::Device, from), size))
}

pub(crate) fn host_to_device(to: Pointer, from: In<u8>, size: usize) -> Done {
    flat((Side::Device, to), (Side::Host, from.address()), size)
}

pub(crate) fn device_to_host(to: Out<u8>, from: Pointer, size: usize) -> Done {
    flat((Side::Host, to.address()), (Side::Device, from), size)
}

pub(crate) fn device_to_device(to: Pointer, from: Pointer, size: usize) -> Done {
    flat((Side::Device, to), (Side::Device, from), size)
}

pub(crate) fn host_to_device_async(
    to: Pointer,
    from: In<u8>,
    size: usize,
    stream: StreamArg,
) -> Done {
    let from = from.address();
    enqueue(stream, COPY, move || flat((Side::Device, to), (Side::Host, from), size))
}

pub(crate) fn device_to_host_async(
    to: Out<u8>,
    from: Pointer,
    size: usize,
    stream: StreamArg,
) -> Done {
    let to = to.address();
    enqueue(stream, COPY, move || flat((Side::Host, to), (Side::Device, from), size))
}

pub(crate) fn device_to_device_async(
    to: Pointer,
    from: Pointer,
    size: usize,
    stream: StreamArg,
) -> Done {
    enqueue(stream, COPY, move || flat((Side::Device, to), (Side::Device, from), size))
}

// Fills.

#[derive(Clone, Copy)]
struct Fill {
    at: Pointer,
    pitch: u64,
    value: u32,
    /// Bytes of an element: 1, 2 or 4.
    element: u64,
    width: u64,
    height: u64,
}

impl Fill {
    fn run(self) -> Done {
        contexts::current()?;
        let row = self.width.checked_mul(self.element).ok_or(Error::INVALID_VALUE)?;
        if !self.at.is_multiple_of(self.element) || (self.height > 1 && self.pitch < row) {
            return Err(Error::INVALID_VALUE);
        }
        if row == 0 || self.height == 0 {
            return Ok(());
        }
        let all = self.pitch.checked_mul(self.height - 1).and_then(|below| below.checked_add(row));
        device(self.at, all.ok_or(Error::INVALID_VALUE)?, true)?;
        for y in 0..self.height {
            let at = self.at + y * self.pitch;
            let (bytes, element) = (self.value.to_le_bytes(), self.element as usize);
            // SAFETY: `device` found all of it to be memory of the device, which is mapped here.
            let row = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, row as usize) };
            let first = element.min(row.len());
            row[..first].copy_from_slice(&bytes[..first]);
            let mut filled = first;
            while filled < row.len() {
                let more = filled.min(row.len() - filled);
                row.copy_within(..more, filled);
                filled += more;
            }
        }
        Ok(())
    }
}

pub(crate) fn fill_node(params: &MemsetNodeParams) -> impl Fn() -> Done + Send + Sync + 'static {
    let fill = Fill {
        at: params.dst,
        pitch: params.pitch as u64,
        value: params.value,
        element: params.element_size as u64,
        width: params.width as u64,
        height: params.height as u64,
    };
    move || if matches!(fill.element, 1 | 2 | 4) { fill.run() } else { Err(Error::INVALID_VALUE) }
}

macro_rules! fills {
    ($($element:literal $value:ty: $flat:ident $flat_async:ident $rows:ident $rows_async:ident;)*) => {$(
        pub(crate) fn $flat(at: Pointer, value: $value, count: usize) -> Done {
            let (value, width) = (value as u32, count as u64);
            Fill { at, pitch: 0, value, element: $element, width, height: 1 }.run()
        }

        pub(crate) fn $flat_async(
            at: Pointer,
            value: $value,
            count: usize,
            stream: StreamArg,
        ) -> Done {
            let (value, width) = (value as u32, count as u64);
            let fill = Fill { at, pitch: 0, value, element: $element, width, height: 1 };
            enqueue(stream, FILL, move || fill.run())
        }

        pub(crate) fn $rows(
            at: Pointer,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> Done {
            let (pitch, value, width, height) =
                (pitch as u64, value as u32, width as u64, height as u64);
            Fill { at, pitch, value, element: $element, width, height }.run()
        }

        pub(crate) fn $rows_async(
            at: Pointer,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            stream: StreamArg,
        ) -> Done {
            let (pitch, value, width, height) =
                (pitch as u64, value as u32, width as u64, height as u64);
            let fill = Fill { at, pitch, value, element: $element, width, height };
            enqueue(stream, FILL, move || fill.run())
        }
    )*};
}

fills! {
    1 u8: fill8 fill8_async fill8_rows fill8_rows_async;
    2 u16: fill16 fill16_async fill16_rows fill16_rows_async;
    4 u32: fill32 fill32_async fill32_rows fill32_rows_async;
}

// Rectangles and boxes.

/// One side of a copy of a box: where its first byte is, and how far rows and layers lie apart.
#[derive(Clone, Copy)]
struct Region {
    first: Pointer,
    pitch: u64,
    layer: u64,
    side: Side,
}

const HOST_MEMORY: i32 = 1;
const DEVICE_MEMORY: i32 = 2;
const ARRAY: i32 = 3;
const UNIFIED: i32 = 4;

fn region(side: &Side3d, width: u64, height: u64) -> Done<Region> {
    let (x, y, z) = (side.x as u64, side.y as u64, side.z as u64);
    let (base, pitch, rows, kind) = match side.kind {
        HOST_MEMORY => (side.host as u64, side.pitch as u64, side.height as u64, Side::Host),
        DEVICE_MEMORY => (side.device, side.pitch as u64, side.height as u64, Side::Device),
        UNIFIED => (side.device, side.pitch as u64, side.height as u64, Side::Unified),
        ARRAY => {
            let (base, pitch, rows) = array::storage(side.array)?;
            (base, pitch, rows, Side::Device)
        }
        _ => return Err(Error::INVALID_VALUE),
    };
    let pitch = if pitch == 0 { x + width } else { pitch };
    if pitch < x + width {
        return Err(Error::INVALID_VALUE);
    }
    let rows = if rows == 0 { y + height } else { rows };
    let layer = pitch.checked_mul(rows).ok_or(Error::INVALID_VALUE)?;
    let ahead = z.checked_mul(layer).and_then(|z| z.checked_add(y * pitch + x));
    let first = base.checked_add(ahead.ok_or(Error::INVALID_VALUE)?);
    Ok(Region { first: first.ok_or(Error::INVALID_VALUE)?, pitch, layer, side: kind })
}

fn copy_box(copy: &Copy3d) -> Done {
    contexts::current()?;
    let (width, height, depth) = (copy.width as u64, copy.height as u64, copy.depth as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let (from, to) = (region(&copy.src, width, height)?, region(&copy.dst, width, height)?);
    for (region, writes) in [(from, false), (to, true)] {
        let all = (depth - 1) * region.layer + (height - 1) * region.pitch + width;
        check(region.side, region.first, all, writes)?;
    }
    for z in 0..depth {
        for y in 0..height {
            let source = from.first + z * from.layer + y * from.pitch;
            let target = to.first + z * to.layer + y * to.pitch;
            move_bytes(source, target, width as usize);
        }
    }
    Ok(())
}

/// Handles and pointers in it are numbers to us: it may wait in a graph on any thread.
#[derive(Clone, Copy)]
struct Kept(Copy3d);
// SAFETY: nothing is read through its pointers but by a copy, which checks them when it runs.
unsafe impl Send for Kept {}
// SAFETY: never changed after it was made, so threads may share it.
unsafe impl Sync for Kept {}

impl Kept {
    fn run(&self) -> Done {
        copy_box(&self.0)
    }
}

pub(crate) fn box_node(copy: &Copy3d) -> impl Fn() -> Done + Send + Sync + 'static {
    let kept = Kept(*copy);
    move || kept.run()
}

fn as_box(copy: &Copy2d) -> Copy3d {
    Copy3d {
        src: Side3d {
            x: copy.src_x,
            y: copy.src_y,
            z: 0,
            lod: 0,
            kind: copy.src_type,
            host: copy.src_host as *mut _,
            device: copy.src_device,
            array: copy.src_array,
            extra: std::ptr::null_mut(),
            pitch: copy.src_pitch,
            height: 0,
        },
        dst: Side3d {
            x: copy.dst_x,
            y: copy.dst_y,
            z: 0,
            lod: 0,
            kind: copy.dst_type,
            host: copy.dst_host,
            device: copy.dst_device,
            array: copy.dst_array,
            extra: std::ptr::null_mut(),
            pitch: copy.dst_pitch,
            height: 0,
        },
        width: copy.width,
        height: copy.height,
        depth: 1,
    }
}

pub(crate) fn rows(copy: In<Copy2d>) -> Done {
    let copy = copy.get()?;
    copy_box(&as_box(&copy))
}

pub(crate) fn rows_async(copy: In<Copy2d>, stream: StreamArg) -> Done {
    let copy = copy.get()?;
    enqueue(stream, COPY, box_node(&as_box(&copy)))
}

pub(crate) fn volume(copy: In<Copy3d>) -> Done {
    copy_box(&copy.get()?)
}

pub(crate) fn volume_async(copy: In<Copy3d>, stream: StreamArg) -> Done {
    let copy = copy.get()?;
    enqueue(stream, COPY, box_node(&copy))
}

// One row of an array.

fn in_array(array: Handle, offset: usize, size: usize) -> Done<Pointer> {
    let (base, pitch, _) = array::storage(array)?;
    if (offset + size) as u64 > pitch {
        return Err(Error::INVALID_VALUE);
    }
    Ok(base + offset as u64)
}

pub(crate) fn device_to_array(to: Handle, offset: usize, from: Pointer, size: usize) -> Done {
    flat((Side::Device, in_array(to, offset, size)?), (Side::Device, from), size)
}

pub(crate) fn array_to_device(to: Pointer, from: Handle, offset: usize, size: usize) -> Done {
    flat((Side::Device, to), (Side::Device, in_array(from, offset, size)?), size)
}

pub(crate) fn host_to_array(to: Handle, offset: usize, from: In<u8>, size: usize) -> Done {
    flat((Side::Device, in_array(to, offset, size)?), (Side::Host, from.address()), size)
}

pub(crate) fn array_to_host(to: Out<u8>, from: Handle, offset: usize, size: usize) -> Done {
    flat((Side::Host, to.address()), (Side::Device, in_array(from, offset, size)?), size)
}

pub(crate) fn array_to_array(
    to: Handle,
    to_offset: usize,
    from: Handle,
    from_offset: usize,
    size: usize,
) -> Done {
    let target = in_array(to, to_offset, size)?;
    flat((Side::Device, target), (Side::Device, in_array(from, from_offset, size)?), size)
}

pub(crate) fn host_to_array_async(
    to: Handle,
    offset: usize,
    from: In<u8>,
    size: usize,
    stream: StreamArg,
) -> Done {
    let (target, from) = (in_array(to, offset, size)?, from.address());
    enqueue(stream, COPY, move || flat((Side::Device, target), (Side::Host, from), size))
}

pub(crate) fn array_to_host_async(
    to: Out<u8>,
    from: Handle,
    offset: usize,
    size: usize,
    stream: StreamArg,
) -> Done {
    let (source, to) = (in_array(from, offset, size)?, to.address());
    enqueue(stream, COPY, move || flat((Side::Host, to), (Side::Device, source), size))
}
