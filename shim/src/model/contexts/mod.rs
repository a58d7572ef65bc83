//! The contexts of this process: from the driver's handles to our small ids and back to devices.
//!
//! * `fast`: handle to id without a lock, for the hooks that run a million times a second.
//! * `state`: who lives, how often a primary context was retained, what each one took.
//!
//! Handles are reused by the driver, ids never are. A context is taken out *before* the driver is
//! asked to destroy it, since its addresses may be given to another thread at once; a call that
//! fails puts it back.

mod fast;
mod state;

pub use state::{Context, Ending};

use crate::runtime::lock::Lock;
use fast::Fast;
use state::State;
use vramtrace_format::{ContextId, DeviceId, StackId};

/// A context as the hooks need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub context: ContextId,
    pub device: DeviceId,
}

/// A context that a call named: already known, or seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    pub target: Target,
    /// To be defined and recorded by the caller.
    pub new: bool,
}

pub struct Contexts {
    fast: Fast,
    state: Lock<State>,
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts { fast: Fast::default(), state: Lock::new(State::default()) }
    }
}

/// What is known of a context when it is met.
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

    /// A context was created by cuCtxCreate, or is met as the current one of a thread. For a new
    /// one `announce` defines and records it, before its id is handed to anyone.
    pub fn meet(&self, arrival: Arrival, announce: impl FnOnce(&Context)) -> Met {
        self.arrive(arrival, State::meet, announce)
    }

    /// cuDevicePrimaryCtxRetain returned this context.
    pub fn retained(&self, arrival: Arrival, announce: impl FnOnce(&Context)) -> Met {
        self.arrive(arrival, State::retained, announce)
    }

    fn arrive(
        &self,
        arrival: Arrival,
        step: impl FnOnce(&mut State, Arrival) -> Met,
        announce: impl FnOnce(&Context),
    ) -> Met {
        let mut state = self.state.lock();
        let met = step(&mut state, arrival);
        if met.new
            && let Some(context) = state.get(met.target.context)
        {
            announce(context);
        }
        self.fast.put(arrival.handle, met.target);
        met
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

    /// Before cuDevicePrimaryCtxReset: its references stay, it itself goes.
    pub fn begin_reset(&self, device: DeviceId) -> Step {
        self.end(|state| state.begin_reset(device))
    }

    /// Before cuGreenCtxDestroy.
    pub fn begin_green_destroy(&self, green: u64) -> Step {
        self.end(|state| state.begin_green_destroy(green))
    }

    /// The driver refused.
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

    /// What the context took, measured when it was made.
    pub fn set_bytes(&self, context: ContextId, bytes: u64) {
        if let Some(context) = self.state.lock().get_mut(context) {
            context.bytes = bytes;
        }
    }

    /// What one of its limits took.
    pub fn add_growth(&self, context: ContextId, bytes: u64) {
        if let Some(context) = self.state.lock().get_mut(context) {
            context.grown = context.grown.saturating_add(bytes);
        }
    }

    /// Sum of what the live contexts of a device took.
    pub fn bytes_on(&self, device: DeviceId) -> u64 {
        self.state.lock().on(device).map(|context| context.bytes).sum()
    }

    /// Sum of what the limits of a device's live contexts took.
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

/// What a call that takes a reference away will do to the context, if it succeeds. Refused calls
/// hand it to [`Contexts::put_back`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Not known, or nothing to take.
    Unknown,
    /// Others still refer to it.
    LivesOn(Reference),
    /// It was taken out.
    Ends(Box<Ending>),
}

/// A reference that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    Primary(DeviceId),
    Attached(u64),
    Green(u64, DeviceId),
}
