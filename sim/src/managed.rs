//! Managed memory: addresses at once, device bytes page by page when the device first touches
//! them. NVML's per-process figure leaves it out.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Block, Owner, round_up};
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
    };
    locked.state.live.insert(address, block);
    out.put(address)
}

/// The device works on these bytes. A full device evicts: pages beyond what it has stay
/// uncharged. What went to the device stays there.
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
