//! Stream capture: calls become nodes of a graph instead of work. All streams of one capture add
//! to one chain, in the order of the calls, which keeps every order that the program requires.

use crate::abi::*;
use crate::captures::*;
use crate::error::{Done, Error};
use crate::memory::next_id;
use crate::{graphs, streams};
use std::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::{Arc, Mutex};

pub(crate) fn begin(stream: StreamArg, mode: i32) -> Done {
    // Only a stream that can capture gets a graph.
    streams::place(stream)?;
    let graph = graphs::new_graph();
    begin_in(stream, graph, mode, None).inspect_err(|_| graphs::discard(graph))
}

/// The nodes must come in the order of the earlier capture. `changed` would be called for other parameters of theirs, which are
/// not compared.
pub(crate) fn begin_recapture(
    stream: StreamArg,
    mode: i32,
    graph: Handle,
    _changed: Handle,
    _data: Handle,
) -> Done {
    let graph = graph as usize;
    graphs::check(graph)?;
    let again: Vec<usize> = graphs::graphs().of(graph).map(|(id, _)| id).collect();
    begin_in(stream, graph, mode, Some(again.into_iter()))
}

fn begin_in(
    stream: StreamArg,
    graph: usize,
    mode: i32,
    again: Option<std::vec::IntoIter<usize>>,
) -> Done {
    if !(0..=2).contains(&mode) {
        return Err(Error::INVALID_VALUE);
    }
    let capture = Capture {
        origin: stream.0,
        id: next_id(),
        graph,
        status: AtomicU8::new(ACTIVE),
        last: Mutex::new(Vec::new()),
        again: Mutex::new(again),
        mode,
        thread: std::thread::current().id(),
    };
    streams::begin(stream, Arc::new(capture))
}

pub(crate) fn end(stream: StreamArg, out: Out<Handle>) -> Done {
    out.check()?;
    let capture = streams::end(stream)?;
    let was = capture.status.swap(ENDED, AcqRel);
    let lacks = capture.again.lock().unwrap().as_ref().is_some_and(|again| again.len() > 0);
    if was != ACTIVE || lacks {
        out.set(std::ptr::null_mut());
        graphs::discard(capture.graph);
        return Err(Error::CAPTURE_INVALIDATED);
    }
    out.put(capture.graph as Handle)
}

fn status(stream: StreamArg) -> Done<(i32, Option<Arc<Capture>>)> {
    let capture = streams::place(stream)?.capture;
    let status = capture.as_ref().map_or(0, |capture| match capture.status.load(Acquire) {
        ACTIVE => 1,
        INVALID => 2,
        _ => 0,
    });
    Ok((status, capture))
}

pub(crate) fn is_capturing(stream: StreamArg, out: Out<i32>) -> Done {
    let (status, _) = status(stream)?;
    out.put(status)
}

pub(crate) fn info_v2(
    stream: StreamArg,
    out: Out<i32>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<In<Handle>>,
    count: Out<usize>,
) -> Done {
    let (status, capture) = status(stream)?;
    out.check()?;
    out.set(status);
    let Some(capture) = capture.filter(|_| status == 1) else { return Ok(()) };
    id.set(capture.id);
    graph.set(capture.graph as Handle);
    let last = capture.last.lock().unwrap();
    count.set(last.len());
    // Valid until the next call on the stream, as the real driver's list is.
    dependencies.cast::<*const usize>().set(last.as_ptr());
    Ok(())
}
