//! The live contexts, and the references that keep primary contexts alive.

use super::{Arrival, Reference, Seen, Step, Target};
use crate::runtime::fallible::{MakeRoom, TryPush};
use crate::runtime::fallible_map::Map;
use crate::runtime::hash_table::NoMemory;
use vramtrace_format::{ContextId, DeviceId, StackId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub device: DeviceId,
    pub handle: u64,
    pub primary: bool,
    pub time_ns: u64,
    pub stack: StackId,
    /// Device bytes that it took when it was created; 0 = not known.
    pub bytes: u64,
    /// Device bytes that its limits (stack size) took afterwards.
    pub grown: u64,
    /// The number of cuCtxAttach calls.
    attached: u32,
    /// Other handles of it: those of its green contexts as plain contexts.
    aliases: Vec<u64>,
}

impl Context {
    pub fn target(&self) -> Target {
        Target { context: self.id, device: self.device }
    }
}

/// A context that was removed because a call is about to end it.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    pub context: Context,
    /// References that the call releases; restored if it fails.
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
    /// Its handle, as last retained; 0: it was never. The driver keeps it when the context is reset, and
    /// when it ends and is made again.
    handle: u64,
}

#[derive(Debug, Default)]
pub struct State {
    live: Map<ContextId, Context>,
    by_handle: Map<u64, ContextId>,
    primaries: Map<DeviceId, Primary>,
    greens: Map<u64, DeviceId>,
    last: u16,
    /// Ids of contexts that have ended. A context gets one of the same device and kind, so that a trace's
    /// definition of the id stays true for earlier events.
    ended: Vec<(DeviceId, bool, ContextId)>,
    /// A context got no id.
    overflowed: bool,
}

impl State {
    /// cuCtxCreate returned it.
    pub fn created(&mut self, arrival: Arrival) -> Seen {
        match self.known(arrival.handle) {
            Some(target) => Seen { target, new: false },
            None => self.add(arrival, false),
        }
    }

    /// It is current on a thread.
    pub fn register(&mut self, arrival: Arrival) -> Seen {
        if let Some(target) = self.known(arrival.handle) {
            return Seen { target, new: false };
        }
        self.as_primary(arrival).unwrap_or_else(|| self.add(arrival, false))
    }

    pub fn retained(&mut self, arrival: Arrival) -> Seen {
        if let Ok(primary) = self.primary(arrival.device) {
            primary.references += 1;
        }
        let seen = match self.known(arrival.handle) {
            Some(target) => Seen { target, new: false },
            None => match self.as_primary(arrival) {
                Some(seen) => seen,
                None => self.add(arrival, true),
            },
        };
        if let Some(context) = self.live.get_mut(&seen.target.context) {
            context.primary = true;
        }
        if let Ok(primary) = self.primary(arrival.device) {
            primary.live = Some(seen.target.context);
            primary.handle = arrival.handle;
        }
        seen
    }

    /// Whether this is the handle of a primary context that ended, or was reset, and was not seen since.
    pub fn is_ended_primary(&self, handle: u64) -> bool {
        self.primaries.values().any(|primary| primary.handle == handle && primary.live.is_none())
    }

    pub fn green_created(&mut self, green: u64, device: DeviceId) {
        // Without host memory the green context is not followed, and holds no reference.
        if self.greens.insert(green, device).is_ok()
            && let Ok(primary) = self.primary(device)
        {
            primary.references += 1;
        }
    }

    fn primary(&mut self, device: DeviceId) -> Result<&mut Primary, NoMemory> {
        self.primaries.get_or_insert(device, Primary::default())
    }

    pub fn attached(&mut self, handle: u64) {
        if let Some(context) = self.by_handle.get(&handle).and_then(|id| self.live.get_mut(id)) {
            context.attached += 1;
        }
    }

    pub fn begin_destroy(&mut self, handle: u64) -> Step {
        // Destroying a primary context by its handle is an error in the driver.
        match self.created_as(handle) {
            Some(context) => {
                let id = context.id;
                self.take_out(id, 0, None)
            }
            None => Step::Unknown,
        }
    }

    pub fn begin_detach(&mut self, handle: u64) -> Step {
        match self.created_as(handle) {
            Some(context) if context.attached > 0 => {
                context.attached -= 1;
                Step::LivesOn(Reference::Attached(handle))
            }
            _ => self.begin_destroy(handle),
        }
    }

    pub fn begin_release(&mut self, device: DeviceId) -> Step {
        self.drop_primary(device, None)
    }

    pub fn begin_green_destroy(&mut self, green: u64) -> Step {
        match self.greens.remove(&green) {
            Some(device) => self.drop_primary(device, Some(green)),
            None => Step::Unknown,
        }
    }

    pub fn begin_reset(&mut self, device: DeviceId) -> Step {
        match self.primary_of(device) {
            Some(id) => self.take_out(id, 0, None),
            None => Step::Unknown,
        }
    }

    /// There is room, as it was in the table before. If another context has taken its slot meanwhile,
    /// it is added again when it is next used.
    pub fn put_back(&mut self, ending: Ending) {
        let context = ending.context;
        for handle in std::iter::once(&context.handle).chain(&context.aliases) {
            let _ = self.by_handle.insert(*handle, context.id);
        }
        if let Some(green) = ending.green {
            let _ = self.greens.insert(green, context.device);
        }
        if context.primary
            && let Ok(primary) = self.primary(context.device)
        {
            primary.references += ending.released;
            primary.live = Some(context.id);
        }
        let _ = self.live.insert(context.id, context);
    }

    pub fn put_back_reference(&mut self, reference: Reference) {
        match reference {
            Reference::Attached(handle) => self.attached(handle),
            Reference::Green(green, device) => self.green_created(green, device),
            Reference::Primary(device) => {
                if let Ok(primary) = self.primary(device) {
                    primary.references += 1;
                }
            }
        }
    }

    pub fn get_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.live.get_mut(&id)
    }

    pub fn get(&self, id: ContextId) -> Option<&Context> {
        self.live.get(&id)
    }

    pub fn primary_of(&self, device: DeviceId) -> Option<ContextId> {
        self.primaries.get(&device)?.live
    }

    pub fn has_primary(&self, device: DeviceId) -> bool {
        self.primary_of(device).is_some() || self.greens.values().any(|of| *of == device)
    }

    pub fn on(&self, device: DeviceId) -> impl Iterator<Item = &Context> {
        self.live.values().filter(move |context| context.device == device)
    }

    pub fn all(&self) -> impl Iterator<Item = &Context> {
        self.live.values()
    }

    pub fn known(&self, handle: u64) -> Option<Target> {
        let id = self.by_handle.get(&handle)?;
        self.live.get(id).map(Context::target)
    }

    fn add(&mut self, arrival: Arrival, primary: bool) -> Seen {
        let has_room = self.by_handle.make_room().and_then(|()| self.live.make_room()).is_ok();
        let id = if has_room { self.free_id(arrival.device, primary) } else { None };
        let Some(id) = id else {
            // The context has the unknown id and is not followed: what it holds counts until it is freed.
            self.overflowed = has_room;
            let target = Target { context: ContextId(0), device: arrival.device };
            return Seen { target, new: false };
        };
        let context = Context {
            id,
            device: arrival.device,
            handle: arrival.handle,
            primary,
            time_ns: arrival.time_ns,
            stack: arrival.stack,
            bytes: 0,
            grown: 0,
            attached: 0,
            aliases: Vec::new(),
        };
        let target = context.target();
        let _ = self.by_handle.insert(arrival.handle, context.id);
        let _ = self.live.insert(context.id, context);
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

    /// Nothing refers to the context any more: its id can be given to another one.
    pub fn retire(&mut self, ended: &Context) {
        // Without host memory the id is lost.
        let _ = self.ended.try_push((ended.device, ended.primary, ended.id));
    }

    /// Whether a context got no id for the first time since the last query.
    pub fn take_overflowed(&mut self) -> bool {
        std::mem::take(&mut self.overflowed)
    }

    /// The primary context, if an unknown handle is one of it: the handle that it had before it was reset,
    /// or that of a green context as a plain one, whose memory belongs to the primary context.
    fn as_primary(&mut self, arrival: Arrival) -> Option<Seen> {
        let primary = self.primaries.get(&arrival.device)?;
        let (own, live) = (primary.handle, primary.live);
        if own != arrival.handle && !self.greens.values().any(|device| *device == arrival.device) {
            return None;
        }
        let seen = match live {
            Some(id) => Seen { target: self.live.get(&id)?.target(), new: false },
            None => {
                let handle = if own != 0 { own } else { arrival.handle };
                self.add(Arrival { handle, ..arrival }, true)
            }
        };
        let id = seen.target.context;
        let context = self.live.get_mut(&id)?;
        // Without host memory the handle is looked up again each time.
        if context.handle != arrival.handle && context.aliases.try_push(arrival.handle).is_ok() {
            let _ = self.by_handle.insert(arrival.handle, id);
        }
        if let Ok(primary) = self.primary(arrival.device) {
            primary.live = Some(id);
        }
        Some(seen)
    }

    /// The context of this handle, if cuCtxCreate created it.
    fn created_as(&mut self, handle: u64) -> Option<&mut Context> {
        let id = self.by_handle.get(&handle)?;
        self.live.get_mut(id).filter(|context| !context.primary)
    }

    fn drop_primary(&mut self, device: DeviceId, green: Option<u64>) -> Step {
        let reference = match green {
            Some(green) => Reference::Green(green, device),
            None => Reference::Primary(device),
        };
        match self.primaries.get_mut(&device) {
            Some(primary) if primary.references > 0 => {
                primary.references -= 1;
                match primary.live {
                    Some(id) if primary.references == 0 => self.take_out(id, 1, green),
                    _ => Step::LivesOn(reference),
                }
            }
            _ => Step::Unknown,
        }
    }

    fn take_out(&mut self, id: ContextId, released: u32, green: Option<u64>) -> Step {
        let Some(context) = self.live.remove(&id) else { return Step::Unknown };
        self.by_handle.retain(|_, known| *known != id);
        if context.primary
            && let Some(primary) = self.primaries.get_mut(&context.device)
        {
            primary.live = None;
        }
        Step::Ends(Box::new(Ending { context, released, green }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId(0);

    fn at(handle: u64) -> Arrival {
        Arrival { handle, device: GPU, time_ns: 0, stack: StackId(0) }
    }

    fn ends(step: Step) -> Ending {
        match step {
            Step::Ends(ending) => *ending,
            other => panic!("it should end: {other:?}"),
        }
    }

    fn lives_on(step: Step) -> bool {
        matches!(step, Step::LivesOn(_))
    }

    #[test]
    fn a_primary_context_ends_at_the_last_release() {
        let mut s = State::default();
        let first = s.retained(at(10));
        assert!(first.new);
        assert_eq!(s.retained(at(10)), Seen { new: false, ..first });
        assert!(lives_on(s.begin_release(GPU)));
        assert_eq!(ends(s.begin_release(GPU)).context.id, first.target.context);
        assert_eq!(s.begin_release(GPU), Step::Unknown);
        // The same handle again is another context.
        let second = s.retained(at(10));
        assert!(second.new && second.target != first.target);
    }

    #[test]
    fn a_primary_context_that_is_used_again_after_a_reset_is_still_the_primary() {
        let mut s = State::default();
        s.retained(at(10));
        for _ in 0..3 {
            ends(s.begin_reset(GPU));
            assert!(s.is_ended_primary(10));
            assert!(s.register(at(10)).new && s.get(s.primary_of(GPU).unwrap()).unwrap().primary);
            assert_eq!(s.begin_destroy(10), Step::Unknown);
        }
        ends(s.begin_release(GPU));
        assert_eq!(s.on(GPU).count(), 0);
    }

    #[test]
    fn a_created_context_is_no_primary_whatever_its_handle() {
        let mut s = State::default();
        s.retained(at(10));
        ends(s.begin_release(GPU));
        let seen = s.created(at(10));
        assert!(!s.get(seen.target.context).unwrap().primary);
        s.green_created(77, GPU);
        assert!(s.created(at(11)).new);
        ends(s.begin_destroy(10));
        ends(s.begin_destroy(11));
    }

    #[test]
    fn a_green_context_that_is_used_first_is_the_primary() {
        let mut s = State::default();
        s.green_created(77, GPU);
        let seen = s.register(at(78));
        assert!(seen.new && s.primary_of(GPU) == Some(seen.target.context));
        assert_eq!(s.retained(at(10)), Seen { new: false, ..seen });
        assert!(lives_on(s.begin_green_destroy(77)));
        let ending = ends(s.begin_release(GPU));
        assert_eq!(ending.handles().collect::<Vec<_>>(), [78, 10]);
    }

    #[test]
    fn a_reset_ends_it_and_keeps_the_references() {
        let mut s = State::default();
        s.retained(at(10));
        ends(s.begin_reset(GPU));
        assert_eq!(s.begin_reset(GPU), Step::Unknown);
        assert!(s.retained(at(10)).new);
        assert!(lives_on(s.begin_release(GPU)));
        ends(s.begin_release(GPU));
    }

    #[test]
    fn a_release_after_a_reset_ends_nothing_and_is_counted() {
        let mut s = State::default();
        s.retained(at(10));
        ends(s.begin_reset(GPU));
        assert!(lives_on(s.begin_release(GPU)));
        s.retained(at(10));
        ends(s.begin_release(GPU));
    }

    #[test]
    fn a_failed_release_puts_it_back() {
        let mut s = State::default();
        let seen = s.retained(at(10));
        let ending = ends(s.begin_release(GPU));
        assert_eq!(s.on(GPU).count(), 0);
        s.put_back(ending);
        assert_eq!(s.register(at(10)), Seen { new: false, ..seen });
        ends(s.begin_release(GPU));
    }

    #[test]
    fn created_contexts_end_by_destroy_or_the_last_detach() {
        let mut s = State::default();
        s.register(at(10));
        s.register(at(11));
        assert_eq!(s.on(GPU).count(), 2);
        ends(s.begin_destroy(10));
        assert_eq!(s.begin_destroy(10), Step::Unknown);
        s.attached(11);
        assert_eq!(s.begin_detach(11), Step::LivesOn(Reference::Attached(11)));
        s.put_back_reference(Reference::Attached(11));
        assert!(lives_on(s.begin_detach(11)));
        ends(s.begin_detach(11));
        assert_eq!(s.on(GPU).count(), 0);
    }

    #[test]
    fn a_primary_context_is_not_destroyed_by_handle() {
        let mut s = State::default();
        s.retained(at(10));
        assert_eq!(s.begin_destroy(10), Step::Unknown);
        assert_eq!(s.begin_detach(10), Step::Unknown);
        assert_eq!(s.on(GPU).count(), 1);
    }

    #[test]
    fn a_green_context_keeps_the_primary_alive_and_shares_its_memory() {
        let mut s = State::default();
        let primary = s.retained(at(10));
        s.green_created(77, GPU);
        assert_eq!(s.register(at(78)).target, primary.target);
        assert!(lives_on(s.begin_release(GPU)));
        let ending = ends(s.begin_green_destroy(77));
        assert_eq!(ending.handles().collect::<Vec<_>>(), [10, 78]);
        s.put_back(ending);
        ends(s.begin_green_destroy(77));
    }

    #[test]
    fn a_context_met_before_its_retain_becomes_the_primary() {
        let mut s = State::default();
        let seen = s.register(at(10));
        assert_eq!(s.retained(at(10)), Seen { new: false, ..seen });
        ends(s.begin_release(GPU));
    }

    #[test]
    fn ids_of_ended_contexts_are_given_to_others_of_the_device_and_kind() {
        let mut s = State::default();
        for _ in 0..100_000 {
            assert_eq!(s.created(at(10)).target.context, ContextId(1));
            let ending = ends(s.begin_destroy(10));
            s.retire(&ending.context);
        }
        assert_eq!(s.retained(at(20)).target.context, ContextId(2), "a primary one");
        let other = Arrival { device: DeviceId(1), ..at(30) };
        assert_eq!(s.created(other).target.context, ContextId(3), "another device");
        assert_eq!(s.created(at(10)).target.context, ContextId(1));
    }

    #[test]
    fn more_than_65_535_live_contexts_are_not_followed() {
        let mut s = State { last: u16::MAX - 1, ..State::default() };
        assert_eq!(s.register(at(10)).target.context, ContextId(u16::MAX));
        assert!(!s.take_overflowed());
        assert_eq!(s.register(at(11)).target.context, ContextId(0));
        assert!(s.take_overflowed());
        assert_eq!(s.begin_destroy(11), Step::Unknown);
    }
}
