//! The contexts that live, and what refers to primary ones. The caller holds the lock: see [`super::Contexts`].

use super::{Arrival, Context, Ending, Reference, Seen, Step, Target};
use crate::runtime::fallible::{MakeRoom, TryPush};
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{ContextId, DeviceId};

#[derive(Default)]
pub(super) struct State {
    /// In the order of their arrival; a program has few.
    pub(super) live: Vec<Context>,
    pub(super) primaries: Map<DeviceId, Primary>,
    pub(super) greens: Map<u64, DeviceId>,
    pub(super) last: u16,
    /// Ids of contexts that have ended. A context gets one of the same device and kind, so that a trace's
    /// definition of the id stays true for earlier events.
    pub(super) ended: Vec<(DeviceId, bool, ContextId)>,
}

#[derive(Debug, Default)]
pub(super) struct Primary {
    /// Retains and green contexts that were not released.
    pub(super) references: u32,
    /// The handle of the context, as last retained; 0: it was never. The driver keeps it when the context is reset, and
    /// when it ends and is made again.
    pub(super) handle: u64,
}

impl State {
    pub(super) fn get_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.live.iter_mut().find(|context| context.id == id)
    }

    pub(super) fn on(&self, device: DeviceId) -> impl Iterator<Item = &Context> {
        self.live.iter().filter(move |context| context.device == device)
    }

    pub(super) fn primary_on(&self, device: DeviceId) -> Option<&Context> {
        self.on(device).filter(|context| context.primary).last()
    }

    pub(super) fn has_green(&self, device: DeviceId) -> bool {
        self.greens.values().any(|of| *of == device)
    }

    pub(super) fn known(&self, handle: u64) -> Option<Target> {
        let known = self.live.iter().find(|context| context.handles().any(|own| own == handle));
        known.map(Context::target)
    }

    /// The context of this handle, if cuCtxCreate created it.
    pub(super) fn created_as(&mut self, handle: u64) -> Option<&mut Context> {
        let id = self.known(handle)?.context;
        self.get_mut(id).filter(|context| !context.primary)
    }

    pub(super) fn primary(&mut self, device: DeviceId) -> Result<&mut Primary, NoMemory> {
        self.primaries.get_or_insert(device, Primary::default())
    }

    pub(super) fn add(&mut self, arrival: Arrival, primary: bool) -> Seen {
        let Arrival { handle, device, time_ns, stack } = arrival;
        let has_room = self.live.make_room().is_ok();
        let id = if has_room { self.free_id(device, primary) } else { None };
        let Some(id) = id else {
            // The context has the unknown id and is not followed: what it holds counts until it is freed.
            return Seen { target: Target { context: ContextId(0), device }, new: false };
        };
        let context = Context { id, device, time_ns, stack, primary, handle, ..Context::default() };
        let target = context.target();
        let _ = self.live.try_push(context);
        Seen { target, new: true }
    }

    /// An id for a new context; `None`: 65,535 contexts are alive.
    pub(super) fn free_id(&mut self, device: DeviceId, primary: bool) -> Option<ContextId> {
        let same = |(of, kind, _): &(DeviceId, bool, ContextId)| (*of, *kind) == (device, primary);
        if let Some(at) = self.ended.iter().rposition(same) {
            return Some(self.ended.swap_remove(at).2);
        }
        self.last = self.last.checked_add(1)?;
        Some(ContextId(self.last))
    }

    /// The primary context, if an unknown handle is one of it: the handle that it had before it was reset,
    /// or that of a green context as a plain one, whose memory belongs to the primary context.
    pub(super) fn as_primary(&mut self, arrival: Arrival) -> Option<Seen> {
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
    pub(super) fn refer(&mut self, reference: Reference) {
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

    pub(super) fn destroy(&mut self, handle: u64) -> Option<Step> {
        // Destroying a primary context by its handle is an error in the driver.
        let id = self.created_as(handle)?.id;
        self.take_out(id, None)
    }

    /// Drops a reference on the device's primary context.
    pub(super) fn release(&mut self, device: DeviceId, reference: Reference) -> Option<Step> {
        let primary = self.primaries.get_mut(&device)?;
        primary.references = primary.references.checked_sub(1)?;
        let is_last = primary.references == 0;
        match self.primary_on(device).filter(|_| is_last).map(|context| context.id) {
            Some(id) => self.take_out(id, Some(reference)),
            None => Some(Step::LivesOn(reference)),
        }
    }

    pub(super) fn take_out(&mut self, id: ContextId, released: Option<Reference>) -> Option<Step> {
        let at = self.live.iter().position(|context| context.id == id)?;
        Some(Step::Ends(Box::new(Ending { context: self.live.remove(at), released })))
    }
}
