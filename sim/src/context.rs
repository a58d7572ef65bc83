//! Contexts: what they cost, which is current, what dies with them.

use crate::abi::*;
use crate::device::{self, SM_COUNT, THREADS_PER_SM};
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::{array, host, module, stream};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, RwLock};

/// A process's first context on a device by cuMemGetInfo: 526.8125 MiB.
pub const COST: u64 = 526 * MIB + 832 * KIB;
/// What each further one takes: 523.5625 MiB.
pub const COST_NEXT: u64 = 523 * MIB + 576 * KIB;
/// The same by NVML per process.
pub const COST_SHOWN: u64 = 518 * MIB;

const DEFAULT_STACK: usize = 1024;
/// What a heap takes beside its size.
const HEAP_BESIDE: u64 = 2 * MIB;
/// 128 streams took 34 pages, 52 took 13.
const STREAMS_A_PAGE: u64 = 4;

pub struct Context {
    pub id: u32,
    pub device: usize,
    primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    /// Retains of a primary context, attachments of another.
    references: Mutex<u32>,
    cost: AtomicU64,
    /// Device bytes beyond that: stacks, code.
    extra: AtomicU64,
    limits: Mutex<[usize; 16]>,
    /// Local memory of a thread, as high as it was: the stack's limit, or what a kernel needed.
    local: Mutex<u64>,
    /// Some kernel used the heap.
    heap: AtomicBool,
    /// Streams that live, and for how many there is room.
    streams: Mutex<(u64, u64)>,
    cache_config: AtomicU32,
    peers: Mutex<Vec<u32>>,
}

/// Contexts are never freed: a handle that outlived its context is found dead, not dangling.
static ALL: RwLock<Vec<&'static Context>> = RwLock::new(Vec::new());
static PRIMARY: Mutex<Option<HashMap<usize, &'static Context>>> = Mutex::new(None);

thread_local! {
    static TOP: Cell<Option<&'static Context>> = const { Cell::new(None) };
    static BELOW: RefCell<Vec<Option<&'static Context>>> = const { RefCell::new(Vec::new()) };
}

impl Context {
    fn new(device: usize, primary: bool, flags: u32) -> &'static Context {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let context = Box::leak(Box::new(Context {
            id: NEXT.fetch_add(1, Relaxed),
            device,
            primary,
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(false),
            references: Mutex::new(0),
            cost: AtomicU64::new(0),
            extra: AtomicU64::new(0),
            limits: Mutex::new(default_limits()),
            local: Mutex::new(DEFAULT_STACK as u64),
            heap: AtomicBool::new(false),
            streams: Mutex::new((0, 0)),
            cache_config: AtomicU32::new(0),
            peers: Mutex::new(Vec::new()),
        }));
        ALL.write().unwrap().push(context);
        context
    }

    pub fn handle(&'static self) -> Handle {
        self as *const Context as Handle
    }

    #[inline]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Acquire)
    }

    fn start(&self) -> Done {
        let others = ALL.read().unwrap().iter().any(|c| c.device == self.device && c.is_alive());
        let cost = if others { COST_NEXT } else { COST };
        driver().memory(self.device).charge(cost, COST_SHOWN)?;
        self.cost.store(cost, Relaxed);
        *self.limits.lock().unwrap() = default_limits();
        *self.local.lock().unwrap() = DEFAULT_STACK as u64;
        self.heap.store(false, Relaxed);
        *self.streams.lock().unwrap() = (0, 0);
        self.alive.store(true, Release);
        Ok(())
    }

    /// Device memory that belongs to the context as such.
    pub fn grow(&self, bytes: u64) -> Done {
        driver().memory(self.device).charge(bytes, bytes)?;
        self.extra.fetch_add(bytes, Relaxed);
        Ok(())
    }

    pub fn shrink(&self, bytes: u64) {
        self.extra.fetch_sub(bytes, Relaxed);
        driver().memory(self.device).release(bytes, bytes);
    }

    /// A kernel with so much local memory a thread is launched: every thread that can be resident
    /// gets it, at once, and it stays.
    pub fn need_local(&self, bytes: u64) -> Done {
        let mut local = self.local.lock().unwrap();
        if bytes > *local {
            self.grow(all_threads(bytes) - all_threads(*local))?;
            *local = bytes;
        }
        Ok(())
    }

    /// A kernel that calls malloc is launched.
    pub fn need_heap(&self) -> Done {
        let size = self.limits.lock().unwrap()[2] as u64;
        if !self.heap.swap(true, Relaxed) {
            self.grow(size + HEAP_BESIDE).inspect_err(|_| self.heap.store(false, Relaxed))?;
        }
        Ok(())
    }

    /// One more stream: some of them share a page, which stays.
    pub fn need_stream(&self) -> Done {
        let mut streams = self.streams.lock().unwrap();
        if streams.0 == streams.1 {
            self.grow(PAGE)?;
            streams.1 += STREAMS_A_PAGE;
        }
        streams.0 += 1;
        Ok(())
    }

    pub fn stream_ended(&self) {
        let mut streams = self.streams.lock().unwrap();
        streams.0 = streams.0.saturating_sub(1);
    }

    fn end(&self) {
        self.alive.store(false, Release);
        stream::forget_context(self.id);
        array::forget_context(self.id);
        module::forget_context(self.id);
        host::forget_context(self.id);
        for memory in driver().all() {
            memory.lock().free_context(self.id);
        }
        self.peers.lock().unwrap().clear();
        let extra = self.extra.swap(0, Relaxed);
        let cost = self.cost.load(Relaxed);
        driver().memory(self.device).release(cost + extra, COST_SHOWN + extra);
    }
}

fn all_threads(bytes: u64) -> u64 {
    SM_COUNT * THREADS_PER_SM * bytes
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
pub fn current() -> Done<&'static Context> {
    match TOP.get() {
        Some(context) if context.is_alive() => Ok(context),
        Some(_) => Err(Error::CONTEXT_IS_DESTROYED),
        None => Err(Error::INVALID_CONTEXT),
    }
}

pub fn find(handle: Handle) -> Done<&'static Context> {
    let all = ALL.read().unwrap();
    all.iter()
        .copied()
        .find(|context| context.handle() == handle && context.is_alive())
        .ok_or(Error::INVALID_CONTEXT)
}

/// The context of a call that names one or means the current.
pub fn named_or_current(handle: Handle) -> Done<&'static Context> {
    if handle.is_null() { current() } else { find(handle) }
}

fn push(context: Option<&'static Context>) {
    // A thread that is ending has no stack any more; the top alone still works.
    let _ = BELOW.try_with(|below| below.borrow_mut().push(TOP.get()));
    TOP.set(context);
}

fn pop() {
    TOP.set(BELOW.try_with(|below| below.borrow_mut().pop()).ok().flatten().flatten());
}

pub fn create(out: Out<Handle>, flags: u32, ordinal: i32) -> Done {
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

pub fn create_v3(
    out: Out<Handle>,
    _affinity: Out<std::ffi::c_void>,
    _count: i32,
    flags: u32,
    ordinal: i32,
) -> Done {
    create(out, flags, ordinal)
}

pub fn create_v4(
    out: Out<Handle>,
    _params: Out<std::ffi::c_void>,
    flags: u32,
    ordinal: i32,
) -> Done {
    create(out, flags, ordinal)
}

pub fn destroy(handle: Handle) -> Done {
    let context = find(handle)?;
    if context.primary {
        return Err(Error::INVALID_CONTEXT);
    }
    if TOP.get().is_some_and(|top| std::ptr::eq(top, context)) {
        pop();
    }
    context.end();
    Ok(())
}

pub fn attach(out: Out<Handle>, _flags: u32) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    *context.references.lock().unwrap() += 1;
    out.set(context.handle());
    Ok(())
}

pub fn detach(handle: Handle) -> Done {
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

fn primary(index: usize) -> &'static Context {
    let mut map = PRIMARY.lock().unwrap();
    map.get_or_insert_default().entry(index).or_insert_with(|| Context::new(index, true, 0))
}

pub fn primary_retain(out: Out<Handle>, ordinal: i32) -> Done {
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

pub fn primary_release(ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    let mut references = context.references.lock().unwrap();
    match *references {
        0 => return Err(Error::INVALID_CONTEXT),
        1 if context.is_alive() => context.end(),
        _ => {}
    }
    *references -= 1;
    Ok(())
}

pub fn primary_reset(ordinal: i32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    let references = context.references.lock().unwrap();
    if context.is_alive() {
        context.end();
        // Who still holds it keeps a usable context, freshly made.
        if *references > 0 {
            context.start()?;
        }
    }
    Ok(())
}

pub fn primary_set_flags(ordinal: i32, flags: u32) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    context.flags.store(flags, Relaxed);
    Ok(())
}

pub fn primary_get_state(ordinal: i32, flags: Out<u32>, active: Out<i32>) -> Done {
    let context = primary(device::by_ordinal(ordinal)?);
    if !flags.is_null() {
        flags.set(context.flags.load(Relaxed));
    }
    if !active.is_null() {
        active.set(context.is_alive() as i32);
    }
    Ok(())
}

pub fn set_current(handle: Handle) -> Done {
    TOP.set(if handle.is_null() { None } else { Some(find(handle)?) });
    Ok(())
}

pub fn get_current(out: Out<Handle>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(TOP.get().map_or(std::ptr::null_mut(), Context::handle));
    Ok(())
}

pub fn push_current(handle: Handle) -> Done {
    push(Some(find(handle)?));
    Ok(())
}

pub fn pop_current(out: Out<Handle>) -> Done {
    let Some(top) = TOP.get() else { return Err(Error::INVALID_CONTEXT) };
    if !out.is_null() {
        out.set(top.handle());
    }
    pop();
    Ok(())
}

pub fn get_device(out: Out<i32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(device::ordinal(context.device));
    Ok(())
}

pub fn get_device_v2(out: Out<i32>, handle: Handle) -> Done {
    let context = named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(device::ordinal(context.device));
    Ok(())
}

pub fn get_flags(out: Out<u32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.flags.load(Relaxed));
    Ok(())
}

pub fn set_flags(flags: u32) -> Done {
    current()?.flags.store(flags, Relaxed);
    Ok(())
}

pub fn get_id(handle: Handle, out: Out<u64>) -> Done {
    let context = named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.id as u64);
    Ok(())
}

pub fn get_api_version(handle: Handle, out: Out<u32>) -> Done {
    named_or_current(handle)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(3020);
    Ok(())
}

pub fn synchronize() -> Done {
    let context = current()?;
    stream::synchronize_context(context)
}

pub fn synchronize_v2(handle: Handle) -> Done {
    stream::synchronize_context(named_or_current(handle)?)
}

pub fn get_limit(out: Out<usize>, limit: i32) -> Done {
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
pub fn set_limit(limit: i32, value: usize) -> Done {
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

pub fn get_cache_config(out: Out<i32>) -> Done {
    let context = current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(context.cache_config.load(Relaxed) as i32);
    Ok(())
}

pub fn set_cache_config(value: i32) -> Done {
    current()?.cache_config.store(value as u32, Relaxed);
    Ok(())
}

pub fn get_shared_config(out: Out<i32>) -> Done {
    current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(1);
    Ok(())
}

pub fn set_shared_config(_value: i32) -> Done {
    current().map(|_| ())
}

pub fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Done {
    current()?;
    if !least.is_null() {
        least.set(0);
    }
    if !greatest.is_null() {
        greatest.set(-5);
    }
    Ok(())
}

pub fn reset_persisting_l2() -> Done {
    current().map(|_| ())
}

pub fn enable_peer(handle: Handle, flags: u32) -> Done {
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

pub fn disable_peer(handle: Handle) -> Done {
    let (context, peer) = (current()?, find(handle)?);
    let mut peers = context.peers.lock().unwrap();
    let at = peers.iter().position(|&id| id == peer.id).ok_or(Error::PEER_ACCESS_NOT_ENABLED)?;
    peers.remove(at);
    Ok(())
}

pub fn by_id(id: u32) -> Option<&'static Context> {
    ALL.read().unwrap().iter().copied().find(|context| context.id == id)
}
