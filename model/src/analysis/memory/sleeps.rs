//! Sleeps: times in which memory of a device was unmapped that the program mapped again later. Output:
//! the memory that was unmapped, the memory that stayed on the card, and how that grows from one sleep
//! to the next. Sizes are bytes; times are ns since the start of the trace.
//!
//! A sleep begins when memory is unmapped whose reservation stays. It ends when all memory that was
//! unmapped since is mapped again, or its reservation freed. The memory that stayed is that of the
//! lowest moment: the last one at which the device's driver memory was lowest.
//!
//! ```text
//! events -> SleepsObserver (Sleep) -> rests (the state at each lowest moment) -> ResidentAtSleeps -> SleepsFacts
//! ```

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause, Kind, StackId, Stamped};

use super::classifier::{NamedStack, StackClassifier};
use super::holdings::Holdings;
use crate::analysis::Level;
use crate::facts;
use crate::replay::{Asleep, DeviceState, Live, Mapping, Observer, State, Until, Visitor};

/// Maximum number of sleeps that are kept of a device. With more, every second one is dropped.
const KEPT: usize = 1024;
/// Maximum number of sleeps at which the resident memory is read, the first and the last included.
const LOOKED_AT: usize = 16;

/// One sleep of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Sleep {
    /// Number among the device's sleeps, from 1.
    pub number: u64,
    #[serde(rename = "began_s", with = "facts::Seconds")]
    pub began_ns: u64,
    /// Null: not all memory is mapped again when the trace ends.
    #[serde(rename = "ended_s", with = "facts::SecondsOrNull")]
    pub ended_ns: Option<u64>,
    /// Bytes that were unmapped, by the stack of the call; largest first.
    #[serde(skip)]
    pub went: Vec<(StackId, u64)>,
    /// The highest number of bytes that were unmapped at once.
    pub asleep_bytes: u64,
    /// The device's driver memory at the lowest moment, and that moment.
    pub stayed_bytes: u64,
    #[serde(rename = "lowest_at_s", with = "facts::Seconds")]
    pub lowest_ns: u64,
    /// The event that led to the lowest moment.
    #[serde(skip)]
    lowest_offset: u64,
}

/// A device's sleeps, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sleeps {
    pub all: Vec<Sleep>,
    /// Number of sleeps, those included that were dropped from `all`.
    pub count: u64,
}

impl Sleeps {
    /// The stacks of the calls that unmapped memory.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        self.all.iter().flat_map(|sleep| sleep.went.iter().map(|(stack, _)| *stack))
    }
}

/// Finds the sleeps of all devices.
#[derive(Clone, Debug, Default)]
pub struct SleepsObserver {
    devices: BTreeMap<DeviceId, DeviceSleeps>,
}

#[derive(Clone, Debug, Default)]
struct DeviceSleeps {
    found: Sleeps,
    asleep: u64,
    open: Option<OpenSleep>,
}

#[derive(Clone, Debug)]
struct OpenSleep {
    sleep: Sleep,
    went: FxHashMap<StackId, u64>,
    /// Bytes that were unmapped before this sleep.
    before: u64,
    /// Memory was mapped again. Otherwise it was unmapped to be freed.
    woke: bool,
}

impl DeviceSleeps {
    fn fell_asleep(&mut self, at: &Stamped, bytes: u64, by: StackId) {
        let before = self.asleep;
        self.asleep = self.asleep.saturating_add(bytes);
        let open = self.open.get_or_insert_with(|| {
            let sleep = Sleep {
                began_ns: at.time_ns,
                stayed_bytes: u64::MAX,
                lowest_ns: at.time_ns,
                lowest_offset: at.offset,
                ..Sleep::default()
            };
            OpenSleep { sleep, went: FxHashMap::default(), before, woke: false }
        });
        let went = open.went.entry(by).or_default();
        *went = went.saturating_add(bytes);
        let asleep = self.asleep.saturating_sub(open.before);
        if asleep > open.sleep.asleep_bytes {
            // The lowest moment is that after the last memory was unmapped.
            (open.sleep.asleep_bytes, open.sleep.stayed_bytes) = (asleep, u64::MAX);
        }
    }

    /// Unmapped memory was mapped again (`woke`), or its reservation was freed.
    fn is_back(&mut self, at: &Stamped, bytes: u64, woke: bool) {
        self.asleep = self.asleep.saturating_sub(bytes);
        if let Some(open) = &mut self.open {
            open.woke |= woke;
        }
        if self.open.as_ref().is_some_and(|open| self.asleep <= open.before) {
            self.close(Some(at.time_ns));
        }
    }

    fn close(&mut self, ended_ns: Option<u64>) {
        let Some(OpenSleep { mut sleep, went, woke, .. }) = self.open.take() else { return };
        if !woke && ended_ns.is_some() {
            return;
        }
        self.found.count += 1;
        sleep.number = self.found.count;
        sleep.ended_ns = ended_ns;
        sleep.went = went.into_iter().collect();
        sleep.went.sort_unstable_by_key(|(stack, bytes)| (std::cmp::Reverse(*bytes), *stack));
        self.found.all.push(sleep);
        if self.found.all.len() >= KEPT {
            let mut at = 0;
            self.found.all.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
    }
}

impl SleepsObserver {
    /// After the last event.
    pub fn finish(mut self) -> BTreeMap<DeviceId, Sleeps> {
        for watched in self.devices.values_mut() {
            if let Some(open) = &mut watched.open
                && open.sleep.stayed_bytes == u64::MAX
            {
                open.sleep.stayed_bytes = 0;
            }
            watched.close(None);
        }
        let found = self.devices.into_iter().map(|(device, watched)| (device, watched.found));
        found.filter(|(_, found)| found.count > 0).collect()
    }
}

impl Observer for SleepsObserver {
    fn on_sleep(&mut self, at: &Stamped, asleep: &Asleep, by: StackId) {
        let device = self.devices.entry(asleep.owner.device).or_default();
        device.fell_asleep(at, asleep.size, by);
    }

    fn on_wake(&mut self, at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let owner = mapping.woken.map(|woken| woken.owner.device);
        let device = owner.or(object.map(|object| object.device));
        if let Some(device) = device.and_then(|device| self.devices.get_mut(&device)) {
            device.is_back(at, mapping.size, true);
        }
    }

    fn on_sleep_end(&mut self, at: &Stamped, asleep: &Asleep) {
        if let Some(device) = self.devices.get_mut(&asleep.owner.device) {
            device.is_back(at, asleep.size, false);
        }
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let open = self.devices.get_mut(&device).and_then(|watched| watched.open.as_mut());
        if let Some(open) = open
            && state.live_bytes <= open.sleep.stayed_bytes
        {
            open.sleep.stayed_bytes = state.live_bytes;
            (open.sleep.lowest_ns, open.sleep.lowest_offset) = (at.time_ns, at.offset);
        }
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        for watched in self.devices.values_mut() {
            watched.open = None;
            watched.asleep = 0;
        }
    }
}

/// Memory that stayed on a device during a sleep, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResidentPart {
    Context,
    /// Memory that the driver took for itself, by cause and by the stack of the call.
    Driver(DriverCause, StackId),
    /// The unused reserves of pools and graphs.
    Reserves(Kind),
    /// A framework's blocks, and the free part of its segments.
    Blocks(StackId),
    /// Driver memory.
    Memory(StackId),
}

/// The resident memory at some of a device's sleeps.
#[derive(Clone, Debug, Default)]
pub struct ResidentAtSleeps {
    /// The sleeps that were read, as indexes into [`Sleeps::all`].
    pub sleeps: Vec<usize>,
    /// For each of them: resident bytes, and bytes in all with those that were unmapped.
    stayed: Vec<FxHashMap<ResidentPart, (u64, u64)>>,
}

/// The memory that one line, or one part of the driver's own memory, held at each of the sleeps.
#[derive(Clone, Debug, PartialEq)]
pub struct Rest {
    /// For a line, the stack with the most bytes.
    pub what: ResidentPart,
    /// Resident bytes at each sleep that was read.
    pub bytes: Vec<u64>,
    /// Resident and unmapped bytes at each sleep that was read.
    pub held: Vec<u64>,
}

impl ResidentPart {
    fn name(self) -> &'static str {
        match self {
            ResidentPart::Context => "context",
            ResidentPart::Driver(cause, _) => cause.name(),
            ResidentPart::Reserves(Kind::Graph) => "graph_reserve",
            ResidentPart::Reserves(_) => "pool_reserve",
            ResidentPart::Blocks(_) => "blocks",
            ResidentPart::Memory(_) => "memory",
        }
    }

    /// The same without its stack.
    fn kind(self) -> ResidentPart {
        match self {
            ResidentPart::Driver(cause, _) => ResidentPart::Driver(cause, StackId(0)),
            ResidentPart::Blocks(_) => ResidentPart::Blocks(StackId(0)),
            ResidentPart::Memory(_) => ResidentPart::Memory(StackId(0)),
            ResidentPart::Context | ResidentPart::Reserves(_) => self,
        }
    }

    fn stack(self) -> Option<StackId> {
        match self {
            ResidentPart::Driver(_, stack)
            | ResidentPart::Blocks(stack)
            | ResidentPart::Memory(stack) => Some(stack),
            ResidentPart::Context | ResidentPart::Reserves(_) => None,
        }
    }
}

impl Rest {
    pub fn stack(&self) -> Option<StackId> {
        self.what.stack()
    }

    pub fn last(&self) -> u64 {
        self.bytes.last().copied().unwrap_or(0)
    }

    /// Average growth of the resident bytes from one sleep to the next. `cycles`: number of sleeps from
    /// the first one that was read to the last.
    pub fn growth(&self, cycles: u64) -> i64 {
        let ends = self.bytes.first().zip(self.bytes.last());
        let grown = ends.map_or(0, |(first, last)| i128::from(*last) - i128::from(*first));
        let a_cycle = grown / i128::from(cycles.max(1));
        a_cycle.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// Finds the resident memory at the sleeps.
pub struct RestsAtSleeps {
    /// Of each place the device, and the sleep as an index into [`Sleeps::all`].
    places: Vec<(DeviceId, usize, Until)>,
    level: Level,
    pub found: BTreeMap<DeviceId, ResidentAtSleeps>,
}

impl RestsAtSleeps {
    pub fn new(sleeps: &BTreeMap<DeviceId, Sleeps>, level: Level) -> RestsAtSleeps {
        let of_device = |(device, sleeps): (&DeviceId, &Sleeps)| {
            let (device, all) = (*device, &sleeps.all);
            let place = |at: usize| (device, at, Until::Offset(all[at].lowest_offset));
            evenly(all.len()).into_iter().map(place).collect::<Vec<_>>()
        };
        let places = sleeps.iter().flat_map(of_device).collect();
        RestsAtSleeps { places, level, found: BTreeMap::new() }
    }
}

impl Visitor for RestsAtSleeps {
    fn stops(&self) -> Vec<Until> {
        self.places.iter().map(|(_, _, until)| *until).collect()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        let (device, at, _) = self.places[stop];
        let rests = self.found.entry(device).or_default();
        rests.sleeps.push(at);
        rests.stayed.push(stayed(state, device, self.level));
    }
}

/// At most `LOOKED_AT` evenly spaced indexes below `all`, the first and the last included.
fn evenly(all: usize) -> Vec<usize> {
    if all <= LOOKED_AT {
        return (0..all).collect();
    }
    (0..LOOKED_AT).map(|n| n * (all - 1) / (LOOKED_AT - 1)).collect()
}

fn stayed(state: &State, id: DeviceId, level: Level) -> FxHashMap<ResidentPart, (u64, u64)> {
    let mut all: FxHashMap<ResidentPart, (u64, u64)> = FxHashMap::default();
    let mut add = |what, bytes: u64, held: u64| {
        if held > 0 {
            let sums = all.entry(what).or_default();
            (sums.0, sums.1) = (sums.0.saturating_add(bytes), sums.1.saturating_add(held));
        }
    };
    let Some(device) = state.devices.get(&id) else { return all };
    add(ResidentPart::Context, device.context_bytes, device.context_bytes);
    for (maker, bytes) in device.driver_own.makers() {
        add(ResidentPart::Driver(maker.cause, maker.stack), bytes, bytes);
    }
    for kind in [Kind::Pool, Kind::Graph] {
        let here = state.live.iter().filter(|(_, live)| live.device == id && live.kind == kind);
        let allocated = here.map(|(_, live)| live.share()).fold(0, u64::saturating_add);
        let rest = device.kind(kind).live_bytes.saturating_sub(allocated);
        add(ResidentPart::Reserves(kind), rest, rest);
    }
    let holdings = Holdings::of_state(state, level);
    for (of, held) in &holdings.held {
        let part = match of.of_cache {
            true => ResidentPart::Blocks(of.stack),
            false => ResidentPart::Memory(of.stack),
        };
        if of.device == id && of.cause.is_none() {
            add(part, held.bytes, held.bytes.saturating_add(held.paused));
        }
    }
    all
}

impl ResidentAtSleeps {
    /// The stacks of the resident memory.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> + '_ {
        self.stayed.iter().flat_map(|stayed| stayed.keys()).filter_map(|what| what.stack())
    }

    /// Number of sleeps from the first one that was read to the last.
    pub fn cycles(&self, sleeps: &Sleeps) -> u64 {
        let number = |at: Option<&usize>| at.map_or(0, |at| sleeps.all[*at].number);
        number(self.sleeps.last()).saturating_sub(number(self.sleeps.first()))
    }

    /// By line, the largest at the last sleep first.
    pub fn by_line(&self, classifier: &StackClassifier) -> Vec<Rest> {
        let mut rests: Vec<(Rest, u64)> = Vec::new();
        let mut known: FxHashMap<_, usize> = FxHashMap::default();
        for (at, stayed) in self.stayed.iter().enumerate() {
            let mut stayed: Vec<(&ResidentPart, &(u64, u64))> = stayed.iter().collect();
            stayed.sort_unstable();
            for (what, (bytes, held)) in stayed {
                let stack = what.stack();
                let why = stack.filter(|stack| classifier.symbols.indexes(*stack).is_empty());
                let key = (
                    what.kind(),
                    why,
                    stack.map(|stack| classifier.holder_key(stack, Level::Driver)),
                );
                let index = *known.entry(key).or_insert_with(|| {
                    let none = || vec![0; self.stayed.len()];
                    rests.push((Rest { what: *what, bytes: none(), held: none() }, 0));
                    rests.len() - 1
                });
                let (rest, most) = &mut rests[index];
                if *held > *most {
                    (rest.what, *most) = (*what, *held);
                }
                rest.bytes[at] = rest.bytes[at].saturating_add(*bytes);
                rest.held[at] = rest.held[at].saturating_add(*held);
            }
        }
        let mut rests: Vec<Rest> = rests.into_iter().map(|(rest, _)| rest).collect();
        rests.sort_by_key(|rest| {
            (std::cmp::Reverse((rest.last(), rest.bytes.iter().max().copied())), rest.what)
        });
        rests
    }
}

/// The sleeps of one device. Absent where there was none.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SleepsFacts {
    pub count: u64,
    /// If there are very many, only some of them.
    pub sleeps: Vec<SleepFacts>,
    /// The numbers of the sleeps that `stayed` describes.
    pub looked_at: Vec<u64>,
    /// Memory that stayed mapped, largest at the last sleep first. Empty where the holders were not
    /// computed.
    pub stayed: Vec<StayedFacts>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct SleepFacts {
    #[serde(flatten)]
    pub sleep: Sleep,
    pub unmapped_by: Vec<UnmappedFacts>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct UnmappedFacts {
    pub bytes: u64,
    #[serde(flatten)]
    pub stack: NamedStack,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct StayedFacts {
    /// `context`, a cause as in `driver_bytes_by`, `pool_reserve`, `graph_reserve`, `blocks` or
    /// `memory`.
    #[serde(rename = "what")]
    pub part_name: &'static str,
    #[serde(skip)]
    pub part: ResidentPart,
    pub library: Option<String>,
    #[serde(flatten)]
    pub stack: NamedStack,
    /// Bytes with physical memory, at each sleep in `looked_at`.
    pub bytes: Vec<u64>,
    /// Bytes with and without physical memory, at each of these sleeps.
    pub held_bytes: Vec<u64>,
    /// From one sleep to the next, on average.
    pub growth_bytes_per_sleep: i64,
}

impl SleepsFacts {
    /// `classifier`: `None` where the names of stacks were not looked up.
    pub fn of(
        sleeps: &Sleeps,
        rests: Option<&ResidentAtSleeps>,
        classifier: Option<&StackClassifier>,
    ) -> SleepsFacts {
        let named = |stack| classifier.map(|names| names.named(stack)).unwrap_or_default();
        let unmapped =
            |(stack, bytes): &(StackId, u64)| UnmappedFacts { bytes: *bytes, stack: named(*stack) };
        let sleep = |sleep: &Sleep| SleepFacts {
            sleep: sleep.clone(),
            unmapped_by: sleep.went.iter().map(unmapped).collect(),
        };
        let cycles = rests.map_or(0, |rests| rests.cycles(sleeps));
        let stayed = |rest: Rest| {
            let stack = rest.stack();
            let library = stack.zip(classifier).and_then(|(stack, classifier)| {
                let key_frames = match rest.what {
                    ResidentPart::Blocks(_) => classifier.key_frames_of_block(stack),
                    _ => classifier.key_frames(stack),
                };
                classifier.library_name(&key_frames).map(str::to_string)
            });
            StayedFacts {
                part_name: rest.what.name(),
                part: rest.what,
                library,
                stack: stack.map(named).unwrap_or_default(),
                growth_bytes_per_sleep: rest.growth(cycles),
                bytes: rest.bytes,
                held_bytes: rest.held,
            }
        };
        let by_line = rests.zip(classifier).map(|(rests, names)| rests.by_line(names));
        let places = rests.map(|rests| &rests.sleeps[..]).unwrap_or_default();
        SleepsFacts {
            count: sleeps.count,
            sleeps: sleeps.all.iter().map(sleep).collect(),
            looked_at: places.iter().map(|at| sleeps.all[*at].number).collect(),
            stayed: by_line.unwrap_or_default().into_iter().map(stayed).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(held: &[u64]) -> Rest {
        Rest { what: ResidentPart::Memory(StackId(1)), bytes: held.to_vec(), held: held.to_vec() }
    }

    #[test]
    fn first_and_last_are_looked_at() {
        assert_eq!(evenly(3), [0, 1, 2]);
        let many = evenly(1000);
        assert_eq!((many.len(), many[0], many[15]), (LOOKED_AT, 0, 999));
        assert_eq!(rest(&[10, 20, 40]).growth(2), 15);
        assert_eq!(rest(&[40, 10]).growth(1), -30);
    }
}
