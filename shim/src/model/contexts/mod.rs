//! The contexts of this process: maps the driver's handles to small ids and to devices.
//!
//! * `fast`: handle to id without a lock, for hooks that run a million times a second.
//! * `state`: live contexts, retain counts of primary contexts, and the bytes that each takes.
//!
//! Handles are reused by the driver. Ids are given again too, once nothing refers to the context that had
//! them. A context is removed *before* the driver's call that destroys it, since its addresses may be given
//! to another thread at once. If the call fails it is restored.

mod fast;
mod state;

pub use state::{Context, Ending};

use crate::runtime::lock::Lock;
use crate::runtime::log;
use fast::Fast;
use state::State;
use std::sync::atomic::{AtomicBool, Ordering};
use vramtrace_format::{ContextId, DeviceId, StackId};

/// A context's id and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub context: ContextId,
    pub device: DeviceId,
}

/// A context that a call named: already known, or seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub target: Target,
    /// The caller must define and record it.
    pub new: bool,
}

pub struct Contexts {
    fast: Fast,
    state: Lock<State>,
    overflow_reported: AtomicBool,
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts {
            fast: Fast::default(),
            state: Lock::new(State::default()),
            overflow_reported: AtomicBool::new(false),
        }
    }
}

/// A context as a call returned or named it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub handle: u64,
    pub device: DeviceId,
    pub time_ns: u64,
    pub stack: StackId,
}

impl Contexts {
    /// The context behind a handle, without a lock.
    #[inline]
    pub fn find(&self, handle: u64) -> Option<Target> {
        self.fast.get(handle)
    }

    /// The same for handles that the table without a lock has no room for.
    #[cold]
    pub fn find_locked(&self, handle: u64) -> Option<Target> {
        self.state.lock().known(handle)
    }

    /// Adds a context that cuCtxCreate returned. If it is new, `announce` defines and records it before
    /// its id is used.
    pub fn created(&self, arrival: Arrival, announce: impl FnOnce(&Context)) -> Seen {
        self.arrive(arrival, State::created, announce)
    }

    /// The same for a context that is current on a thread.
    pub fn register(&self, arrival: Arrival, announce: impl FnOnce(&Context)) -> Seen {
        self.arrive(arrival, State::register, announce)
    }

    /// cuDevicePrimaryCtxRetain returned this context.
    pub fn retained(&self, arrival: Arrival, announce: impl FnOnce(&Context)) -> Seen {
        self.arrive(arrival, State::retained, announce)
    }

    fn arrive(
        &self,
        arrival: Arrival,
        step: impl FnOnce(&mut State, Arrival) -> Seen,
        announce: impl FnOnce(&Context),
    ) -> Seen {
        let mut state = self.state.lock();
        let seen = step(&mut state, arrival);
        if seen.new
            && let Some(context) = state.get(seen.target.context)
        {
            announce(context);
        }
        self.fast.put(arrival.handle, seen.target);
        if state.take_overflowed() {
            drop(state);
            self.say_overflowed();
        }
        seen
    }

    #[cold]
    fn say_overflowed(&self) {
        if !self.overflow_reported.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "more than 65,535 contexts are alive: what further ones hold counts until it is freed, \
                 also when the context is destroyed"
            ));
        }
    }

    /// Whether this is the handle of a primary context that ended, or was reset, and was not seen since.
    pub fn is_ended_primary(&self, handle: u64) -> bool {
        self.state.lock().is_ended_primary(handle)
    }

    /// The driver has destroyed the context, and nothing refers to it any more.
    pub fn retire(&self, ended: &Ending) {
        self.state.lock().retire(&ended.context);
    }

    /// cuGreenCtxCreate returned `green`: it keeps the device's primary context alive.
    pub fn green_created(&self, green: u64, device: DeviceId) {
        self.state.lock().green_created(green, device);
    }

    /// cuCtxAttach returned this context.
    pub fn attached(&self, handle: u64) {
        self.state.lock().attached(handle);
    }

    /// Before cuCtxDestroy.
    pub fn begin_destroy(&self, handle: u64) -> Step {
        self.end(|state| state.begin_destroy(handle))
    }

    /// Before cuCtxDetach.
    pub fn begin_detach(&self, handle: u64) -> Step {
        self.end(|state| state.begin_detach(handle))
    }

    /// Before cuDevicePrimaryCtxRelease.
    pub fn begin_release(&self, device: DeviceId) -> Step {
        self.end(|state| state.begin_release(device))
    }

    /// Before cuDevicePrimaryCtxReset, which ends the context and keeps its references.
    pub fn begin_reset(&self, device: DeviceId) -> Step {
        self.end(|state| state.begin_reset(device))
    }

    /// Before cuGreenCtxDestroy.
    pub fn begin_green_destroy(&self, green: u64) -> Step {
        self.end(|state| state.begin_green_destroy(green))
    }

    /// Restores the context after the driver refused the call.
    pub fn put_back(&self, step: Step) {
        let mut state = self.state.lock();
        match step {
            Step::Unknown => {}
            Step::LivesOn(reference) => state.put_back_reference(reference),
            Step::Ends(ending) => {
                for handle in ending.handles() {
                    self.fast.put(handle, ending.context.target());
                }
                state.put_back(*ending);
            }
        }
    }

    /// Stores the bytes that the context itself takes, as measured when it was created.
    pub fn set_bytes(&self, context: ContextId, bytes: u64) {
        if let Some(context) = self.state.lock().get_mut(context) {
            context.bytes = bytes;
        }
    }

    /// The handle of a live context, and the bytes that it takes itself.
    pub fn handle_and_bytes(&self, context: ContextId) -> Option<(u64, u64)> {
        self.state.lock().get(context).map(|context| (context.handle, context.bytes))
    }

    /// Adds bytes that one of its limits took.
    pub fn add_growth(&self, context: ContextId, bytes: u64) {
        if let Some(context) = self.state.lock().get_mut(context) {
            context.grown = context.grown.saturating_add(bytes);
        }
    }

    /// Sum of the bytes that the live contexts of a device take.
    pub fn bytes_on(&self, device: DeviceId) -> u64 {
        self.state.lock().on(device).map(|context| context.bytes).sum()
    }

    /// Sum of the bytes that limits of a device's live contexts took.
    pub fn growth_on(&self, device: DeviceId) -> u64 {
        self.state.lock().on(device).map(|context| context.grown).sum()
    }

    pub fn any_on(&self, device: DeviceId) -> bool {
        self.state.lock().on(device).next().is_some()
    }

    pub fn any(&self) -> bool {
        self.state.lock().all().next().is_some()
    }

    /// The device's primary context, if it lives.
    pub fn primary_of(&self, device: DeviceId) -> Option<ContextId> {
        self.state.lock().primary_of(device)
    }

    /// Whether the device's primary context lives, seen or by a green context.
    pub fn has_primary(&self, device: DeviceId) -> bool {
        self.state.lock().has_primary(device)
    }

    /// Live contexts, for a checkpoint.
    pub fn for_each(&self, mut visit: impl FnMut(&Context)) {
        self.state.lock().all().for_each(&mut visit);
    }

    fn end(&self, begin: impl FnOnce(&mut State) -> Step) -> Step {
        let mut state = self.state.lock();
        let step = begin(&mut state);
        if let Step::Ends(ending) = &step {
            for handle in ending.handles() {
                self.fast.remove(handle);
            }
        }
        step
    }
}

/// The effect of a call that releases a reference, if it succeeds. If the call fails, it is passed to
/// [`Contexts::put_back`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// An unknown context, or one without a reference to release.
    Unknown,
    /// Other references remain.
    LivesOn(Reference),
    /// The context was removed.
    Ends(Box<Ending>),
}

/// The reference that was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Primary(DeviceId),
    Attached(u64),
    Green(u64, DeviceId),
}
