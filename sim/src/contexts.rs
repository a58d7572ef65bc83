//! The contexts of the process, what they cost, and which is current on a thread.

use crate::abi::*;
use crate::device::{SM_COUNT, THREADS_PER_SM};
use crate::driver::driver;
use crate::error::{Done, Error};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, RwLock};

/// A process's first context on a device by cuMemGetInfo: 526.8125 MiB.
const COST: u64 = 526 * MIB + 832 * KIB;

/// What each further one takes: 523.5625 MiB.
const COST_NEXT: u64 = 523 * MIB + 576 * KIB;

/// The same by NVML per process.
const COST_SHOWN: u64 = 518 * MIB;

pub(crate) const DEFAULT_STACK: usize = 1024;

/// What a heap takes beside its size.
const HEAP_BESIDE: u64 = 2 * MIB;

/// 128 streams took 34 pages, 52 took 13.
const STREAMS_A_PAGE: u64 = 4;

pub(crate) struct Context {
    pub id: u32,
    pub device: usize,
    pub primary: bool,
    pub flags: u32,
    pub alive: AtomicBool,
    /// Retains of a primary context.
    pub references: Mutex<u32>,
    pub cost: AtomicU64,
    /// Device bytes beyond that: stacks, code.
    pub extra: AtomicU64,
    pub limits: Mutex<[usize; 16]>,
    /// Local memory of a thread, as high as it was: the stack's limit, or what a kernel needed.
    pub local: Mutex<u64>,
    /// Some kernel used the heap.
    pub heap: AtomicBool,
    /// Live streams, and for how many there is room.
    pub streams: Mutex<(u64, u64)>,
    /// Bytes of the executable graphs, which share pages.
    graphs: Mutex<u64>,
    /// How often it was started: a primary context lives again after a reset.
    lives: AtomicU64,
}

/// Contexts are never freed: a handle that outlived its context is invalid, not dangling.
static ALL: RwLock<Vec<&'static Context>> = RwLock::new(Vec::new());

static PRIMARY: Mutex<Option<HashMap<usize, &'static Context>>> = Mutex::new(None);

thread_local! {
    pub(crate) static TOP: Cell<Option<&'static Context>> = const { Cell::new(None) };
    static BELOW: RefCell<Vec<Option<&'static Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    pub(crate) fn new(device: usize, primary: bool, flags: u32) -> &'static Context {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let context = Box::leak(Box::new(Context {
            id: NEXT.fetch_add(1, Relaxed),
            device,
            primary,
            flags,
            alive: AtomicBool::new(false),
            references: Mutex::new(0),
            cost: AtomicU64::new(0),
            extra: AtomicU64::new(0),
            limits: Mutex::new(default_limits()),
            local: Mutex::new(DEFAULT_STACK as u64),
            heap: AtomicBool::new(false),
            streams: Mutex::new((0, 0)),
            graphs: Mutex::new(0),
            lives: AtomicU64::new(0),
        }));
        ALL.write().unwrap().push(context);
        context
    }

    pub(crate) fn handle(&'static self) -> Handle {
        self as *const Context as Handle
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Acquire)
    }

    pub(crate) fn start(&self) -> Done {
        let others = ALL.read().unwrap().iter().any(|c| c.device == self.device && c.is_alive());
        let cost = if others { COST_NEXT } else { COST };
        driver().memory(self.device).charge(cost, COST_SHOWN)?;
        self.cost.store(cost, Relaxed);
        *self.limits.lock().unwrap() = default_limits();
        *self.local.lock().unwrap() = DEFAULT_STACK as u64;
        self.heap.store(false, Relaxed);
        *self.streams.lock().unwrap() = (0, 0);
        *self.graphs.lock().unwrap() = 0;
        self.lives.fetch_add(1, Relaxed);
        self.alive.store(true, Release);
        Ok(())
    }

    /// Device memory that belongs to the context as such.
    pub(crate) fn grow(&self, bytes: u64) -> Done {
        driver().memory(self.device).charge(bytes, bytes)?;
        self.extra.fetch_add(bytes, Relaxed);
        Ok(())
    }

    pub(crate) fn shrink(&self, bytes: u64) {
        self.extra.fetch_sub(bytes, Relaxed);
        driver().memory(self.device).release(bytes, bytes);
    }

    /// A kernel with so much local memory a thread is launched: every thread that can be resident
    /// gets it, at once, and it stays.
    pub(crate) fn need_local(&self, bytes: u64) -> Done {
        let mut local = self.local.lock().unwrap();
        if bytes > *local {
            self.grow(all_threads(bytes) - all_threads(*local))?;
            *local = bytes;
        }
        Ok(())
    }

    /// A kernel that calls malloc is launched.
    pub(crate) fn need_heap(&self) -> Done {
        let size = self.limits.lock().unwrap()[2] as u64;
        if !self.heap.swap(true, Relaxed) {
            self.grow(size + HEAP_BESIDE).inspect_err(|_| self.heap.store(false, Relaxed))?;
        }
        Ok(())
    }

    /// One more stream: some of them share a page, which stays.
    pub(crate) fn need_stream(&self) -> Done {
        let mut streams = self.streams.lock().unwrap();
        if streams.0 == streams.1 {
            self.grow(PAGE)?;
            streams.1 += STREAMS_A_PAGE;
        }
        streams.0 += 1;
        Ok(())
    }

    pub(crate) fn stream_ended(&self) {
        let mut streams = self.streams.lock().unwrap();
        streams.0 = streams.0.saturating_sub(1);
    }

    pub(crate) fn life(&self) -> u64 {
        self.lives.load(Relaxed)
    }

    /// The executable graphs need so much more.
    pub(crate) fn need_graph(&self, bytes: u64) -> Done {
        let mut graphs = self.graphs.lock().unwrap();
        let more = graph_pages(*graphs + bytes) - graph_pages(*graphs);
        if more > 0 {
            self.grow(more)?;
        }
        *graphs += bytes;
        Ok(())
    }

    pub(crate) fn graph_ended(&self, bytes: u64) {
        let mut graphs = self.graphs.lock().unwrap();
        let left = graphs.saturating_sub(bytes);
        let less = graph_pages(*graphs) - graph_pages(left);
        *graphs = left;
        if less > 0 && self.is_alive() {
            self.shrink(less);
        }
    }

    /// Releases the context's memory of the device.
    pub(crate) fn release(&self) {
        for memory in driver().all() {
            memory.lock().free_context(self.id);
        }
        let extra = self.extra.swap(0, Relaxed);
        let cost = self.cost.load(Relaxed);
        driver().memory(self.device).release(cost + extra, COST_SHOWN + extra);
    }
}

pub(crate) fn all_threads(bytes: u64) -> u64 {
    SM_COUNT * THREADS_PER_SM * bytes
}

/// The pages that so many bytes of executable graphs take.
fn graph_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

fn default_limits() -> [usize; 16] {
    let mut limits = [0; 16];
    limits[0] = DEFAULT_STACK;
    limits[1] = 8 << 20;
    limits[2] = 8 << 20;
    limits[3] = 2;
    limits[4] = 2048;
    limits[5] = 64;
    limits
}

/// The calling thread's context.
#[inline]
pub(crate) fn current() -> Done<&'static Context> {
    match TOP.get() {
        Some(context) if context.is_alive() => Ok(context),
        Some(_) => Err(Error::CONTEXT_IS_DESTROYED),
        None => Err(Error::INVALID_CONTEXT),
    }
}

pub(crate) fn find(handle: Handle) -> Done<&'static Context> {
    let all = ALL.read().unwrap();
    all.iter()
        .copied()
        .find(|context| context.handle() == handle && context.is_alive())
        .ok_or(Error::INVALID_CONTEXT)
}

/// The context of a call that names one or means the current.
pub(crate) fn named_or_current(handle: Handle) -> Done<&'static Context> {
    if handle.is_null() { current() } else { find(handle) }
}

pub(crate) fn push(context: Option<&'static Context>) {
    // A thread that is ending has no stack any more; the top alone still works.
    let _ = BELOW.try_with(|below| below.borrow_mut().push(TOP.get()));
    TOP.set(context);
}

pub(crate) fn pop() {
    TOP.set(BELOW.try_with(|below| below.borrow_mut().pop()).ok().flatten().flatten());
}

pub(crate) fn primary(index: usize) -> &'static Context {
    let mut map = PRIMARY.lock().unwrap();
    map.get_or_insert_default().entry(index).or_insert_with(|| Context::new(index, true, 0))
}

pub(crate) fn by_id(id: u32) -> Option<&'static Context> {
    ALL.read().unwrap().iter().copied().find(|context| context.id == id)
}
