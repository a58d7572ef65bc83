//! Pinned and registered host memory.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Locked, Owner};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

struct Registered {
    size: u64,
    context: u32,
}

static REGISTERED: Mutex<BTreeMap<Pointer, Registered>> = Mutex::new(BTreeMap::new());

impl Locked<'_> {
    pub(crate) fn is_pool_block(&self, address: Pointer) -> bool {
        matches!(
            self.state.live.get(&address),
            Some(block) if matches!(block.owner, Owner::Pool(_))
        )
    }
}

pub(crate) fn alloc(out: Out<Handle>, size: usize) -> Done {
    alloc_flags(out, size, 0)
}

pub(crate) fn alloc_flags(out: Out<Handle>, size: usize, flags: u32) -> Done {
    let context = contexts::current()?;
    // Portable, device map, write combined.
    if out.is_null() || size == 0 || flags & !7 != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let address = driver().host.lock().allocate(size as u64, context.id)?;
    // Whatever is written to it goes unseen.
    driver().host.aperture.mark_dirty(address, size as u64);
    out.put(address as *mut c_void)
}

pub(crate) fn free(pointer: Handle) -> Done {
    contexts::current()?;
    if pointer.is_null() {
        return Ok(());
    }
    let address = pointer as Pointer;
    let memory = driver().at(address).ok_or(Error::INVALID_VALUE)?;
    if !std::ptr::eq(memory, &driver().host) {
        return Err(Error::INVALID_VALUE);
    }
    memory.lock().free(address)
}

pub(crate) fn register(pointer: Handle, size: usize, flags: u32) -> Done {
    let context = contexts::current()?;
    if pointer.is_null() || size == 0 || flags & !0xf != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let start = pointer as Pointer;
    let end = start.checked_add(size as u64).ok_or(Error::INVALID_VALUE)?;
    let mut all = REGISTERED.lock().unwrap();
    let overlaps =
        all.range(..end).next_back().is_some_and(|(&other, found)| other + found.size > start);
    if overlaps || driver().host.lock().find(start).is_some() {
        return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
    }
    all.insert(start, Registered { size: size as u64, context: context.id });
    Ok(())
}

pub(crate) fn unregister(pointer: Handle) -> Done {
    contexts::current()?;
    if pointer.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let removed = REGISTERED.lock().unwrap().remove(&(pointer as Pointer));
    removed.map(|_| ()).ok_or(Error::HOST_MEMORY_NOT_REGISTERED)
}

pub(crate) fn forget_context(context: u32) {
    REGISTERED.lock().unwrap().retain(|_, found| found.context != context);
}
