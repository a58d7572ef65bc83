//! The context and device that a call concerns.

use crate::driver::cuda::Ctx;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::hooks::process::device_query;
use crate::hooks::process::state::Process;
use crate::hooks::process::texts::say_once;
use crate::model::contexts::Target;
use crate::model::contexts::{Arrival, By, Context};
use crate::model::devices::Device;
use crate::model::ledger::{DEVICES, device_index};
use crate::runtime::log::Once;
use crate::trace_writer::maintenance::ProcessView;
use std::ptr::null_mut;
use vramtrace_format::{ContextId, DeviceId};
use vramtrace_format::{Definition, Event};

/// Not known; never device 0.
pub const NO_TARGET: Target = Target { context: ContextId(0), device: DeviceId::UNKNOWN };

/// The handle of this thread's current context; 0 = none.
#[inline(always)]
pub fn current_context() -> u64 {
    let mut context = null_mut();
    let ask = driver().ctx_get_current;
    let result = ask.map(|ask| inside(|| ask(&mut context)));
    if result == Some(0) { context as u64 } else { 0 }
}

/// The current context and its device, for calls without a stream. Queried each time, since a thread's
/// context changes in many ways. The query takes nanoseconds, the calls take microseconds.
#[inline(always)]
pub fn current_target(p: &'static Process) -> Target {
    target_of(p, current_context())
}

/// The context of a handle. It is defined in the trace if it is new.
#[inline(always)]
pub fn target_of(p: &'static Process, handle: u64) -> Target {
    match handle {
        0 => NO_TARGET,
        _ => p.contexts.find(handle).unwrap_or_else(|| register(p, handle)),
    }
}

#[cold]
fn register(p: &'static Process, handle: u64) -> Target {
    if let Some(known) = p.contexts.find_locked(handle) {
        return known;
    }
    let Some(device) = device_of(handle) else { return NO_TARGET };
    // A primary context stays current after a reset, although it does not exist until it is retained.
    if p.contexts.is_ended_primary(handle) && is_inactive(device.0.into()) {
        return NO_TARGET;
    }
    known_device(p, device);
    p.contexts.arrive(arrival(p, handle, device), By::Use, |context| announce(p, context)).target
}

/// The device of a context. The query needs it to be current, so it is pushed and popped.
fn device_of(handle: u64) -> Option<DeviceId> {
    let driver = driver();
    let get = driver.ctx_get_device?;
    let mut device = -1;
    inside(|| {
        // SAFETY: the handle came from the driver; what is pushed is popped.
        let push = |push: unsafe extern "C-unwind" fn(Ctx) -> i32| unsafe { push(handle as Ctx) };
        if current_context() == handle {
            get(&mut device);
        } else if push(driver.ctx_push_current?) == 0 {
            get(&mut device);
            let mut popped = null_mut();
            driver.ctx_pop_current?(&mut popped);
        }
        Some(())
    })?;
    u8::try_from(device).ok().map(DeviceId).filter(|device| *device != DeviceId::UNKNOWN)
}

/// Whether the driver reports the device's primary context as inactive.
pub fn is_inactive(device: i32) -> bool {
    let (mut flags, mut active) = (0, 1);
    let result = inside(|| match driver().primary_ctx_get_state {
        Some(get) => get(device, &mut flags, &mut active),
        None => -1,
    });
    result == 0 && active == 0
}

/// A CUdevice is the ordinal. Any other value becomes the unknown device, never device 0.
pub fn device_id(device: i32) -> DeviceId {
    u8::try_from(device).map_or(DeviceId::UNKNOWN, DeviceId)
}

/// The device. It is defined in the trace at its first use.
pub fn known_device(p: &'static Process, id: DeviceId) -> Option<&'static Device> {
    p.devices.get(id, device_query::ask, |device| {
        p.trace_writer.define(&device.definition());
        if device_index(id) == device_index(DeviceId::UNKNOWN) {
            let most = DEVICES - 1;
            say_once(&p.trace_writer, Once::Devices, || {
                format!("more than {most} devices: the recorder has the totals of all further ones as one")
            });
        }
        p.limits(id, &mut |event| p.trace_writer.record(event));
    })
}

pub fn arrival(p: &'static Process, handle: u64, device: DeviceId) -> Arrival {
    let stack = crate::hooks::process::stacks::stack(p);
    Arrival { handle, device, time_ns: p.clock.now_ns(), stack }
}

/// Defines and records a context that was not known before.
pub fn announce(p: &Process, context: &Context) {
    p.trace_writer.define(&Definition::Context {
        id: context.id,
        device: context.device,
        handle: context.handle,
        primary: context.primary,
    });
    record_created(p, context);
}

pub fn record_created(p: &Process, context: &Context) {
    p.trace_writer.record_at(
        context.time_ns,
        &Event::ContextCreated {
            context: context.id,
            device: context.device,
            stack: context.stack,
        },
    );
}
