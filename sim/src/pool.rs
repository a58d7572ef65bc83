//! Stream-ordered pools. A pool's reserved bytes grow in steps of 32 MiB when what is used would
//! not fit any more, stay after frees, and go down to the release threshold at the next
//! synchronisation. Pages are remapped where they are needed, so a pool never fragments: only the
//! sums count. Work on the simulated streams is done at once, so a freed block is free at once.

use crate::abi::*;
use crate::aperture::HOST;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Block, Locked, Memory, Owner, next_id, round_up};
use crate::pool_state::{GRAIN, Pool, PoolId};
use crate::streams;
use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

const TAG: u64 = 0x00b0_0000_0000;

fn handle(device: usize, pool: PoolId) -> Handle {
    (TAG | (device as u64) << 24 | pool as u64) as Handle
}

/// The memory and the pool behind a handle; the pool may not exist any more.
pub(crate) fn decode(pool: Handle) -> Done<(&'static Memory, PoolId)> {
    let word = pool as u64;
    let device = (word >> 24 & 0xff) as usize;
    if word & !0xffff_ffff != TAG || (device != HOST && device >= driver().devices.count) {
        return Err(Error::INVALID_VALUE);
    }
    Ok((driver().memory(device), (word & 0xff_ffff) as PoolId))
}

pub(crate) fn memory_of_location(location: Location) -> Done<&'static Memory> {
    match location.kind {
        LOCATION_DEVICE => {
            Ok(driver().memory(device::by_ordinal(location.id).map_err(|_| Error::INVALID_VALUE)?))
        }
        LOCATION_HOST | LOCATION_HOST_NUMA | LOCATION_HOST_NUMA_CURRENT => Ok(&driver().host),
        _ => Err(Error::INVALID_VALUE),
    }
}

impl Locked<'_> {
    fn pool(&mut self, id: PoolId) -> Done<&mut Pool> {
        self.state.pools.get_mut(&id).filter(|pool| !pool.destroyed).ok_or(Error::INVALID_VALUE)
    }

    fn pool_take(&mut self, id: PoolId, size: u64) -> Done<Pointer> {
        let span = round_up(size, GRAIN)?;
        let pool = self.pool(id)?;
        let need = pool.used.checked_add(span).ok_or(Error::OUT_OF_MEMORY)?;
        if pool.max != 0 && need > pool.max {
            return Err(Error::OUT_OF_MEMORY);
        }
        if need > pool.reserved {
            self.pool_grow(id, need)?;
        }
        let pool = self.pool(id)?;
        let address = match pool.take(size, span) {
            Some(address) => address,
            None => {
                let arena = round_up(span, POOL_STEP)?;
                let start = self.take_pages(arena, PAGE)?;
                let pool = self.pool(id)?;
                pool.arenas.push((start, arena));
                pool.free.give(start, arena);
                pool.take(size, span).ok_or(Error::OUT_OF_MEMORY)?
            }
        };
        let block = Block { size, span, owner: Owner::Pool(id), context: 0, id: next_id() };
        self.state.live.insert(address, block);
        Ok(address)
    }

    fn pool_grow(&mut self, id: PoolId, need: u64) -> Done {
        let grow = round_up(need - self.pool(id)?.reserved, POOL_STEP)?;
        if self.memory.charge_only(grow) {
            self.pool(id)?.add_reserved(grow);
            return Ok(());
        }
        // A full device takes back what pools do not use, which may shrink this very one.
        self.release_unused();
        let grow = round_up(need - self.pool(id)?.reserved, POOL_STEP)?;
        if !self.memory.charge_only(grow) {
            return Err(Error::OUT_OF_MEMORY);
        }
        self.pool(id)?.add_reserved(grow);
        Ok(())
    }

    pub(crate) fn pool_give(&mut self, id: PoolId, address: Pointer, size: u64, span: u64) {
        let Some(pool) = self.state.pools.get_mut(&id) else { return };
        pool.give(address, size, span);
        let (empty, destroyed) = (pool.used == 0, pool.destroyed);
        if pool.reserved > pool.threshold {
            self.memory.excess.store(true, Relaxed);
        }
        if destroyed && empty {
            self.pool_remove(id);
        }
    }

    fn pool_remove(&mut self, id: PoolId) {
        if let Some(pool) = self.state.pools.remove(&id) {
            self.memory.release(pool.reserved, pool.reserved);
            if let Some(fd) = pool.imported {
                crate::system::close(fd);
            }
            for (start, bytes) in pool.arenas {
                self.give_pages(start, bytes);
            }
        }
    }

    /// Lowers what a pool holds to `keep` bytes or what is in use.
    fn pool_trim(&mut self, id: PoolId, keep: u64) {
        let memory = self.memory;
        let Some(pool) = self.state.pools.get_mut(&id) else { return };
        let floor = pool.used.max(keep).checked_next_multiple_of(POOL_STEP).unwrap_or(u64::MAX);
        if pool.reserved > floor {
            memory.release(pool.reserved - floor, pool.reserved - floor);
            pool.reserved = floor;
            pool.forget_recent();
            for (start, bytes) in pool.free.iter() {
                memory.aperture.clean(start, bytes);
            }
        }
    }

    /// What synchronising does: pools go down to their thresholds.
    fn pools_settle(&mut self) {
        let all: Vec<_> = self.state.pools.iter().map(|(&id, pool)| (id, pool.threshold)).collect();
        for (id, threshold) in all {
            self.pool_trim(id, threshold);
        }
    }

    /// The device is full: whatever pools and graphs hold and do not use goes first.
    pub(crate) fn release_unused(&mut self) {
        let all: Vec<_> = self.state.pools.keys().copied().collect();
        for id in all {
            self.pool_trim(id, 0);
        }
        let given = self.state.graph.trim();
        self.memory.release(given, given);
    }
}

/// After a stream, event, context or device was waited for.
pub(crate) fn settle(memory: &Memory) {
    if memory.excess.load(Relaxed) && memory.excess.swap(false, Relaxed) {
        memory.lock().pools_settle();
    }
}

pub(crate) fn alloc_async(out: Out<Pointer>, size: usize, stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    if out.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let memory = driver().memory(place.device);
    if let Some(capture) = place.capture {
        let pointer = capture.add_alloc(memory, size as u64)?;
        out.set(pointer);
        return Ok(());
    }
    let mut locked = memory.lock();
    let pool = locked.state.current_pool;
    // The device's current pool may be another device's or the host's: cuDeviceSetMemPool
    // refuses that, so the number is one of this memory.
    let pointer = locked.pool_take(pool, size as u64)?;
    out.set(pointer);
    Ok(())
}

pub(crate) fn alloc_from_pool_async(
    out: Out<Pointer>,
    size: usize,
    pool: Handle,
    stream: StreamArg,
) -> Done {
    let place = streams::place(stream)?;
    if out.is_null() || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (memory, id) = decode(pool)?;
    if let Some(capture) = place.capture {
        memory.lock().pool(id)?;
        let pointer = capture.add_alloc(memory, size as u64)?;
        out.set(pointer);
        return Ok(());
    }
    let pointer = memory.lock().pool_take(id, size as u64)?;
    out.set(pointer);
    Ok(())
}

pub(crate) fn free_async(pointer: Pointer, stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    if pointer == 0 {
        return Ok(());
    }
    if let Some(capture) = place.capture {
        return capture.add_free(pointer);
    }
    driver().at(pointer).ok_or(Error::INVALID_VALUE)?.lock().free(pointer)
}

pub(crate) fn create(out: Out<Handle>, props: In<PoolProps>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(create_from(&props.get()?)?);
    Ok(())
}

pub(crate) fn create_from(props: &PoolProps) -> Done<Handle> {
    // Pinned (1) or managed (2) memory.
    if !matches!(props.kind, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = memory_of_location(props.location)?;
    let mut locked = memory.lock();
    let id = locked.state.next_pool;
    locked.state.next_pool += 1;
    let pool = Pool {
        max: props.max_size as u64,
        handle_types: props.handle_types,
        ..Pool::default_of_device()
    };
    locked.state.pools.insert(id, pool);
    Ok(handle(memory.index, id))
}

pub(crate) fn destroy(pool: Handle) -> Done {
    let (memory, id) = decode(pool)?;
    if id == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    let state = locked.pool(id)?;
    state.destroyed = true;
    let empty = state.used == 0;
    if locked.state.current_pool == id {
        locked.state.current_pool = 0;
    }
    if empty {
        locked.pool_remove(id);
    } else {
        locked.pool_trim(id, 0);
    }
    Ok(())
}

pub(crate) fn trim_to(pool: Handle, keep: usize) -> Done {
    let (memory, id) = decode(pool)?;
    let mut locked = memory.lock();
    locked.pool(id)?;
    locked.pool_trim(id, keep as u64);
    Ok(())
}

pub(crate) fn set_attribute(pool: Handle, attribute: i32, value: Out<c_void>) -> Done {
    let (memory, id) = decode(pool)?;
    if value.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    let pool = locked.pool(id)?;
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = value.cast::<i32>().get()?,
        4 => pool.threshold = value.cast::<u64>().get()?,
        // The high marks can only be set back.
        6 | 8 if value.cast::<u64>().get()? != 0 => return Err(Error::INVALID_VALUE),
        6 => pool.reserved_high = pool.reserved,
        8 => pool.requested_high = pool.requested,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn get_attribute(pool: Handle, attribute: i32, value: Out<c_void>) -> Done {
    streams::refuse_while_capturing()?;
    let (memory, id) = decode(pool)?;
    if value.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    let Ok(pool) = locked.pool(id) else {
        // The driver reads freed memory: with 580.159.04 a process ended with SIGSEGV in this call.
        eprintln!("simulated driver: cuMemPoolGetAttribute of a pool that was destroyed");
        std::process::abort();
    };
    let number = match attribute {
        1..=3 => {
            value.cast::<i32>().set(pool.reuse[attribute as usize - 1]);
            return Ok(());
        }
        4 => pool.threshold,
        5 => pool.reserved,
        6 => pool.reserved_high,
        7 => pool.requested,
        8 => pool.requested_high,
        9..=12 => {
            let host = memory.index == HOST;
            let small = match attribute {
                9 => 1,
                10 => pool.handle_types,
                11 => {
                    if host {
                        0
                    } else {
                        device::ordinal(memory.index)
                    }
                }
                _ => {
                    if host {
                        LOCATION_HOST
                    } else {
                        LOCATION_DEVICE
                    }
                }
            };
            value.cast::<i32>().set(small);
            return Ok(());
        }
        13 => pool.max,
        14 => {
            value.cast::<i32>().set(0);
            return Ok(());
        }
        _ => return Err(Error::INVALID_VALUE),
    };
    value.cast::<u64>().set(number);
    Ok(())
}

pub(crate) fn set_access(pool: Handle, list: In<AccessDesc>, count: usize) -> Done {
    let (memory, id) = decode(pool)?;
    memory.lock().pool(id)?;
    if list.is_null() && count != 0 { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

pub(crate) fn get_access(flags: Out<i32>, pool: Handle, location: In<Location>) -> Done {
    let (memory, id) = decode(pool)?;
    memory.lock().pool(id)?;
    if flags.is_null() || location.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let wanted = memory_of_location(location.get()?)?;
    flags.set(if wanted.index == memory.index { 3 } else { 0 });
    Ok(())
}

pub(crate) fn device_default(out: Out<Handle>, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(handle(index, 0));
    Ok(())
}

pub(crate) fn device_get(out: Out<Handle>, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let current = driver().memory(index).lock().state.current_pool;
    out.set(handle(index, current));
    Ok(())
}

pub(crate) fn device_set(ordinal: i32, pool: Handle) -> Done {
    let index = device::by_ordinal(ordinal)?;
    let (memory, id) = decode(pool)?;
    if memory.index != index {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    locked.pool(id)?;
    locked.state.current_pool = id;
    Ok(())
}

pub(crate) fn location_default(out: Out<Handle>, location: Out<Location>, kind: i32) -> Done {
    if out.is_null() || location.is_null() || !matches!(kind, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = memory_of_location(location.get()?)?;
    out.set(handle(memory.index, 0));
    Ok(())
}

pub(crate) fn location_get(out: Out<Handle>, location: Out<Location>, kind: i32) -> Done {
    if out.is_null() || location.is_null() || !matches!(kind, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = memory_of_location(location.get()?)?;
    let current = memory.lock().state.current_pool;
    out.set(handle(memory.index, current));
    Ok(())
}

pub(crate) fn location_set(location: Out<Location>, kind: i32, pool: Handle) -> Done {
    if location.is_null() || !matches!(kind, 1 | 2) {
        return Err(Error::INVALID_VALUE);
    }
    let wanted = memory_of_location(location.get()?)?;
    let (memory, id) = decode(pool)?;
    if wanted.index != memory.index {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    locked.pool(id)?;
    locked.state.current_pool = id;
    Ok(())
}

/// The pool that a live pointer came from.
pub(crate) fn handle_of(memory: &Memory, id: PoolId) -> Handle {
    handle(memory.index, id)
}
