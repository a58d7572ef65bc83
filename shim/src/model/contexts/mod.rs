//! The contexts of this process: maps the driver's handles to small ids and to devices.
//!
//! `fast` finds a target by its handle without a lock, for hooks that run a million times a second. The rest is under a lock:
//! live contexts, retain counts of primary contexts, and the bytes that each takes.
//!
//! Handles are reused by the driver. Ids are given again too, once nothing refers to the context that had
//! them. A context is removed *before* the driver's call that destroys it, since its addresses may be given
//! to another thread at once. If the call fails it is restored.

mod fast;
mod state;

use crate::runtime::fallible::TryPush;
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

/// A context as a call returned or named it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub handle: u64,
    pub device: DeviceId,
    pub time_ns: u64,
    pub stack: StackId,
}

/// The call by which a context arrives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// cuCtxCreate.
    Creation,
    /// It is current on a thread.
    Use,
    /// cuDevicePrimaryCtxRetain.
    Retain,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub device: DeviceId,
    pub time_ns: u64,
    pub stack: StackId,
    pub primary: bool,
    /// Device bytes that it took when it was created; 0 = not known.
    pub bytes: u64,
    /// Device bytes that its limits (stack size) took afterwards.
    grown: u64,
    /// The number of cuCtxAttach calls.
    attached: u32,
    pub handle: u64,
    /// Other handles of it: those of its green contexts as plain contexts.
    aliases: Vec<u64>,
}

impl Context {
    pub fn target(&self) -> Target {
        Target { context: self.id, device: self.device }
    }

    fn handles(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.handle).chain(self.aliases.iter().copied())
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
    /// By cuCtxAttach, of this context.
    Attached(u64),
    /// A green context, which keeps the device's primary context alive.
    Green(u64, DeviceId),
}

/// A context that was removed because a call is about to end it.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    pub context: Context,
    /// What the call releases with it.
    released: Option<Reference>,
}

impl Ending {
    pub fn handles(&self) -> impl Iterator<Item = u64> + '_ {
        self.context.handles()
    }
}

#[derive(Default)]
pub struct Contexts {
    fast: Fast,
    state: Lock<State>,
    overflow_reported: AtomicBool,
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

    /// Adds a context. If it is new, `announce` defines and records it before its id is used.
    pub fn arrive(&self, arrival: Arrival, by: By, announce: impl FnOnce(&Context)) -> Seen {
        let mut state = self.state.lock();
        let known = state.known(arrival.handle).map(|target| Seen { target, new: false });
        let seen = known
            .or_else(|| if by == By::Creation { None } else { state.as_primary(arrival) })
            .unwrap_or_else(|| state.add(arrival, by == By::Retain));
        let id = seen.target.context;
        if by == By::Retain {
            // Without host memory the context ends with its first release.
            if let Ok(primary) = state.primary(arrival.device) {
                primary.references += 1;
                primary.handle = arrival.handle;
            }
            if let Some(context) = state.get_mut(id) {
                context.primary = true;
            }
        }
        if seen.new
            && let Some(context) = state.get_mut(id)
        {
            announce(context);
        }
        self.fast.put(arrival.handle, seen.target);
        let is_full = id == ContextId(0) && state.last == u16::MAX;
        drop(state);
        if is_full && !self.overflow_reported.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "more than 65,535 contexts are alive: what further ones hold counts until it is freed, \
                 also when the context is destroyed"
            ));
        }
        seen
    }

    /// Whether this is the handle of a primary context that ended, or was reset, and was not seen since.
    pub fn is_ended_primary(&self, handle: u64) -> bool {
        let state = self.state.lock();
        let mut primaries = state.primaries.iter();
        primaries.any(|(of, known)| known.handle == handle && state.primary_on(*of).is_none())
    }

    /// The driver has destroyed the context, and nothing refers to it any more: its id can be given to another one.
    pub fn retire(&self, ended: &Ending) {
        let Context { device, primary, id, .. } = ended.context;
        // Without host memory the id is lost.
        let _ = self.state.lock().ended.try_push((device, primary, id));
    }

    /// A call added a reference.
    pub fn refer(&self, reference: Reference) {
        self.state.lock().refer(reference);
    }

    /// Before cuCtxDestroy.
    pub fn begin_destroy(&self, handle: u64) -> Step {
        self.end(|state| state.destroy(handle))
    }

    /// Before cuCtxDetach.
    pub fn begin_detach(&self, handle: u64) -> Step {
        self.end(|state| match state.created_as(handle) {
            Some(context) if context.attached > 0 => {
                context.attached -= 1;
                Some(Step::LivesOn(Reference::Attached(handle)))
            }
            _ => state.destroy(handle),
        })
    }

    /// Before cuDevicePrimaryCtxRelease.
    pub fn begin_release(&self, device: DeviceId) -> Step {
        self.end(|state| state.release(device, Reference::Primary(device)))
    }

    /// Before cuDevicePrimaryCtxReset, which ends the context and keeps its references.
    pub fn begin_reset(&self, device: DeviceId) -> Step {
        self.end(|state| state.take_out(state.primary_on(device)?.id, None))
    }

    /// Before cuGreenCtxDestroy.
    pub fn begin_green_destroy(&self, green: u64) -> Step {
        self.end(|state| {
            let device = state.greens.remove(&green)?;
            state.release(device, Reference::Green(green, device))
        })
    }

    fn end(&self, begin: impl FnOnce(&mut State) -> Option<Step>) -> Step {
        let mut state = self.state.lock();
        let step = begin(&mut state).unwrap_or(Step::Unknown);
        if let Step::Ends(ending) = &step {
            ending.handles().for_each(|handle| self.fast.remove(handle));
        }
        step
    }

    /// Restores the context after the driver refused the call.
    pub fn put_back(&self, step: Step) {
        let mut state = self.state.lock();
        match step {
            Step::Unknown => {}
            Step::LivesOn(reference) => state.refer(reference),
            Step::Ends(ending) => {
                let Ending { context, released } = *ending;
                context.handles().for_each(|handle| self.fast.put(handle, context.target()));
                if let Some(reference) = released {
                    state.refer(reference);
                }
                // There is room, as it was in the list before. If another context has taken its slot meanwhile, it is
                // added again when it is next used.
                let _ = state.live.try_push(context);
            }
        }
    }

    /// Stores the bytes that the context itself takes, as measured when it was created.
    pub fn set_bytes(&self, context: ContextId, bytes: u64) {
        if let Some(context) = self.state.lock().get_mut(context) {
            context.bytes = bytes;
        }
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

    /// Each live context of a device, up to an error.
    pub fn on<E>(
        &self,
        device: DeviceId,
        visit: impl FnMut(&Context) -> Result<(), E>,
    ) -> Result<(), E> {
        self.state.lock().on(device).try_for_each(visit)
    }

    pub fn any_on(&self, device: DeviceId) -> bool {
        self.state.lock().on(device).next().is_some()
    }

    pub fn any(&self) -> bool {
        !self.state.lock().live.is_empty()
    }

    /// The handle of the device's primary context, if it lives, and the bytes that it takes itself.
    pub fn primary_on(&self, device: DeviceId) -> Option<(u64, u64)> {
        self.state.lock().primary_on(device).map(|context| (context.handle, context.bytes))
    }

    /// Whether the device's primary context lives, seen or by a green context.
    pub fn has_primary(&self, device: DeviceId) -> bool {
        let state = self.state.lock();
        state.primary_on(device).is_some() || state.has_green(device)
    }

    /// Live contexts, for a checkpoint.
    pub fn for_each(&self, visit: impl FnMut(&Context)) {
        self.state.lock().live.iter().for_each(visit);
    }
}

#[cfg(test)]
mod tests;
