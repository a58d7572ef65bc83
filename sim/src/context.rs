//! Contexts: what they cost, which is current, what dies with them.

use crate::abi::*;
use crate::contexts::*;
use crate::device::{self};
use crate::error::{Done, Error};
use crate::{array, host, module, stream};
use std::sync::atomic::Ordering::*;

/// What dies with a context.
fn end(context: &Context) {
    context.alive.store(false, Release);
    stream::forget_context(context.id);
    array::forget_context(context.id);
    module::forget_context(context.id);
    host::forget_context(context.id);
    context.release();
}

pub(crate) fn create(out: Out<Handle>, flags: u32, ordinal: i32) -> Done {
    let index = device::by_ordinal(ordinal)?;
    if out.is_null() || flags > 0xff {
        return Err(Error::INVALID_VALUE);
    }
    let context = Context::new(index, false, flags);
    context.start()?;
    *context.references.lock().unwrap() = 1;
    push(Some(context));
    out.set(context.handle());
    Ok(())
}

pub(crate) fn create_v3(
    out: Out<Handle>,
    _affinity: Out<std::ffi::c_void>,
    _count: i32,
    flags: u32,
    ordinal: i32,
) -> Done {
    create(out, flags, ordinal)
}

pub(crate) fn create_v4(
    out: Out<Handle>,
    _params: Out<std::ffi::c_void>,
    flags: u32,
    ordinal: i32,
) -> Done {
    create(out, flags, ordinal)
}

pub(crate) fn destroy(handle: Handle) -> Done {
    let context = find(handle)?;
    if context.primary {
        return Err(Error::INVALID_CONTEXT);
    }
    if TOP.get().is_some_and(|top| std::ptr::eq(top, context)) {
        pop();
    }
    end(context);
    Ok(())
}

pub(crate) fn attach(out: Out<Handle>, _flags: u32) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    *context.references.lock().unwrap() += 1;
    out.set(context.handle());
    Ok(())
}

pub(crate) fn detach(handle: Handle) -> Done {
    let context = find(handle)?;
    if context.primary {
        return Err(Error::INVALID_CONTEXT);
    }
    let mut references = context.references.lock().unwrap();
    *references -= 1;
    let last = *references == 0;
    drop(references);
    if last { destroy(handle) } else { Ok(()) }
}

pub(crate) fn primary_retain(out: Out<Handle>, ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut references = context.references.lock().unwrap();
    if !context.is_alive() {
        context.start()?;
    }
    *references += 1;
    out.set(context.handle());
    Ok(())
}

pub(crate) fn primary_release(ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    let mut references = context.references.lock().unwrap();
    match *references {
        0 => return Err(Error::INVALID_CONTEXT),
        1 if context.is_alive() => end(context),
        _ => {}
    }
    *references -= 1;
    Ok(())
}

pub(crate) fn primary_reset(ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    let references = context.references.lock().unwrap();
    if context.is_alive() {
        end(context);
        // Who still holds it keeps a usable context, freshly made.
        if *references > 0 {
            context.start()?;
        }
    }
    Ok(())
}

pub(crate) fn primary_set_flags(ordinal: i32, flags: u32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    context.flags.store(flags, Relaxed);
    Ok(())
}

pub(crate) fn primary_get_state(ordinal: i32, flags: Out<u32>, active: Out<i32>) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    if !flags.is_null() {
        flags.set(context.flags.load(Relaxed));
    }
    if !active.is_null() {
        active.set(context.is_alive() as i32);
    }
    Ok(())
}

pub(crate) fn set_current(handle: Handle) -> Done {
    TOP.set(if handle.is_null() { None } else { Some(find(handle)?) });
    Ok(())
}

pub(crate) fn get_current(out: Out<Handle>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(TOP.get().map_or(std::ptr::null_mut(), Context::handle));
    Ok(())
}

pub(crate) fn push_current(handle: Handle) -> Done {
    push(Some(find(handle)?));
    Ok(())
}

pub(crate) fn pop_current(out: Out<Handle>) -> Done {
    let Some(top) = TOP.get() else { return Err(Error::INVALID_CONTEXT) };
    if !out.is_null() {
        out.set(top.handle());
    }
    pop();
    Ok(())
}

pub(crate) fn get_device(out: Out<i32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(device::ordinal(context.device));
    Ok(())
}

pub(crate) fn get_device_v2(out: Out<i32>, handle: Handle) -> Done {
    let context = named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(device::ordinal(context.device));
    Ok(())
}

pub(crate) fn get_flags(out: Out<u32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.flags.load(Relaxed));
    Ok(())
}

pub(crate) fn set_flags(flags: u32) -> Done {
    current()?.flags.store(flags, Relaxed);
    Ok(())
}

pub(crate) fn get_id(handle: Handle, out: Out<u64>) -> Done {
    let context = named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.id as u64);
    Ok(())
}

pub(crate) fn get_api_version(handle: Handle, out: Out<u32>) -> Done {
    named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(3020);
    Ok(())
}

pub(crate) fn synchronize() -> Done {
    let context = current()?;
    stream::synchronize_context(context)
}

pub(crate) fn synchronize_v2(handle: Handle) -> Done {
    stream::synchronize_context(named_or_current(handle)?)
}

pub(crate) fn get_limit(out: Out<usize>, limit: i32) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let limits = context.limits.lock().unwrap();
    let value = limits.get(limit as usize).filter(|_| (0..=9).contains(&limit));
    out.set(*value.ok_or(Error::UNSUPPORTED_LIMIT)?);
    Ok(())
}

/// Local memory for the stacks of all threads that can be resident is taken at the call, and
/// given back when the limit is lowered again. The malloc heap takes nothing until kernels use it.
pub(crate) fn set_limit(limit: i32, value: usize) -> Done {
    let context = current()?;
    if !(0..=6).contains(&limit) {
        return Err(Error::UNSUPPORTED_LIMIT);
    }
    let mut limits = context.limits.lock().unwrap();
    if limit == 0 {
        let value = value.next_multiple_of(16);
        // What one thread may have at most.
        if value > 512 << 10 {
            return Err(Error::INVALID_VALUE);
        }
        let mut local = context.local.lock().unwrap();
        let wanted = value.max(DEFAULT_STACK) as u64;
        let (before, after) = (all_threads(*local), all_threads(wanted));
        if after > before {
            context.grow(after - before)?;
        } else {
            context.shrink(before - after);
        }
        *local = wanted;
        limits[0] = value;
    } else {
        limits[limit as usize] = value;
    }
    Ok(())
}

pub(crate) fn get_cache_config(out: Out<i32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.cache_config.load(Relaxed) as i32);
    Ok(())
}

pub(crate) fn set_cache_config(value: i32) -> Done {
    current()?.cache_config.store(value as u32, Relaxed);
    Ok(())
}

pub(crate) fn get_shared_config(out: Out<i32>) -> Done {
    current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(1);
    Ok(())
}

pub(crate) fn set_shared_config(_value: i32) -> Done {
    current().map(|_| ())
}

pub(crate) fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Done {
    current()?;
    if !least.is_null() {
        least.set(0);
    }
    if !greatest.is_null() {
        greatest.set(-5);
    }
    Ok(())
}

pub(crate) fn reset_persisting_l2() -> Done {
    current().map(|_| ())
}

pub(crate) fn enable_peer(handle: Handle, flags: u32) -> Done {
    let (context, peer) = (current()?, find(handle)?);
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if context.device == peer.device {
        return Err(Error::INVALID_DEVICE);
    }
    let mut peers = context.peers.lock().unwrap();
    if peers.contains(&peer.id) {
        return Err(Error::PEER_ACCESS_ALREADY_ENABLED);
    }
    peers.push(peer.id);
    Ok(())
}

pub(crate) fn disable_peer(handle: Handle) -> Done {
    let (context, peer) = (current()?, find(handle)?);
    let mut peers = context.peers.lock().unwrap();
    let at = peers.iter().position(|&id| id == peer.id).ok_or(Error::PEER_ACCESS_NOT_ENABLED)?;
    peers.remove(at);
    Ok(())
}
