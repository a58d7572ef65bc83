//! Streams and events. Work is done as it is enqueued; a stream keeps its identity, its capture
//! and the order of its callbacks.

use crate::abi::*;
use crate::captures::Capture;
use crate::contexts::{self, Context};
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::pool;
use crate::streams::{self, *};
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Mutex};

struct Event {
    context: u32,
    /// Recorded in a capturing stream.
    capture: Option<Arc<Capture>>,
}

static EVENTS: Mutex<Option<HashMap<usize, Event>>> = Mutex::new(None);

const EVENT_TAG: usize = 0xe700_0000_0000;

pub(crate) fn create_with_priority(out: Out<Handle>, flags: u32, _priority: i32) -> Done {
    create(out, flags)
}

pub(crate) fn create(out: Out<Handle>, flags: u32) -> Done {
    let context = contexts::current()?;
    if out.is_null() || flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    context.need_stream()?;
    let handle = STREAM_TAG + NEXT.fetch_add(1, Relaxed) as usize * 16;
    let stream = Stream { context, capture: None };
    STREAMS.write().unwrap().get_or_insert_default().insert(handle, stream);
    out.put(handle as Handle)
}

pub(crate) fn destroy(stream: StreamArg) -> Done {
    if stream.0 <= 2 {
        return Err(Error::INVALID_HANDLE);
    }
    let removed = STREAMS.write().unwrap().as_mut().and_then(|all| all.remove(&stream.0));
    let removed = removed.ok_or(Error::INVALID_HANDLE)?;
    if let Some(capture) = removed.capture {
        CAPTURING.fetch_sub(1, Relaxed);
        // With the stream where it began, a capture ends on every stream. Another stream leaves it.
        if capture.origin == stream.0 {
            capture.ended();
            leave(&capture);
        }
    }
    removed.context.stream_ended();
    pool::settle(driver().memory(removed.context.device));
    Ok(())
}

pub(crate) fn synchronize(stream: StreamArg) -> Done {
    let place = place(stream)?;
    if let Some(capture) = place.capture {
        capture.invalidate();
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    pool::settle(driver().memory(place.device));
    Ok(())
}

pub(crate) fn synchronize_context(context: &Context) -> Done {
    pool::settle(driver().memory(context.device));
    Ok(())
}

pub(crate) fn get_ctx(stream: StreamArg, out: Out<Handle>) -> Done {
    let place = place(stream)?;
    out.put(place.context.handle())
}

pub(crate) fn host_function(
    stream: StreamArg,
    function: Option<HostFunction>,
    data: Handle,
) -> Done {
    let place = place(stream)?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    let data = data as usize;
    // SAFETY: the program gave both for this call.
    let call = move || unsafe { function(data as Handle) };
    match place.capture {
        Some(capture) => capture.add_host(function, data),
        None => {
            crate::host_function::run(call);
            Ok(())
        }
    }
}

pub(crate) fn callback(
    stream: StreamArg,
    function: Option<StreamCallback>,
    data: Handle,
    _flags: u32,
) -> Done {
    let place = place(stream)?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    if place.capture.is_some() {
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    let (stream, data) = (stream.0, data as usize);
    // SAFETY: the program gave both for this call.
    crate::host_function::run(|| unsafe { function(stream as Handle, 0, data as Handle) });
    Ok(())
}

// Events.

fn with_event<R>(handle: Handle, look: impl FnOnce(&mut Event) -> R) -> Done<R> {
    let mut all = EVENTS.lock().unwrap();
    let event = all.as_mut().and_then(|all| all.get_mut(&(handle as usize)));
    event.map(look).ok_or(Error::INVALID_HANDLE)
}

pub(crate) fn event_create(out: Out<Handle>, flags: u32) -> Done {
    let context = contexts::current()?;
    // Blocking, no timing, between processes (which needs no timing).
    if out.is_null() || flags > 7 || (flags & 4 != 0 && flags & 2 == 0) {
        return Err(Error::INVALID_VALUE);
    }
    let handle = EVENT_TAG + NEXT.fetch_add(1, Relaxed) as usize * 16;
    let event = Event { context: context.id, capture: None };
    EVENTS.lock().unwrap().get_or_insert_default().insert(handle, event);
    out.put(handle as Handle)
}

pub(crate) fn event_destroy(event: Handle) -> Done {
    let mut all = EVENTS.lock().unwrap();
    let removed = all.as_mut().and_then(|all| all.remove(&(event as usize)));
    removed.map(|_| ()).ok_or(Error::INVALID_HANDLE)
}

pub(crate) fn event_record(event: Handle, stream: StreamArg) -> Done {
    let place = place(stream)?;
    with_event(event, |event| event.capture = place.capture)
}

pub(crate) fn event_synchronize(event: Handle) -> Done {
    let (captured, context) = with_event(event, |event| (event.capture.is_some(), event.context))?;
    if captured {
        return Err(Error::CAPTURED_EVENT);
    }
    if let Some(context) = contexts::by_id(context) {
        pool::settle(driver().memory(context.device));
    }
    Ok(())
}

/// Waiting for an event of a capture takes the waiting stream into it.
pub(crate) fn wait_event(stream: StreamArg, event: Handle, _flags: u32) -> Done {
    let place = place(stream)?;
    let capture = with_event(event, |event| event.capture.clone())?;
    let Some(capture) = capture.filter(|capture| capture.is_active()) else { return Ok(()) };
    match place.capture {
        Some(own) if Arc::ptr_eq(&own, &capture) => Ok(()),
        Some(_) => Err(Error(902)),
        None if stream.0 <= 1 => Err(Error::CAPTURE_IMPLICIT),
        None => join(key(stream, place.context), place.context, capture),
    }
}

pub(crate) fn forget_context(context: u32) {
    streams::forget_context(context);
    if let Some(all) = EVENTS.lock().unwrap().as_mut() {
        all.retain(|_, event| event.context != context);
    }
}
