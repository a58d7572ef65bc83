//! Random programs that sleep and wake, against the plainest model.

use proptest::prelude::*;
use testkit::address_model::AddressModel;
use vramtrace_format::physical::MIB;
use vramtrace_format::{Alloc, DeviceId, Event, Kind, SiteId, Space, StackId, Stamped, ThreadId};

use super::*;
use crate::testing::{TraceBuilder, reserved};

const GPU: DeviceId = DeviceId(0);

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve { slot: usize },
    FreeReservation { slot: usize },
    Create { units: u64 },
    Map { pick: usize, at: usize, offset: u64, units: u64 },
    Unmap { at: usize, units: usize },
    Release { pick: usize },
    Sleep { slot: usize },
    Wake { slot: usize },
    Alloc { at: usize, units: usize },
    Free { pick: usize },
    Refuse { at: usize, units: usize },
}

const SLOTS: usize = 4;
const SLOT: usize = 8;
const UNIT: u64 = 2 * MIB;

fn step() -> impl Strategy<Value = Step> {
    let slot = || 0..SLOTS;
    let at = || 0..SLOTS * SLOT;
    prop_oneof![
        3 => slot().prop_map(|slot| Step::Reserve { slot }),
        1 => slot().prop_map(|slot| Step::FreeReservation { slot }),
        3 => (1..9u64).prop_map(|units| Step::Create { units }),
        8 => (any::<usize>(), at(), 0..4u64, 1..9u64)
            .prop_map(|(pick, at, offset, units)| Step::Map { pick, at, offset, units }),
        4 => (at(), 1..12usize).prop_map(|(at, units)| Step::Unmap { at, units }),
        2 => any::<usize>().prop_map(|pick| Step::Release { pick }),
        4 => slot().prop_map(|slot| Step::Sleep { slot }),
        8 => slot().prop_map(|slot| Step::Wake { slot }),
        10 => (at(), 1..4usize).prop_map(|(at, units)| Step::Alloc { at, units }),
        4 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        1 => (at(), 1..12usize).prop_map(|(at, units)| Step::Refuse { at, units }),
    ]
}

/// A program, its model, and the replay of its events.
struct Machine {
    model: AddressModel,
    /// Objects that live, with their handle and size: whether it is released.
    objects: Vec<(u64, u64, bool)>,
    next: u64,
    /// Unit and units of each block.
    blocks: Vec<(usize, usize)>,
    replay: Replay,
    definitions: Definitions,
    sites: [SiteId; 2],
    events: u64,
}

impl Machine {
    fn new() -> Machine {
        let mut builder = TraceBuilder::new();
        let sites = [builder.site(Kind::Vmm, 0), builder.site(Kind::Block, 0)];
        Machine {
            model: AddressModel::new(SLOTS * SLOT, UNIT),
            objects: Vec::new(),
            next: 0,
            blocks: Vec::new(),
            replay: Replay::new(),
            definitions: Definitions::of_builder(&builder),
            sites,
            events: 0,
        }
    }

    /// An event after which the model is what the program did.
    fn happens(&mut self, event: Event) {
        self.tell(event);
        self.check(&event);
    }

    fn tell(&mut self, event: Event) {
        self.events += 1;
        let (offset, time_ns) = (self.events, self.events * 1000);
        let at = Stamped { offset, time_ns, thread: ThreadId(1), event };
        self.replay.apply(&self.definitions, &at, &mut ());
    }

    /// Objects that nothing refers to end.
    fn end_objects(&mut self) {
        let model = &self.model;
        let ended = |(object, _, released): &(u64, u64, bool)| *released && !model.shows(*object);
        let gone: Vec<u64> =
            self.objects.iter().filter(|one| ended(one)).map(|(object, ..)| *object).collect();
        for object in gone {
            self.objects.retain(|(other, ..)| *other != object);
            self.model.ended(object);
            self.happens(Event::Free { key: object, space: Space::Vmm, site: SiteId(0) });
        }
    }

    fn create(&mut self, units: u64) -> u64 {
        self.next += 1;
        let object = self.next;
        self.objects.push((object, units, false));
        self.model.created(object, units);
        let stack = StackId(object as u32);
        let (key, space, size, site) = (object, Space::Vmm, units * UNIT, self.sites[0]);
        self.happens(Event::Alloc(Alloc { key, space, size, site, stack, requested: None }));
        object
    }

    fn map(&mut self, object: u64, at: usize, offset: u64, units: u64) {
        // Blocks of memory that is not reserved end with it, and nobody maps over what is mapped.
        let (address, size) = (self.model.address(at), units * UNIT);
        self.model.map(at, object, offset, units);
        let (offset, stack) = (offset * UNIT, StackId(60));
        self.happens(Event::Map { address, size, offset, object, owner: StackId(0), stack });
    }

    fn unmap(&mut self, at: usize, units: usize) {
        let to = at + units;
        let model = &self.model;
        let mapped: Vec<bool> = model.units.iter().map(|unit| unit.mapped.is_some()).collect();
        let goes = |(start, _): &(usize, usize)| {
            (at..to).contains(start) && mapped[*start] && model.reservation(*start).is_none()
        };
        self.blocks.retain(|block| !goes(block));
        self.model.unmap(at..to);
        let (address, size) = (self.model.address(at), units as u64 * UNIT);
        self.happens(Event::Unmap { address, size, stack: StackId(50) });
    }

    fn step(&mut self, step: Step) {
        let slot_of = |slot: usize| slot * SLOT..(slot + 1) * SLOT;
        let touched = |range: &std::ops::Range<usize>, block: &(usize, usize)| {
            block.0 < range.end && block.0 + block.1 > range.start
        };
        match step {
            Step::Reserve { slot } => {
                let range = slot_of(slot);
                let free = self.model.reservation(range.start).is_none()
                    && !self.model.is_mapped(range.clone())
                    && !self.blocks.iter().any(|block| touched(&range, block));
                if !free {
                    return;
                }
                self.model.reserve(range.clone());
                let (address, size) = (self.model.address(range.start), SLOT as u64 * UNIT);
                self.happens(reserved(address, size, 9));
            }
            Step::FreeReservation { slot } => {
                let range = slot_of(slot);
                let reserved = self.model.reservation(range.start).is_some();
                if !reserved || self.model.is_mapped(range.clone()) {
                    return;
                }
                self.blocks.retain(|(start, _)| !range.contains(start));
                self.model.free(&range);
                let (address, size) = (self.model.address(range.start), SLOT as u64 * UNIT);
                self.happens(Event::AddressFree { address, size });
            }
            Step::Create { units } => drop(self.create(units)),
            Step::Map { pick, at, offset, units } => {
                let named: Vec<_> =
                    self.objects.iter().filter(|(.., released)| !released).copied().collect();
                if named.is_empty() {
                    return;
                }
                let (object, all, _) = named[pick % named.len()];
                let units = units.min(all.saturating_sub(offset));
                let range = at..at + units as usize;
                // In one slot, and where nothing is.
                if units == 0
                    || range.end > (at / SLOT + 1) * SLOT
                    || self.model.is_mapped(range.clone())
                {
                    return;
                }
                self.map(object, at, offset, units);
            }
            Step::Unmap { at, units } => {
                let units = units.min(SLOTS * SLOT - at);
                self.unmap(at, units);
                self.end_objects();
            }
            Step::Release { pick } => {
                let named: Vec<usize> =
                    (0..self.objects.len()).filter(|at| !self.objects[*at].2).collect();
                if !named.is_empty() {
                    self.objects[named[pick % named.len()]].2 = true;
                    self.end_objects();
                }
            }
            Step::Sleep { slot } => {
                self.unmap(slot * SLOT, SLOT);
                let model = &self.model;
                for (object, _, released) in &mut self.objects {
                    *released |= !model.shows(*object);
                }
                self.end_objects();
            }
            Step::Wake { slot } => {
                if self.model.is_mapped(slot_of(slot)) {
                    return;
                }
                let object = self.create(SLOT as u64);
                self.map(object, slot * SLOT, 0, SLOT as u64);
            }
            Step::Alloc { at, units } => {
                let range = at..at + units;
                let known = self.model.units.get(at).is_some_and(|unit| unit.mapped.is_some())
                    || self.model.reservation(at).is_some();
                if range.end > (at / SLOT + 1) * SLOT
                    || !known
                    || self.blocks.iter().any(|block| touched(&range, block))
                {
                    return;
                }
                // In memory that is not reserved all of it is mapped.
                let whole = range.clone().all(|unit| self.model.units[unit].mapped.is_some());
                if self.model.reservation(at).is_none() && !whole {
                    return;
                }
                self.blocks.push((at, units));
                let (key, size) = (self.model.address(at), units as u64 * UNIT);
                let (space, site, stack, requested) =
                    (Space::Block, self.sites[1], StackId(5), None);
                self.happens(Event::Alloc(Alloc { key, space, size, site, stack, requested }));
            }
            Step::Free { pick } => {
                if self.blocks.is_empty() {
                    return;
                }
                let at = pick % self.blocks.len();
                let (start, _) = self.blocks.swap_remove(at);
                let (key, space) = (self.model.address(start), Space::Block);
                self.happens(Event::Free { key, space, site: SiteId(0) });
            }
            Step::Refuse { at, units } => {
                // The driver refuses an unmap in a reservation: what it took out is back.
                let Some(range) = self.model.reservation(at) else { return };
                let to = (at + units).min(range.end);
                let (address, size) = (self.model.address(at), (to - at) as u64 * UNIT);
                let space = self.replay.state().space.clone();
                let back: Vec<Mapping> = space.touching(address, size).copied().collect();
                if back.is_empty() {
                    return;
                }
                self.tell(Event::Unmap { address, size, stack: StackId(50) });
                for mapping in back {
                    let Mapping { address, size, offset, object, .. } = mapping;
                    let stack = StackId(0);
                    self.tell(Event::Map {
                        address,
                        size,
                        offset,
                        object,
                        owner: StackId(0),
                        stack,
                    });
                }
            }
        }
    }

    fn check(&self, step: &dyn std::fmt::Debug) {
        let state = self.replay.state();
        self.model.check(&state.space, &format!("{step:?}"));
        let none = DeviceState::default();
        let device = state.devices.get(&GPU).unwrap_or(&none);
        let physical: u64 = self.objects.iter().map(|(_, units, _)| units * UNIT).sum();
        assert_eq!(device.live_bytes, physical, "{step:?}: physical bytes");
        let allocated: u64 = self.blocks.iter().map(|(_, units)| *units as u64 * UNIT).sum();
        assert_eq!(device.cache.allocated, allocated, "{step:?}: allocated");
        assert_eq!(device.cache.blocks, self.blocks.len() as u64, "{step:?}: blocks");
        let paused = |(start, units): &(usize, usize)| {
            let in_reservation = self.model.reservation(*start).is_some();
            let unbacked = (*start..start + units).filter(|unit| !self.model.is_backed(*unit));
            if in_reservation { unbacked.count() as u64 * UNIT } else { 0 }
        };
        let paused: u64 = self.blocks.iter().map(paused).sum();
        assert_eq!(device.cache.paused, paused, "{step:?}: paused");
        let segments = state.segments();
        let sum = |of: fn(&SegmentAt) -> u64| segments.iter().map(of).sum::<u64>();
        assert_eq!(device.cache.reserved, sum(|segment| segment.bytes), "{step:?}: reserved");
        assert_eq!(device.cache.reserved_paused, sum(|segment| segment.paused), "{step:?}");
        let of_blocks =
            |segment: &SegmentAt| segment.blocks.iter().map(|block| block.paused).sum::<u64>();
        assert_eq!(segments.iter().map(of_blocks).sum::<u64>(), paused, "{step:?}: of segments");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 256, ..ProptestConfig::default()
    })]

    /// Programs that reserve, create, map, unmap, release, allocate, free, sleep and wake: the state
    /// is the model's at every event.
    #[test]
    fn any_program_equals_the_model(steps in proptest::collection::vec(step(), 1..150)) {
        let mut machine = Machine::new();
        for step in steps {
            machine.step(step);
            machine.check(&step);
        }
    }
}
