//! Pinned and registered host memory.

use crate::abi::*;
use crate::contexts;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Locked, Owner, next_id};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

pub(crate) struct Registered {
    pub start: Pointer,
    pub size: u64,
    pub device: usize,
    pub context: u32,
    pub id: u64,
    flags: u32,
}

static REGISTERED: Mutex<BTreeMap<Pointer, Registered>> = Mutex::new(BTreeMap::new());
static FLAGS: Mutex<BTreeMap<Pointer, u32>> = Mutex::new(BTreeMap::new());

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

pub(crate) fn alloc_v1(out: Out<Handle>, size: u32) -> Done {
    alloc_flags(out, size as usize, 0)
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
    FLAGS.lock().unwrap().insert(address, flags | 2);
    out.set(address as *mut c_void);
    Ok(())
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
    memory.lock().free(address)?;
    FLAGS.lock().unwrap().remove(&address);
    Ok(())
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
    all.insert(
        start,
        Registered {
            start,
            size: size as u64,
            device: context.device,
            context: context.id,
            id: next_id(),
            flags,
        },
    );
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

pub(crate) fn device_pointer(out: Out<Pointer>, pointer: Handle, flags: u32) -> Done {
    contexts::current()?;
    if out.is_null() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let address = pointer as Pointer;
    if driver().host.lock().find(address).is_none() && registered(address).is_none() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(address);
    Ok(())
}

pub(crate) fn get_flags(out: Out<u32>, pointer: Handle) -> Done {
    contexts::current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let address = pointer as Pointer;
    let flags = match FLAGS.lock().unwrap().get(&address) {
        Some(&flags) => flags,
        None => registered(address).ok_or(Error::INVALID_VALUE)?.flags,
    };
    out.set(flags);
    Ok(())
}

/// The registration that holds an address.
pub(crate) fn registered(address: Pointer) -> Option<Registered> {
    let all = REGISTERED.lock().unwrap();
    let (_, found) = all.range(..=address).next_back()?;
    (address - found.start < found.size).then_some(Registered { ..*found })
}

pub(crate) fn forget_context(context: u32) {
    REGISTERED.lock().unwrap().retain(|_, found| found.context != context);
    let host = driver().host.lock();
    let freed = |address: &Pointer| {
        host.state.live.get(address).is_some_and(|block| block.context == context)
    };
    FLAGS.lock().unwrap().retain(|address, _| !freed(address));
}
