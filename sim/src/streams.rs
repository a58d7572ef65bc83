//! The streams of the process: each has its context, and its capture if it is in one. Work is done as it is enqueued.

use crate::abi::*;
use crate::captures::Capture;
use crate::contexts::{self, Context};
use crate::error::{Done, Error};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, RwLock};

pub(crate) struct Stream {
    pub context: &'static Context,
    pub capture: Option<Arc<Capture>>,
}

pub(crate) static STREAMS: RwLock<Option<HashMap<usize, Stream>>> = RwLock::new(None);

pub(crate) static NEXT: AtomicU64 = AtomicU64::new(3);

/// Streams that capture. While there is none, calls need not look.
pub(crate) static CAPTURING: AtomicUsize = AtomicUsize::new(0);

pub(crate) const STREAM_TAG: usize = 0x5700_0000_0000;

/// Where a call on a stream works.
pub(crate) struct Place {
    pub device: usize,
    pub context: &'static Context,
    pub capture: Option<Arc<Capture>>,
}

/// The per-thread default stream is captured by name; it is one stream for each context here.
pub(crate) fn key(stream: StreamArg, context: &Context) -> usize {
    match stream {
        StreamArg(0) | STREAM_LEGACY => 1 | (context.id as usize) << 8,
        STREAM_PER_THREAD => 2 | (context.id as usize) << 8,
        StreamArg(handle) => handle,
    }
}

#[inline]
pub(crate) fn place(stream: StreamArg) -> Done<Place> {
    if stream.0 <= 2 {
        let context = contexts::current()?;
        let mut capture = None;
        if stream == STREAM_PER_THREAD && CAPTURING.load(Relaxed) != 0 {
            capture = with_stream(key(stream, context), |stream| stream.capture.clone()).flatten();
        }
        return Ok(Place { device: context.device, context, capture });
    }
    // As the real driver, calls on a stream want a current context, of whatever kind.
    contexts::current()?;
    let (context, capture) =
        with_stream(stream.0, |stream| (stream.context, stream.capture.clone()))
            .ok_or(Error::INVALID_HANDLE)?;
    if !context.is_alive() {
        return Err(Error::CONTEXT_IS_DESTROYED);
    }
    Ok(Place { device: context.device, context, capture })
}

pub(crate) fn with_stream<R>(key: usize, look: impl FnOnce(&Stream) -> R) -> Option<R> {
    STREAMS.read().unwrap().as_ref()?.get(&key).map(look)
}

/// Calls that may wait for the device are refused while a capture is on that this thread's mode
/// counts, and they end that capture.
pub(crate) fn refuse_while_capturing() -> Done {
    if CAPTURING.load(Relaxed) == 0 {
        return Ok(());
    }
    let streams = STREAMS.read().unwrap();
    let Some(all) = streams.as_ref() else { return Ok(()) };
    let mut refused = Ok(());
    for capture in all.values().filter_map(|stream| stream.capture.as_ref()) {
        if capture.forbids_waiting() {
            capture.invalidate();
            refused = Err(Error::CAPTURE_UNSUPPORTED);
        }
    }
    refused
}

pub(crate) fn join(key: usize, context: &'static Context, capture: Arc<Capture>) -> Done {
    let mut all = STREAMS.write().unwrap();
    let all = all.get_or_insert_default();
    // Only named streams are in the table; the per-thread one gets its entry when it captures.
    let stream = all.entry(key).or_insert(Stream { context, capture: None });
    stream.capture = Some(capture);
    CAPTURING.fetch_add(1, Relaxed);
    Ok(())
}

pub(crate) fn begin(stream: StreamArg, capture: Arc<Capture>) -> Done {
    let place = place(stream)?;
    if stream.0 <= 1 {
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    if place.capture.is_some() {
        return Err(Error::ILLEGAL_STATE);
    }
    join(key(stream, place.context), place.context, capture)
}

/// Takes all streams out of a capture, which must have begun in this one.
pub(crate) fn end(stream: StreamArg) -> Done<Arc<Capture>> {
    let place = place(stream)?;
    let capture = place.capture.ok_or(Error::ILLEGAL_STATE)?;
    if capture.origin != stream.0 {
        return Err(Error::CAPTURE_UNMATCHED);
    }
    leave(&capture);
    Ok(capture)
}

/// Takes all streams out of a capture.
pub(crate) fn leave(capture: &Arc<Capture>) {
    if let Some(all) = STREAMS.write().unwrap().as_mut() {
        for other in all.values_mut() {
            if other.capture.as_ref().is_some_and(|own| Arc::ptr_eq(own, capture)) {
                other.capture = None;
                CAPTURING.fetch_sub(1, Relaxed);
            }
        }
    }
}

pub(crate) fn forget_context(context: u32) {
    let mut ended = Vec::new();
    if let Some(all) = STREAMS.write().unwrap().as_mut() {
        all.retain(|&key, stream| {
            let stays = stream.context.id != context;
            if !stays && let Some(capture) = stream.capture.take() {
                CAPTURING.fetch_sub(1, Relaxed);
                // The per-thread stream is captured by its number.
                if capture.origin == key || capture.origin == STREAM_PER_THREAD.0 {
                    ended.push(capture);
                }
            }
            stays
        });
    }
    for capture in ended {
        capture.ended();
        leave(&capture);
    }
}
