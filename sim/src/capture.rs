//! Stream capture: calls become nodes of a graph instead of work. All streams of one capture add
//! to one chain, in the order of the calls, which keeps every order that the program asked for.

use crate::abi::*;
use crate::error::{Done, Error};
use crate::graph::{self, Work};
use crate::memory::{Memory, next_id};
use crate::stream;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering::*};
use std::sync::{Arc, Mutex};

const ACTIVE: u8 = 1;
const INVALID: u8 = 2;
const ENDED: u8 = 3;

pub struct Capture {
    pub origin: usize,
    id: u64,
    graph: usize,
    status: AtomicU8,
    last: Mutex<Vec<usize>>,
    mode: i32,
    thread: std::thread::ThreadId,
}

const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;

thread_local! {
    /// How this thread looks at captures, other threads' ones included.
    static MODE: Cell<i32> = const { Cell::new(GLOBAL) };
}

impl Capture {
    pub fn is_active(&self) -> bool {
        self.status.load(Acquire) != ENDED
    }

    /// May the calling thread not make calls that wait?
    pub fn forbids_waiting(&self) -> bool {
        let own = self.thread == std::thread::current().id();
        self.status.load(Acquire) == ACTIVE
            && match MODE.get() {
                RELAXED => false,
                GLOBAL => self.mode == GLOBAL || (own && self.mode != RELAXED),
                _ => own && self.mode != RELAXED,
            }
    }

    pub fn invalidate(&self) {
        let _ = self.status.compare_exchange(ACTIVE, INVALID, AcqRel, Acquire);
    }

    pub fn add(&self, work: Work) -> Done<usize> {
        if self.status.load(Acquire) != ACTIVE {
            return Err(Error::CAPTURE_INVALIDATED);
        }
        let mut last = self.last.lock().unwrap();
        let node = graph::add(self.graph, &last, work)?;
        *last = vec![node];
        Ok(node)
    }

    pub fn add_work(&self, kind: i32, run: Box<dyn Fn() -> Done + Send + Sync>) -> Done {
        self.add(Work::Run { kind, run: run.into() }).map(|_| ())
    }

    pub fn add_kernel(&self) -> Done {
        self.add(Work::Kernel).map(|_| ())
    }

    pub fn add_host(&self, function: HostFunction, data: usize) -> Done {
        self.add(Work::host(function, data)).map(|_| ())
    }

    pub fn add_alloc(&self, memory: &'static Memory, size: u64) -> Done<Pointer> {
        let (work, pointer) = Work::alloc(memory, size)?;
        self.add(work)?;
        Ok(pointer)
    }

    pub fn add_free(&self, pointer: Pointer) -> Done {
        if !graph::allocates(self.graph, pointer) {
            return Err(Error::INVALID_VALUE);
        }
        self.add(Work::Free(pointer)).map(|_| ())
    }
}

pub unsafe fn begin(stream: StreamArg, mode: i32) -> Done {
    if !(0..=2).contains(&mode) {
        return Err(Error::INVALID_VALUE);
    }
    // Only a stream that can capture gets a graph.
    stream::place(stream)?;
    let graph = graph::new_graph();
    begin_in(stream, graph, Vec::new(), mode).inspect_err(|_| graph::discard(graph))
}

pub unsafe fn begin_v1(stream: StreamArg) -> Done {
    unsafe { begin(stream, 0) }
}

pub unsafe fn begin_to_graph(
    stream: StreamArg,
    graph: Handle,
    dependencies: *const Handle,
    _data: *const u8,
    count: usize,
    mode: i32,
) -> Done {
    if !(0..=2).contains(&mode) {
        return Err(Error::INVALID_VALUE);
    }
    let after = unsafe { graph::handles(dependencies, count)? };
    graph::check(graph as usize)?;
    begin_in(stream, graph as usize, after, mode)
}

fn begin_in(stream: StreamArg, graph: usize, after: Vec<usize>, mode: i32) -> Done {
    let capture = Capture {
        origin: stream.0,
        id: next_id(),
        graph,
        status: AtomicU8::new(ACTIVE),
        last: Mutex::new(after),
        mode,
        thread: std::thread::current().id(),
    };
    stream::begin(stream, Arc::new(capture))
}

pub unsafe fn end(stream: StreamArg, out: *mut Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let capture = stream::end(stream)?;
    let was = capture.status.swap(ENDED, AcqRel);
    if was != ACTIVE {
        unsafe { *out = std::ptr::null_mut() };
        graph::discard(capture.graph);
        return Err(Error::CAPTURE_INVALIDATED);
    }
    unsafe { *out = capture.graph as Handle };
    Ok(())
}

fn status(stream: StreamArg) -> Done<(i32, Option<Arc<Capture>>)> {
    let capture = stream::place(stream)?.capture;
    let status = capture.as_ref().map_or(0, |capture| match capture.status.load(Acquire) {
        ACTIVE => 1,
        INVALID => 2,
        _ => 0,
    });
    Ok((status, capture))
}

pub unsafe fn is_capturing(stream: StreamArg, out: *mut i32) -> Done {
    let (status, _) = status(stream)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = status };
    Ok(())
}

pub unsafe fn info_v1(stream: StreamArg, out: *mut i32, id: *mut u64) -> Done {
    let none = std::ptr::null_mut();
    unsafe { info_v2(stream, out, id, none, none as *mut _, none as *mut _) }
}

pub unsafe fn info_v2(
    stream: StreamArg,
    out: *mut i32,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut *const Handle,
    count: *mut usize,
) -> Done {
    let (status, capture) = status(stream)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *out = status };
    let Some(capture) = capture.filter(|_| status == 1) else { return Ok(()) };
    unsafe {
        if !id.is_null() {
            *id = capture.id;
        }
        if !graph.is_null() {
            *graph = capture.graph as Handle;
        }
        let last = capture.last.lock().unwrap();
        if !count.is_null() {
            *count = last.len();
        }
        if !dependencies.is_null() {
            // Valid until the next call on the stream, as the real driver's list is.
            *dependencies = last.as_ptr() as *const Handle;
        }
    }
    Ok(())
}

pub unsafe fn info_v3(
    stream: StreamArg,
    out: *mut i32,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut *const Handle,
    data: *mut *const u8,
    count: *mut usize,
) -> Done {
    if !data.is_null() {
        unsafe { *data = std::ptr::null() };
    }
    unsafe { info_v2(stream, out, id, graph, dependencies, count) }
}

pub unsafe fn update(stream: StreamArg, list: *mut Handle, count: usize, flags: u32) -> Done {
    let (status, capture) = status(stream)?;
    let Some(capture) = capture.filter(|_| status == 1) else {
        return Err(Error::ILLEGAL_STATE);
    };
    let nodes = unsafe { graph::handles(list, count)? };
    let mut last = capture.last.lock().unwrap();
    match flags {
        0 => last.extend(nodes),
        1 => *last = nodes,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

pub unsafe fn update_v2(
    stream: StreamArg,
    list: *mut Handle,
    _data: *const u8,
    count: usize,
    flags: u32,
) -> Done {
    unsafe { update(stream, list, count, flags) }
}

pub unsafe fn exchange_mode(mode: *mut i32) -> Done {
    if mode.is_null() || !(0..=2).contains(&unsafe { *mode }) {
        return Err(Error::INVALID_VALUE);
    }
    unsafe { *mode = MODE.replace(*mode) };
    Ok(())
}
