//! Memory pools: creation, attributes and destruction, and their properties as the driver gives them.

use super::prelude::*;
use super::vmm::located;
use crate::hooks::process::pool_reserves::{end_if_over, refresh};
use crate::hooks::process::target::known_device;
use crate::hooks::process::texts::say_once;
use crate::model::pools::{MOST, Pool as KnownPool, Seen};
use crate::model::vmm::What;
use crate::runtime::log::Once;
use crate::runtime::reserve;
use std::ptr::null_mut;
use vramtrace_format::{Definition, PoolOrigin};

pub(in crate::hooks) fn current_pool(
    p: &'static Process,
    device: DeviceId,
) -> Option<&'static KnownPool> {
    if device == DeviceId::UNKNOWN {
        return None;
    }
    let ask = driver().device_get_mem_pool?;
    let pool = answer(null_mut(), |pool| Some(ask(pool, device.0.into())))?;
    register(p, pool, (device, Kind::Pool), PoolOrigin::Default)
}

/// The pool of a handle, defined in the trace when it is new. `None`: it is not followed.
fn register(
    p: &'static Process,
    handle: Pool,
    (device, kind): (DeviceId, Kind),
    origin: PoolOrigin,
) -> Option<&'static KnownPool> {
    let handle = handle as u64;
    followed(p, (handle, device, origin), || p.pools.register(handle, device, kind, origin))
}

/// The pool of a handle that a request names, as [`register`].
pub fn named(p: &'static Process, handle: u64, device: DeviceId) -> Option<&'static KnownPool> {
    followed(p, (handle, device, PoolOrigin::Created), || p.pools.named(handle, device))
}

fn followed(
    p: &'static Process,
    (handle, device, origin): (u64, DeviceId, PoolOrigin),
    seen: impl FnOnce() -> Option<Seen<'static>>,
) -> Option<&'static KnownPool> {
    if handle == 0 {
        return None;
    }
    let Some(Seen { pool, define }) = seen() else {
        match p.pools.is_full() {
            true => overflowed(p),
            // The line about refused memory is printed at the end of the call.
            false => reserve::ran_out(),
        }
        return None;
    };
    if define {
        known_device(p, device);
        p.trace_writer.define(&Definition::Pool { id: pool.id(), device, handle, origin });
    }
    Some(pool)
}

#[cold]
fn overflowed(p: &'static Process) {
    say_once(&p.trace_writer, Once::Pools, || {
        format!(
            "the recorder has no room for more than {MOST} memory pools at one time: what further ones \
             hold is not counted, and under a cap their requests are refused"
        )
    });
}

/// Device and kind of a pool's memory.
fn memory_at(location: CUmemLocation, alloc_type: u32) -> (DeviceId, Kind) {
    const MANAGED: u32 = 2;
    let (what, device) = located(&location);
    let kind = match what {
        _ if alloc_type == MANAGED => Kind::Managed,
        What::Host => Kind::HostPinned,
        _ => Kind::Pool,
    };
    (device, kind)
}

pub fn create(call: Call<impl Row>, pool: Out<Pool>, props: In<CUmemPoolProps>) -> CUresult {
    gave(call.forward(), pool, |pool| {
        if let Some(props) = props.get() {
            let memory = memory_at(props.location, props.alloc_type);
            register(call.p, pool, memory, PoolOrigin::Created);
        }
    })
}

/// cuDeviceGetDefaultMemPool and cuDeviceGetMemPool.
pub fn get_of_device(call: Call<impl Row>, pool: Out<Pool>, device: i32) -> CUresult {
    gave(call.forward(), pool, |pool| {
        if let Ok(device) = u8::try_from(device) {
            register(call.p, pool, (DeviceId(device), Kind::Pool), PoolOrigin::Default);
        }
    })
}

/// cuMemGetDefaultMemPool and cuMemGetMemPool.
pub fn get_of_location(
    call: Call<impl Row>,
    pool: Out<Pool>,
    location: In<CUmemLocation>,
    alloc_type: u32,
) -> CUresult {
    gave(call.forward(), pool, |pool| {
        if let Some(location) = location.get() {
            register(call.p, pool, memory_at(location, alloc_type), PoolOrigin::Default);
        }
    })
}

pub fn destroy(call: Call<impl Row>, pool: Pool) -> CUresult {
    let p = call.p;
    let known = p.pools.find(pool as u64);
    if let Some(known) = known {
        refresh(p, known);
    }
    p.stream_targets.forget();
    p.pools.begin_destroy(pool as u64);
    let result = call.forward();
    match known {
        Some(known) if result != 0 => p.pools.put_back(known),
        Some(known) => {
            p.pools.destroyed(known);
            end_if_over(p, known);
        }
        None => {}
    }
    result
}

/// cuMemPoolTrimTo and cuMemPoolSetAttribute, after which the pool may hold less: a new release threshold may be followed by a
/// release at the next synchronisation.
pub fn change(call: Call<impl Row>, pool: Pool) -> CUresult {
    let result = call.forward();
    if let Some(known) = call.p.pools.find(pool as u64) {
        refresh(call.p, known);
    }
    result
}

/// cuDeviceSetMemPool and cuMemSetMemPool: requests may go to another pool.
pub fn set(call: Call<impl Row>) -> CUresult {
    let result = call.forward();
    call.p.stream_targets.forget();
    result
}
