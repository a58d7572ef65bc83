//! Contexts: what they cost, which is current, what dies with them.

use crate::abi::*;
use crate::contexts::*;
use crate::device;
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
    push(Some(context));
    out.put(context.handle())
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

pub(crate) fn primary_retain(out: Out<Handle>, ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    out.check()?;
    let mut references = context.references.lock().unwrap();
    if !context.is_alive() {
        context.start()?;
    }
    *references += 1;
    out.put(context.handle())
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

pub(crate) fn primary_get_state(ordinal: i32, flags: Out<u32>, active: Out<i32>) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    flags.set(context.flags);
    active.set(context.is_alive() as i32);
    Ok(())
}

pub(crate) fn set_current(handle: Handle) -> Done {
    TOP.set(if handle.is_null() { None } else { Some(find(handle)?) });
    Ok(())
}

pub(crate) fn get_current(out: Out<Handle>) -> Done {
    out.put(TOP.get().map_or(std::ptr::null_mut(), Context::handle))
}

pub(crate) fn push_current(handle: Handle) -> Done {
    push(Some(find(handle)?));
    Ok(())
}

pub(crate) fn pop_current(out: Out<Handle>) -> Done {
    let Some(top) = TOP.get() else { return Err(Error::INVALID_CONTEXT) };
    out.set(top.handle());
    pop();
    Ok(())
}

pub(crate) fn get_device(out: Out<i32>) -> Done {
    let context = current()?;
    out.put(device::ordinal(context.device))
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
    out.check()?;
    let limits = context.limits.lock().unwrap();
    let value = limits.get(limit as usize).filter(|_| (0..=9).contains(&limit));
    out.put(*value.ok_or(Error::UNSUPPORTED_LIMIT)?)
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

pub(crate) fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Done {
    current()?;
    least.set(0);
    greatest.put(-5)
}
