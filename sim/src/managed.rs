//! Managed memory: addresses at once, device bytes page by page when the device first touches
//! them. NVML's per-process figure leaves it out.

use crate::abi::*;
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Block, Owner, next_id, round_up};
use crate::touched::Touched;

pub(crate) fn alloc(out: Out<Pointer>, size: usize, flags: u32) -> Done {
    let context = contexts::current()?;
    // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST.
    if out.is_null() || size == 0 || !matches!(flags, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    crate::streams::refuse_while_capturing()?;
    let span = round_up(size as u64, PAGE)?;
    let mut locked = driver().memory(context.device).lock();
    let address = locked.take_pages(span, PAGE)?;
    let pages = vec![false; (span / PAGE) as usize].into_boxed_slice();
    let block = Block {
        size: size as u64,
        span,
        owner: Owner::Managed(Touched { pages, bytes: 0 }),
        context: context.id,
        id: next_id(),
    };
    locked.state.live.insert(address, block);
    out.set(address);
    Ok(())
}

/// The device works on these bytes. A full device evicts: pages beyond what it has stay
/// uncharged. What went to the device stays there, also when it is prefetched to the host again.
pub(crate) fn touch(address: Pointer, size: u64) {
    let Some(memory) = driver().at(address) else { return };
    if size == 0 {
        return;
    }
    let mut locked = memory.lock();
    let Some((start, block)) = locked.find_mut(address) else { return };
    let Owner::Managed(touched) = &block.owner else { return };
    let last = (address - start + size - 1).min(block.span - 1) / PAGE;
    let range = ((address - start) / PAGE) as usize..last as usize + 1;
    let new = touched.pages[range.clone()].iter().filter(|&&there| !there).count() as u64 * PAGE;
    if new == 0 || locked.charge(new, 0).is_err() {
        return;
    }
    if let Some((_, block)) = locked.find_mut(address)
        && let Owner::Managed(touched) = &mut block.owner
    {
        touched.pages[range].fill(true);
        touched.bytes += new;
    }
}

pub(crate) fn prefetch(address: Pointer, size: usize, ordinal: i32, stream: StreamArg) -> Done {
    let kind = if ordinal == -1 { LOCATION_HOST } else { LOCATION_DEVICE };
    let location = Location { kind, id: ordinal };
    prefetch_to(address, size, location, 0, stream)
}

pub(crate) fn prefetch_to(
    address: Pointer,
    size: usize,
    location: Location,
    _flags: u32,
    stream: StreamArg,
) -> Done {
    crate::streams::place(stream)?;
    check(address, size as u64)?;
    if location.kind == LOCATION_DEVICE {
        device::by_ordinal(location.id)?;
        touch(address, size as u64);
    }
    Ok(())
}

fn check(address: Pointer, size: u64) -> Done {
    let memory = driver().at(address).ok_or(Error::INVALID_VALUE)?;
    let locked = memory.lock();
    match locked.find(address) {
        Some((start, block))
            if matches!(block.owner, Owner::Managed(_))
                && size != 0
                && address - start + size <= block.span =>
        {
            Ok(())
        }
        _ => Err(Error::INVALID_VALUE),
    }
}

pub(crate) fn advise(address: Pointer, size: usize, _advice: i32, _ordinal: i32) -> Done {
    check(address, size as u64)
}

pub(crate) fn advise_at(address: Pointer, size: usize, _advice: i32, _at: Location) -> Done {
    check(address, size as u64)
}

/// cuMemRangeGetAttribute: no advice is remembered, so every answer is "none" or "nowhere".
pub(crate) fn range_attribute(
    data: Out<std::ffi::c_void>,
    bytes: usize,
    attribute: i32,
    address: Pointer,
    size: usize,
) -> Done {
    check(address, size as u64)?;
    if data.is_null() || bytes < 4 {
        return Err(Error::INVALID_VALUE);
    }
    let value = match attribute {
        1 => 0,
        // Devices: -2 is "not the same for all of the range, or unknown".
        2..=4 => -2,
        _ => 0,
    };
    data.cast::<i32>().set(value);
    Ok(())
}
