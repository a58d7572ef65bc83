//! Which contexts live, and what keeps a primary context alive.

use super::{Arrival, Met, Place, Reference};
use std::collections::HashMap;
use vramtrace_format::{ContextId, DeviceId, StackId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub device: DeviceId,
    pub handle: u64,
    pub primary: bool,
    pub time_ns: u64,
    pub stack: StackId,
    /// Device bytes that it took when it was made; 0 = not known.
    pub bytes: u64,
    /// cuCtxAttach on top of its creation.
    attached: u32,
    /// Other handles under which it is seen: the plain contexts of its green ones.
    aliases: Vec<u64>,
}

impl Context {
    pub fn place(&self) -> Place {
        Place { context: self.id, device: self.device }
    }
}

/// A context that was taken out because a call is about to end it.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    pub context: Context,
    /// References that the call takes, to be given back if it fails.
    released: u32,
    green: Option<u64>,
}

impl Ending {
    pub fn handles(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.context.handle).chain(self.context.aliases.iter().copied())
    }
}

#[derive(Debug, Default)]
struct Primary {
    /// Retains and green contexts that were not released.
    references: u32,
    live: Option<ContextId>,
}

#[derive(Debug, Default)]
pub struct State {
    live: HashMap<ContextId, Context>,
    by_handle: HashMap<u64, ContextId>,
    primaries: HashMap<DeviceId, Primary>,
    greens: HashMap<u64, DeviceId>,
    last: u16,
}

impl State {
    pub fn meet(&mut self, arrival: Arrival) -> Met {
        if let Some(place) = self.known(arrival.handle) {
            return Met { place, new: false };
        }
        if let Some(place) = self.as_green(arrival) {
            return Met { place, new: false };
        }
        self.add(arrival, false)
    }

    pub fn retained(&mut self, arrival: Arrival) -> Met {
        self.primaries.entry(arrival.device).or_default().references += 1;
        let met = match self.known(arrival.handle) {
            Some(place) => Met { place, new: false },
            None => self.add(arrival, true),
        };
        if let Some(context) = self.live.get_mut(&met.place.context) {
            context.primary = true;
        }
        self.primaries.entry(arrival.device).or_default().live = Some(met.place.context);
        met
    }

    pub fn green_created(&mut self, green: u64, device: DeviceId) {
        self.greens.insert(green, device);
        self.primaries.entry(device).or_default().references += 1;
    }

    pub fn attached(&mut self, handle: u64) {
        if let Some(context) = self.by_handle.get(&handle).and_then(|id| self.live.get_mut(id)) {
            context.attached += 1;
        }
    }

    pub fn begin_destroy(&mut self, handle: u64) -> Option<Ending> {
        let id = *self.by_handle.get(&handle)?;
        // Destroying a primary context by its handle is an error in the driver.
        if self.live.get(&id)?.primary {
            return None;
        }
        self.take_out(id, 0, None)
    }

    pub fn begin_detach(&mut self, handle: u64) -> Option<Ending> {
        let id = *self.by_handle.get(&handle)?;
        let context = self.live.get_mut(&id)?;
        if context.primary {
            return None;
        }
        if context.attached > 0 {
            context.attached -= 1;
            return None;
        }
        self.take_out(id, 0, None)
    }

    pub fn begin_release(&mut self, device: DeviceId) -> Option<Ending> {
        self.drop_primary(device, None)
    }

    pub fn begin_green_destroy(&mut self, green: u64) -> Option<Ending> {
        let device = self.greens.remove(&green)?;
        self.drop_primary(device, Some(green))
    }

    pub fn begin_reset(&mut self, device: DeviceId) -> Option<Ending> {
        let id = self.primaries.get_mut(&device)?.live.take()?;
        self.take_out(id, 0, None)
    }

    pub fn put_back(&mut self, ending: Ending) {
        let context = ending.context;
        for handle in std::iter::once(&context.handle).chain(&context.aliases) {
            self.by_handle.insert(*handle, context.id);
        }
        if let Some(green) = ending.green {
            self.greens.insert(green, context.device);
        }
        if context.primary {
            let primary = self.primaries.entry(context.device).or_default();
            primary.references += ending.released;
            primary.live = Some(context.id);
        }
        self.live.insert(context.id, context);
    }

    pub fn put_back_reference(&mut self, reference: Reference) {
        match reference {
            Reference::Attached(handle) => self.attached(handle),
            Reference::Green(green, device) => self.green_created(green, device),
            Reference::Primary(device) => {
                self.primaries.entry(device).or_default().references += 1;
            }
        }
    }

    pub fn set_bytes(&mut self, context: ContextId, bytes: u64) {
        if let Some(context) = self.live.get_mut(&context) {
            context.bytes = bytes;
        }
    }

    pub fn on(&self, device: DeviceId) -> impl Iterator<Item = &Context> {
        self.live.values().filter(move |context| context.device == device)
    }

    pub fn all(&self) -> impl Iterator<Item = &Context> {
        self.live.values()
    }

    fn known(&self, handle: u64) -> Option<Place> {
        let id = self.by_handle.get(&handle)?;
        self.live.get(id).map(Context::place)
    }

    fn add(&mut self, arrival: Arrival, primary: bool) -> Met {
        if self.last == u16::MAX {
            // 65,535 contexts in one process: the rest share "unknown" and are not followed.
            let place = Place { context: ContextId(0), device: arrival.device };
            return Met { place, new: false };
        }
        self.last += 1;
        let context = Context {
            id: ContextId(self.last),
            device: arrival.device,
            handle: arrival.handle,
            primary,
            time_ns: arrival.time_ns,
            stack: arrival.stack,
            bytes: 0,
            attached: 0,
            aliases: Vec::new(),
        };
        let place = context.place();
        self.by_handle.insert(arrival.handle, context.id);
        self.live.insert(context.id, context);
        Met { place, new: true }
    }

    /// An unknown handle on a device that has green contexts is the plain face of one of them;
    /// its memory belongs to the primary context.
    fn as_green(&mut self, arrival: Arrival) -> Option<Place> {
        if !self.greens.values().any(|device| *device == arrival.device) {
            return None;
        }
        let id = self.primaries.get(&arrival.device)?.live?;
        let context = self.live.get_mut(&id)?;
        context.aliases.push(arrival.handle);
        self.by_handle.insert(arrival.handle, id);
        Some(context.place())
    }

    fn drop_primary(&mut self, device: DeviceId, green: Option<u64>) -> Option<Ending> {
        let primary = self.primaries.get_mut(&device)?;
        if primary.references == 0 {
            return None;
        }
        primary.references -= 1;
        if primary.references > 0 {
            return None;
        }
        let id = primary.live.take()?;
        self.take_out(id, 1, green)
    }

    fn take_out(&mut self, id: ContextId, released: u32, green: Option<u64>) -> Option<Ending> {
        let context = self.live.remove(&id)?;
        self.by_handle.retain(|_, known| *known != id);
        if context.primary
            && let Some(primary) = self.primaries.get_mut(&context.device)
        {
            primary.live = None;
        }
        Some(Ending { context, released, green })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId(0);

    fn at(handle: u64) -> Arrival {
        Arrival { handle, device: GPU, time_ns: 0, stack: StackId(0) }
    }

    #[test]
    fn a_primary_context_ends_at_the_last_release() {
        let mut s = State::default();
        let first = s.retained(at(10));
        assert!(first.new);
        assert_eq!(s.retained(at(10)), Met { new: false, ..first });
        assert_eq!(s.begin_release(GPU), None);
        let ending = s.begin_release(GPU).expect("the last one");
        assert_eq!(ending.context.id, first.place.context);
        assert_eq!(s.begin_release(GPU), None);
        // The same handle again is another context.
        let second = s.retained(at(10));
        assert!(second.new && second.place != first.place);
    }

    #[test]
    fn a_reset_ends_it_and_keeps_the_references() {
        let mut s = State::default();
        s.retained(at(10));
        assert!(s.begin_reset(GPU).is_some());
        assert_eq!(s.begin_reset(GPU), None);
        assert!(s.retained(at(10)).new);
        assert_eq!(s.begin_release(GPU), None);
        assert!(s.begin_release(GPU).is_some());
    }

    #[test]
    fn a_failed_release_puts_it_back() {
        let mut s = State::default();
        let met = s.retained(at(10));
        let ending = s.begin_release(GPU).expect("the last one");
        assert_eq!(s.on(GPU).count(), 0);
        s.put_back(ending);
        assert_eq!(s.meet(at(10)), Met { new: false, ..met });
        assert!(s.begin_release(GPU).is_some());
    }

    #[test]
    fn created_contexts_end_by_destroy_or_the_last_detach() {
        let mut s = State::default();
        s.meet(at(10));
        s.meet(at(11));
        assert_eq!(s.on(GPU).count(), 2);
        assert!(s.begin_destroy(10).is_some());
        assert_eq!(s.begin_destroy(10), None);
        s.attached(11);
        assert_eq!(s.begin_detach(11), None);
        assert!(s.begin_detach(11).is_some());
        assert_eq!(s.on(GPU).count(), 0);
    }

    #[test]
    fn a_primary_context_is_not_destroyed_by_handle() {
        let mut s = State::default();
        s.retained(at(10));
        assert_eq!(s.begin_destroy(10), None);
        assert_eq!(s.on(GPU).count(), 1);
    }

    #[test]
    fn a_green_context_keeps_the_primary_alive_and_shares_its_memory() {
        let mut s = State::default();
        let primary = s.retained(at(10));
        s.green_created(77, GPU);
        assert_eq!(s.meet(at(78)).place, primary.place);
        assert_eq!(s.begin_release(GPU), None);
        let ending = s.begin_green_destroy(77).expect("the last reference");
        assert_eq!(ending.handles().collect::<Vec<_>>(), [10, 78]);
        s.put_back(ending);
        assert!(s.begin_green_destroy(77).is_some());
    }

    #[test]
    fn a_context_met_before_its_retain_becomes_the_primary() {
        let mut s = State::default();
        let met = s.meet(at(10));
        assert_eq!(s.retained(at(10)), Met { new: false, ..met });
        assert!(s.begin_release(GPU).is_some());
    }

    #[test]
    fn ids_run_out_into_unknown() {
        let mut s = State { last: u16::MAX - 1, ..State::default() };
        assert_eq!(s.meet(at(10)).place.context, ContextId(u16::MAX));
        assert_eq!(s.meet(at(11)).place.context, ContextId(0));
    }
}
