//! The contexts of this process: maps the driver's handles to small ids and to devices.
//!
//! `fast` finds a target by its handle without a lock, for hooks that run a million times a second. The rest is under a lock:
//! live contexts, retain counts of primary contexts, and the bytes that each takes.
//!
//! Handles are reused by the driver. Ids are given again too, once nothing refers to the context that had
//! them. A context is removed *before* the driver's call that destroys it, since its addresses may be given
//! to another thread at once. If the call fails it is restored.

mod fast;

use crate::runtime::fallible::{MakeRoom, TryPush};
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use fast::Fast;
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub device: DeviceId,
    pub time_ns: u64,
    pub stack: StackId,
    pub primary: bool,
    /// Device bytes that it took when it was created; 0 = not known.
    bytes: u64,
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

#[derive(Default)]
struct State {
    /// In the order of their arrival; a program has few.
    live: Vec<Context>,
    primaries: Map<DeviceId, Primary>,
    greens: Map<u64, DeviceId>,
    last: u16,
    /// Ids of contexts that have ended. A context gets one of the same device and kind, so that a trace's
    /// definition of the id stays true for earlier events.
    ended: Vec<(DeviceId, bool, ContextId)>,
}

#[derive(Debug, Default)]
struct Primary {
    /// Retains and green contexts that were not released.
    references: u32,
    /// The handle of the context, as last retained; 0: it was never. The driver keeps it when the context is reset, and
    /// when it ends and is made again.
    handle: u64,
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

impl State {
    fn get_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.live.iter_mut().find(|context| context.id == id)
    }

    fn on(&self, device: DeviceId) -> impl Iterator<Item = &Context> {
        self.live.iter().filter(move |context| context.device == device)
    }

    fn primary_on(&self, device: DeviceId) -> Option<&Context> {
        self.on(device).filter(|context| context.primary).last()
    }

    fn has_green(&self, device: DeviceId) -> bool {
        self.greens.values().any(|of| *of == device)
    }

    fn known(&self, handle: u64) -> Option<Target> {
        let known = self.live.iter().find(|context| context.handles().any(|own| own == handle));
        known.map(Context::target)
    }

    /// The context of this handle, if cuCtxCreate created it.
    fn created_as(&mut self, handle: u64) -> Option<&mut Context> {
        let id = self.known(handle)?.context;
        self.get_mut(id).filter(|context| !context.primary)
    }

    fn primary(&mut self, device: DeviceId) -> Result<&mut Primary, NoMemory> {
        self.primaries.get_or_insert(device, Primary::default())
    }

    fn add(&mut self, arrival: Arrival, primary: bool) -> Seen {
        let Arrival { handle, device, time_ns, stack } = arrival;
        let has_room = self.live.make_room().is_ok();
        let id = if has_room { self.free_id(device, primary) } else { None };
        let Some(id) = id else {
            // The context has the unknown id and is not followed: what it holds counts until it is freed.
            return Seen { target: Target { context: ContextId(0), device }, new: false };
        };
        let (bytes, grown, attached, aliases) = (0, 0, 0, Vec::new());
        let context = Context {
            id,
            device,
            time_ns,
            stack,
            primary,
            bytes,
            grown,
            attached,
            handle,
            aliases,
        };
        let target = context.target();
        let _ = self.live.try_push(context);
        Seen { target, new: true }
    }

    /// An id for a new context; `None`: 65,535 contexts are alive.
    fn free_id(&mut self, device: DeviceId, primary: bool) -> Option<ContextId> {
        let same = |(of, kind, _): &(DeviceId, bool, ContextId)| (*of, *kind) == (device, primary);
        if let Some(at) = self.ended.iter().rposition(same) {
            return Some(self.ended.swap_remove(at).2);
        }
        self.last = self.last.checked_add(1)?;
        Some(ContextId(self.last))
    }

    /// The primary context, if an unknown handle is one of it: the handle that it had before it was reset,
    /// or that of a green context as a plain one, whose memory belongs to the primary context.
    fn as_primary(&mut self, arrival: Arrival) -> Option<Seen> {
        let own = self.primaries.get(&arrival.device)?.handle;
        if own != arrival.handle && !self.has_green(arrival.device) {
            return None;
        }
        let live = self.primary_on(arrival.device).map(Context::target);
        let seen = match live {
            Some(target) => Seen { target, new: false },
            None => {
                let handle = if own != 0 { own } else { arrival.handle };
                self.add(Arrival { handle, ..arrival }, true)
            }
        };
        let context = self.get_mut(seen.target.context)?;
        if context.handle != arrival.handle {
            // Without host memory the handle is looked up again each time.
            let _ = context.aliases.try_push(arrival.handle);
        }
        Some(seen)
    }

    /// Adds a reference, or restores one.
    fn refer(&mut self, reference: Reference) {
        let device = match reference {
            Reference::Attached(handle) => {
                let id = self.known(handle).map_or(ContextId(0), |known| known.context);
                if let Some(context) = self.get_mut(id) {
                    context.attached += 1;
                }
                return;
            }
            // Without host memory the green context is not followed, and holds no reference.
            Reference::Green(green, device) => match self.greens.insert(green, device) {
                Ok(_) => device,
                Err(NoMemory) => return,
            },
            Reference::Primary(device) => device,
        };
        if let Ok(primary) = self.primary(device) {
            primary.references += 1;
        }
    }

    fn destroy(&mut self, handle: u64) -> Option<Step> {
        // Destroying a primary context by its handle is an error in the driver.
        let id = self.created_as(handle)?.id;
        self.take_out(id, None)
    }

    /// Drops a reference on the device's primary context.
    fn release(&mut self, device: DeviceId, reference: Reference) -> Option<Step> {
        let primary = self.primaries.get_mut(&device)?;
        primary.references = primary.references.checked_sub(1)?;
        let is_last = primary.references == 0;
        match self.primary_on(device).filter(|_| is_last).map(|context| context.id) {
            Some(id) => self.take_out(id, Some(reference)),
            None => Some(Step::LivesOn(reference)),
        }
    }

    fn take_out(&mut self, id: ContextId, released: Option<Reference>) -> Option<Step> {
        let at = self.live.iter().position(|context| context.id == id)?;
        Some(Step::Ends(Box::new(Ending { context: self.live.remove(at), released })))
    }
}

#[cfg(test)]
mod tests;
