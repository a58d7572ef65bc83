//! Which context and device a call is about.

use super::context::{announce, arrival, meet_device};
use crate::contexts::Place;
use crate::entry::cuda::Ctx;
use crate::entry::{driver, inside};
use crate::process::Process;
use std::ptr::null_mut;
use vramtrace_format::{ContextId, DeviceId};

/// Not known; never device 0.
pub const NOWHERE: Place = Place { context: ContextId(0), device: DeviceId::UNKNOWN };

/// The handle of this thread's current context; 0 = none.
#[inline]
pub fn current_context() -> u64 {
    let mut context = null_mut();
    let ask = driver().ctx_get_current;
    // SAFETY: room for the answer.
    let result = ask.map(|ask| inside(|| unsafe { ask(&mut context) }));
    if result == Some(0) { context as u64 } else { 0 }
}

/// Where a call without a stream lands: asked each time, since only the driver knows all ways in
/// which a thread's context changes (it is a few nanoseconds, and these calls take microseconds).
#[inline]
pub fn current_place(p: &'static Process) -> Place {
    place_of(p, current_context())
}

/// The context behind a handle, met now if it was not met before.
#[inline]
pub fn place_of(p: &'static Process, handle: u64) -> Place {
    match handle {
        0 => NOWHERE,
        _ => p.contexts.find(handle).unwrap_or_else(|| meet(p, handle)),
    }
}

#[cold]
fn meet(p: &'static Process, handle: u64) -> Place {
    let Some(device) = device_of(handle) else { return NOWHERE };
    meet_device(p, device);
    p.contexts.meet(arrival(p, handle, device), |context| announce(p, context)).place
}

/// The device of any context: asked with the context current for a moment.
fn device_of(handle: u64) -> Option<DeviceId> {
    let driver = driver();
    let get = driver.ctx_get_device?;
    let mut device = -1;
    inside(|| {
        // SAFETY: the handle came from the driver; what is pushed is popped.
        unsafe {
            if current_context() == handle {
                get(&mut device);
            } else if driver.ctx_push_current?(handle as Ctx) == 0 {
                get(&mut device);
                let mut popped = null_mut();
                driver.ctx_pop_current?(&mut popped);
            }
        }
        Some(())
    })?;
    u8::try_from(device).ok().map(DeviceId).filter(|device| *device != DeviceId::UNKNOWN)
}
