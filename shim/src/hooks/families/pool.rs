//! Memory pools: creation, attributes and destruction, and their properties as the driver gives them.

use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::process::pool_reserves::{end_if_over, refresh};
use crate::hooks::process::state::Process;
use crate::hooks::process::texts::say_once;
use crate::model::pools::{MOST, OWN_IDS, Pool as KnownPool, Seen};
use crate::runtime::log;
use core::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use vramtrace_format::{Definition, DeviceId, Kind, PoolOrigin};

pub(in crate::hooks) fn current_pool(
    p: &'static Process,
    device: DeviceId,
) -> Option<&'static KnownPool> {
    if device == DeviceId::UNKNOWN {
        return None;
    }
    let ask = driver().device_get_mem_pool?;
    let mut pool = null_mut();
    if inside(|| ask(&mut pool, device.0.into())) != 0 {
        return None;
    }
    register(p, pool as u64, device, Kind::Pool, PoolOrigin::Default)
}

/// The pool of a handle, defined in the trace when it is new. `None`: it is not followed.
pub fn register(
    p: &'static Process,
    handle: u64,
    device: DeviceId,
    kind: Kind,
    origin: PoolOrigin,
) -> Option<&'static KnownPool> {
    let seen = || p.pools.register(handle, device, kind, origin);
    followed(p, (handle, device, origin), seen)
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
            true => overflowed(),
            // The line about refused memory is printed at the end of the call.
            false => crate::runtime::reserve::ran_out(),
        }
        return None;
    };
    if define {
        crate::hooks::process::target::known_device(p, device);
        // One id may stand for several pools.
        let handle = if pool.shares_id() { 0 } else { handle };
        p.trace_writer.define(&Definition::Pool { id: pool.id(), device, handle, origin });
    }
    if pool.shares_id() {
        static SAID: AtomicBool = AtomicBool::new(false);
        let most = OWN_IDS;
        say_once(&p.trace_writer, &SAID, || {
            format!(
                "more than {most} memory pools exist at one time: the trace has all further ones of a \
                 device as one; a cap counts each"
            )
        });
    }
    Some(pool)
}

#[cold]
fn overflowed() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::line(format_args!(
            "the recorder has no room for more than {MOST} memory pools at one time: what further ones \
             hold is not counted, and under a cap their requests are refused"
        ));
    }
}

/// Device and kind of a pool's memory.
fn located(location: CUmemLocation, alloc_type: u32) -> (DeviceId, Kind) {
    const MANAGED: u32 = 2;
    let device = match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => location.id,
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => location.id & 0xff,
        _ => -1,
    };
    let device = u8::try_from(device).map_or(DeviceId::UNKNOWN, DeviceId);
    let kind = match location.kind {
        _ if alloc_type == MANAGED => Kind::Managed,
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Kind::HostPinned,
        _ => Kind::Pool,
    };
    (device, kind)
}

pub fn destroy(p: &'static Process, call: &Call<impl Function>, pool: Pool) -> CUresult {
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

/// Makes a call after which the pool may hold less.
fn then_refreshed(p: &'static Process, call: &Call<impl Function>, pool: Pool) -> CUresult {
    let result = call.forward();
    if let Some(known) = p.pools.find(pool as u64) {
        refresh(p, known);
    }
    result
}

/// Makes a call after which requests may go to another pool.
fn then_forgotten(p: &'static Process, call: &Call<impl Function>) -> CUresult {
    let result = call.forward();
    p.stream_targets.forget();
    result
}

hooks! { p, call:
    create(pool: Out<Pool>, props: In<CUmemPoolProps>) = gave(call.forward(), pool, |pool| {
        if let Some(props) = props.get() {
            let (device, kind) = located(props.location, props.alloc_type);
            register(p, pool as u64, device, kind, PoolOrigin::Created);
        }
    });
    /// cuDeviceGetDefaultMemPool and cuDeviceGetMemPool.
    get_of_device(pool: Out<Pool>, device: i32) = gave(call.forward(), pool, |pool| {
        if let Ok(device) = u8::try_from(device) {
            register(p, pool as u64, DeviceId(device), Kind::Pool, PoolOrigin::Default);
        }
    });
    /// cuMemGetDefaultMemPool and cuMemGetMemPool.
    get_of_location(pool: Out<Pool>, location: In<CUmemLocation>, kind: CUmemAllocationType) =
        gave(call.forward(), pool, |pool| {
            if let Some(location) = location.get() {
                let (device, kind) = located(location, kind);
                register(p, pool as u64, device, kind, PoolOrigin::Default);
            }
        });
    trim(pool: Pool, keep: usize) = then_refreshed(p, call, pool);
    /// A new release threshold may be followed by a release at the next synchronisation.
    set_attribute(pool: Pool, attribute: CUmemPool_attribute, value: *mut c_void) =
        then_refreshed(p, call, pool);
    set_of_device(device: i32, pool: Pool) = then_forgotten(p, call);
    set_of_location(location: In<CUmemLocation>, kind: CUmemAllocationType, pool: Pool) =
        then_forgotten(p, call);
}
