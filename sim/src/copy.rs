//! Copies and fills. They really move bytes: device memory is ordinary memory of this process.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::graphs::{MEMCPY, MEMSET};
use crate::managed;
use crate::memory::Owner;
use crate::streams;
use crate::vmm;

/// Whether a call may read, or write, so many bytes at an address.
type Check = fn(Pointer, u64, bool) -> Done;

/// Checks that the device may use a range, and notes that it did.
fn device(address: Pointer, size: u64, writes: bool) -> Done {
    if size == 0 {
        return Ok(());
    }
    let Some(memory) = driver().at(address) else {
        return if vmm::is_usable(address, size) { Ok(()) } else { Err(Error::INVALID_VALUE) };
    };
    let is_managed = {
        let locked = memory.lock();
        let (start, block) = locked.find(address).ok_or(Error::INVALID_VALUE)?;
        if address - start + size > block.size {
            return Err(Error::INVALID_VALUE);
        }
        matches!(block.owner, Owner::Managed(_))
    };
    if writes {
        memory.aperture.mark_dirty(address, size);
    }
    if is_managed {
        managed::touch(address, size);
    }
    Ok(())
}

/// A pointer of either kind: what the driver does not know is the program's own memory.
fn any(address: Pointer, size: u64, writes: bool) -> Done {
    if driver().at(address).is_some() || vmm::is_reservable(address) {
        device(address, size, writes)
    } else if address == 0 && size != 0 {
        Err(Error::INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn copy((to, writable): (Pointer, Check), (from, readable): (Pointer, Check), size: usize) -> Done {
    contexts::current()?;
    writable(to, size as u64, true)?;
    readable(from, size as u64, false)?;
    // SAFETY: the ranges of the device were checked; others are the program's own memory, of which the
    // CUDA interface requires `size` valid bytes. `copy` permits them to overlap.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size) };
    Ok(())
}

/// Runs work now, or makes it a node of the graph that the stream captures.
fn enqueue(stream: StreamArg, kind: i32, work: impl Fn() -> Done + Send + Sync + 'static) -> Done {
    match streams::place(stream)?.capture {
        Some(capture) => capture.add_work(kind, Box::new(work)),
        None => work(),
    }
}

pub(crate) fn any_async(to: Pointer, from: Pointer, size: usize, stream: StreamArg) -> Done {
    enqueue(stream, MEMCPY, move || copy((to, any), (from, any), size))
}

pub(crate) fn host_to_device(to: Pointer, from: In<u8>, size: usize) -> Done {
    copy((to, device), (from.address(), any), size)
}

pub(crate) fn device_to_host(to: Out<u8>, from: Pointer, size: usize) -> Done {
    copy((to.address(), any), (from, device), size)
}

fn fill<const N: usize>(at: Pointer, element: [u8; N], count: usize) -> Done {
    contexts::current()?;
    let size = count.checked_mul(N).ok_or(Error::INVALID_VALUE)?;
    if !at.is_multiple_of(N as u64) {
        return Err(Error::INVALID_VALUE);
    }
    if size == 0 {
        return Ok(());
    }
    device(at, size as u64, true)?;
    // SAFETY: `device` found all of it to be memory of the device, which is mapped here.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, size) };
    bytes[..N].copy_from_slice(&element);
    let mut filled = N;
    while filled < size {
        let more = filled.min(size - filled);
        bytes.copy_within(..more, filled);
        filled += more;
    }
    Ok(())
}

pub(crate) fn fill8(at: Pointer, value: u8, count: usize) -> Done {
    fill(at, [value], count)
}

pub(crate) fn fill32(at: Pointer, value: u32, count: usize) -> Done {
    fill(at, value.to_le_bytes(), count)
}

pub(crate) fn fill8_async(at: Pointer, value: u8, count: usize, stream: StreamArg) -> Done {
    enqueue(stream, MEMSET, move || fill8(at, value, count))
}
