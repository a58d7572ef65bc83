//! Stream-ordered pools. A pool's reserved bytes grow in steps of 32 MiB when what is used would
//! not fit any more, stay after frees, and go down to the release threshold at the next
//! synchronisation. Pieces of 32 MiB without a block are remapped where they are needed, or given back; one
//! with a block is not, as on an H200: 71,314 MiB that were free between blocks of 3 MiB served no request
//! of 4 GiB. Work on the simulated streams is done at once, so a freed block is free at once.

use crate::abi::*;
use crate::aperture::HOST;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::memory::{Block, Locked, Memory, Owner, round_up};
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
        let (address, grows) = match pool.take(size, span) {
            Some(address) => (address, pool.pinned > pool.reserved),
            None => {
                // As much again as it has: blocks lie side by side then.
                let has = pool.arenas.iter().map(|(_, bytes)| bytes).sum();
                let arena = round_up(span.max(has), POOL_STEP)?;
                let start = self.take_pages(arena, POOL_STEP)?;
                let pool = self.pool(id)?;
                pool.add_arena(start, arena);
                (pool.take(size, span).ok_or(Error::OUT_OF_MEMORY)?, true)
            }
        };
        if grows && let Err(error) = self.pool_grow(id) {
            self.pool(id)?.give(address, size, span);
            return Err(error);
        }
        let block = Block { size, span, owner: Owner::Pool(id), context: 0 };
        self.state.live.insert(address, block);
        Ok(address)
    }

    /// Reserves what its blocks need.
    fn pool_grow(&mut self, id: PoolId) -> Done {
        let missing = |pool: &Pool| pool.pinned.saturating_sub(pool.reserved);
        let mut grow = missing(self.pool(id)?);
        if !self.memory.charge_only(grow) {
            // A full device takes back what pools do not use, which may shrink this very one.
            self.release_unused();
            grow = missing(self.pool(id)?);
            if !self.memory.charge_only(grow) {
                return Err(Error::OUT_OF_MEMORY);
            }
        }
        self.pool(id)?.reserved += grow;
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
        let keep = keep.checked_next_multiple_of(POOL_STEP).unwrap_or(u64::MAX);
        let floor = pool.pinned.max(keep);
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
    let pool = handle(streams::place(stream)?.device, 0);
    alloc_from_pool_async(out, size, pool, stream)
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
        return out.put(capture.add_alloc(memory, size as u64)?);
    }
    out.put(memory.lock().pool_take(id, size as u64)?)
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
    out.put(create_from(&props.get()?)?)
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
    value.check()?;
    let mut locked = memory.lock();
    let pool = locked.pool(id)?;
    match attribute {
        4 => pool.threshold = value.cast::<u64>().get()?,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

/// Reserved and used bytes and the threshold, which the recorder and the programs of the tests ask for.
pub(crate) fn get_attribute(pool: Handle, attribute: i32, value: Out<c_void>) -> Done {
    streams::refuse_while_capturing()?;
    let (memory, id) = decode(pool)?;
    value.check()?;
    let mut locked = memory.lock();
    let Ok(pool) = locked.pool(id) else {
        // The driver reads freed memory: with 580.159.04 a process ended with SIGSEGV in this call.
        eprintln!("simulated driver: cuMemPoolGetAttribute of a pool that was destroyed");
        std::process::abort();
    };
    value.cast::<u64>().put(match attribute {
        4 => pool.threshold,
        5 => pool.reserved,
        7 => pool.requested,
        _ => return Err(Error::INVALID_VALUE),
    })
}

/// The pool of a device: no call chooses another one.
pub(crate) fn of_device(out: Out<Handle>, ordinal: i32) -> Done {
    out.put(handle(device::by_ordinal(ordinal)?, 0))
}
