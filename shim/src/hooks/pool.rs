//! Pools of stream-ordered memory: made, changed and ended, and what the driver says of them.

use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::call::Call;
use crate::hooks::pool_reserves::{gone, refresh};
use crate::hooks::state::Process;
use crate::model::pools::Pool as KnownPool;
use core::ffi::c_void;
use std::ptr::null_mut;
use vramtrace_format::{Definition, DeviceId, Kind, PoolOrigin};

pub(super) fn current_pool(p: &'static Process, device: DeviceId) -> Option<&'static KnownPool> {
    if device == DeviceId::UNKNOWN {
        return None;
    }
    let ask = driver().device_get_mem_pool?;
    let mut pool = null_mut();
    // SAFETY: room for the answer.
    if inside(|| unsafe { ask(&mut pool, device.0.into()) }) != 0 {
        return None;
    }
    meet(p, pool as u64, device, Kind::Pool, PoolOrigin::Default)
}

/// The pool of a handle, defined in the trace when it is new.
pub fn meet(
    p: &'static Process,
    handle: u64,
    device: DeviceId,
    kind: Kind,
    origin: PoolOrigin,
) -> Option<&'static KnownPool> {
    if handle == 0 {
        return None;
    }
    let (pool, new) = p.pools.meet(handle, device, kind)?;
    if new {
        crate::hooks::target::meet_device(p, device);
        p.trace_writer.define(&Definition::Pool { id: pool.id(), device, handle, origin });
    }
    Some(pool)
}

/// Device and kind of what a pool gives out.
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

/// # Safety
/// As the driver's function.
pub unsafe fn create(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Pool, *const CUmemPoolProps) -> CUresult>,
    pool: *mut Pool,
    props: *const CUmemPoolProps,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool, props) };
    // SAFETY: the driver has read the one and written the other.
    if result == 0
        // SAFETY: the driver has written it, and read what it was given.
        && let (Some(pool), Some(props)) = unsafe { (pool.as_ref(), props.as_ref()) }
    {
        let (device, kind) = located(props.location, props.alloc_type);
        meet(p, *pool as u64, device, kind, PoolOrigin::Created);
    }
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn destroy(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Pool) -> CUresult>,
    pool: Pool,
) -> CUresult {
    let known = p.pools.find(pool as u64);
    if let Some(known) = known {
        refresh(p, known);
    }
    p.stream_targets.forget();
    p.pools.begin_destroy(pool as u64);
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool) };
    match known {
        Some(known) if result != 0 => p.pools.put_back(known),
        Some(known) if known.growth.known().1 == 0 => gone(p, known),
        _ => {}
    }
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn trim(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Pool, usize) -> CUresult>,
    pool: Pool,
    keep: usize,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool, keep) };
    if let Some(known) = p.pools.find(pool as u64) {
        refresh(p, known);
    }
    result
}

/// A new release threshold may be followed by a release at the next synchronisation.
///
/// # Safety
/// As the driver's function.
pub unsafe fn set_attribute(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(Pool, CUmemPool_attribute, *mut c_void) -> CUresult>,
    pool: Pool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool, attribute, value) };
    if let Some(known) = p.pools.find(pool as u64) {
        refresh(p, known);
    }
    result
}

/// cuDeviceGetDefaultMemPool and cuDeviceGetMemPool.
///
/// # Safety
/// As the driver's function.
pub unsafe fn get_of_device(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(*mut Pool, i32) -> CUresult>,
    pool: *mut Pool,
    device: i32,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool, device) };
    // SAFETY: the driver has written it.
    if result == 0
        // SAFETY: the driver has written it, and read what it was given.
        && let (Some(pool), Ok(device)) = (unsafe { pool.as_ref() }, u8::try_from(device))
    {
        meet(p, *pool as u64, DeviceId(device), Kind::Pool, PoolOrigin::Default);
    }
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn set_of_device(
    p: &'static Process,
    call: &Call<unsafe extern "C-unwind" fn(i32, Pool) -> CUresult>,
    device: i32,
    pool: Pool,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(device, pool) };
    p.stream_targets.forget();
    result
}

/// cuMemGetDefaultMemPool and cuMemGetMemPool.
///
/// # Safety
/// As the driver's function.
pub unsafe fn get_of_location(
    p: &'static Process,
    call: &Call<
        unsafe extern "C-unwind" fn(*mut Pool, *mut CUmemLocation, CUmemAllocationType) -> CUresult,
    >,
    pool: *mut Pool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(pool, location, kind) };
    // SAFETY: the driver has read the one and written the other.
    if result == 0
        // SAFETY: the driver has written it, and read what it was given.
        && let (Some(pool), Some(location)) = unsafe { (pool.as_ref(), location.as_ref()) }
    {
        let (device, kind) = located(*location, kind);
        meet(p, *pool as u64, device, kind, PoolOrigin::Default);
    }
    result
}

/// # Safety
/// As the driver's function.
pub unsafe fn set_of_location(
    p: &'static Process,
    call: &Call<
        unsafe extern "C-unwind" fn(*mut CUmemLocation, CUmemAllocationType, Pool) -> CUresult,
    >,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: Pool,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    let result = unsafe { call.real(location, kind, pool) };
    p.stream_targets.forget();
    result
}
