//! A capture of a stream: calls become nodes of a graph instead of work. All streams of one capture add to one chain,
//! in the order of the calls, which keeps every order that the program requires.

use crate::abi::*;
use crate::error::{Done, Error};
use crate::graphs::{self, Work};
use crate::memory::Memory;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::*};

pub(crate) const ACTIVE: u8 = 1;

pub(crate) const INVALID: u8 = 2;

pub(crate) const ENDED: u8 = 3;

pub(crate) struct Capture {
    pub origin: usize,
    pub id: u64,
    pub graph: usize,
    pub status: AtomicU8,
    pub last: Mutex<Vec<usize>>,
    /// The graph's nodes that a recapture has not reached.
    pub again: Mutex<Option<std::vec::IntoIter<usize>>>,
    pub mode: i32,
    pub thread: std::thread::ThreadId,
}

const GLOBAL: i32 = 0;

const RELAXED: i32 = 2;

impl Capture {
    pub(crate) fn is_active(&self) -> bool {
        self.status.load(Acquire) != ENDED
    }

    /// May the calling thread not make calls that wait?
    pub(crate) fn forbids_waiting(&self) -> bool {
        let own = self.thread == std::thread::current().id();
        self.status.load(Acquire) == ACTIVE
            && (self.mode == GLOBAL || (own && self.mode != RELAXED))
    }

    pub(crate) fn invalidate(&self) {
        let _ = self.status.compare_exchange(ACTIVE, INVALID, AcqRel, Acquire);
    }

    /// Its stream or context was destroyed.
    pub(crate) fn ended(&self) {
        self.status.store(ENDED, Release);
    }

    pub(crate) fn add(&self, work: Work) -> Done<usize> {
        if self.status.load(Acquire) != ACTIVE {
            return Err(Error::CAPTURE_INVALIDATED);
        }
        let mut last = self.last.lock().unwrap();
        let node = match &mut *self.again.lock().unwrap() {
            None => graphs::add(self.graph, &last, work)?,
            Some(again) => graphs::graphs()
                .replace(again.next(), &last, work)
                .inspect_err(|_| self.invalidate())?,
        };
        *last = vec![node];
        Ok(node)
    }

    pub(crate) fn add_work(&self, kind: i32, run: Box<dyn Fn() -> Done + Send + Sync>) -> Done {
        self.add(Work::Run { kind, run: run.into() }).map(|_| ())
    }

    pub(crate) fn add_host(&self, function: HostFunction, data: usize) -> Done {
        self.add(Work::host(function, data)).map(|_| ())
    }

    pub(crate) fn add_alloc(&self, memory: &'static Memory, size: u64) -> Done<Pointer> {
        let (work, _) = Work::alloc(memory, size)?;
        let node = self.add(work)?;
        match graphs::graphs().node(node as Handle)?.work {
            Work::Alloc(ref memory) => Ok(memory.address),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    pub(crate) fn add_free(&self, pointer: Pointer) -> Done {
        if !graphs::allocates(self.graph, pointer) {
            return Err(Error::INVALID_VALUE);
        }
        self.add(Work::Free(pointer)).map(|_| ())
    }
}
