//! The live set: what is allocated at one moment.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use rustc_hash::FxBuildHasher;
use vramtrace_format::{ContextId, DeviceId, Kind, PoolId, SiteId, Space, StackId, ThreadId};
use vramtrace_format::{physical, sampling};

/// The key of a live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub space: Space,
    /// Address, or the object's number in its space.
    pub number: u64,
}

impl Key {
    /// The key of a framework's block at this address.
    pub fn block(address: u64) -> Key {
        Key { space: Space::Block, number: address }
    }

    /// The key of this physical object.
    pub fn object(number: u64) -> Key {
        Key { space: Space::Vmm, number }
    }
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Live {
    /// Requested bytes.
    pub size: u64,
    /// When it was allocated, ns since the start of the trace.
    pub time_ns: u64,
    pub site: SiteId,
    pub stack: StackId,
    /// The thread that allocated it; 0: not known, listed by a checkpoint.
    pub thread: ThreadId,
    pub context: ContextId,
    pub pool: PoolId,
    pub kind: Kind,
    pub device: DeviceId,
    /// Number of references: more than 1 only for imports that were opened several times.
    pub references: u32,
    /// Its number in the live set: no other live allocation has it. After the end of this one another may get it.
    pub slot: u32,
    /// Number of allocations that it represents: 1, or more where the recorder took samples.
    pub weight: f64,
}

impl Live {
    /// Memory of the device that this process allocated: neither host memory nor an import.
    pub fn is_device_memory(&self) -> bool {
        !self.kind.is_host() && self.kind != Kind::Imported
    }

    /// Physical bytes that count for this allocation in tables of holders. Small allocations share a page:
    /// each counts with its own part ([`physical::share`]).
    pub fn share(&self) -> u64 {
        self.weigh(physical::share(self.kind, self.size))
    }

    /// A figure of this allocation, times the number of allocations that it represents.
    pub fn weigh(&self, figure: u64) -> u64 {
        sampling::weigh(figure, self.weight)
    }

    /// What it adds to the variance of a sum of a figure; 0 for an allocation that stands for itself only.
    pub fn variance(&self, figure: u64) -> f64 {
        sampling::variance(figure, self.weight)
    }

    pub fn is_sample(&self) -> bool {
        self.weight != 1.0
    }

    /// Whether both are the same allocation, listed twice (by its event and in a checkpoint). Times in
    /// the file have steps of 64 ns.
    pub fn same_birth(&self, time_ns: u64) -> bool {
        self.time_ns >> 6 == time_ns >> 6
    }
}

/// All spaces but that of blocks, which are parts of other entries.
fn memory() -> impl Iterator<Item = Space> {
    Space::ALL.into_iter().filter(|space| *space != Space::Block)
}

/// All live allocations. The tables have numbers of slots alone, and find keys in the slots: so they are small, and an
/// allocation is mostly stored where one was freed just before.
#[derive(Clone, Debug, Default)]
pub struct LiveSet {
    /// The slot of each allocation. One table for each space: keys of different spaces may have the same number.
    spaces: [HashTable<u32>; Space::ALL.len()],
    /// By slot: number and allocation. Those of [`LiveSet::free`] are not live.
    slots: Vec<(u64, Live)>,
    /// The slots that may be taken, the next one last.
    free: Vec<u32>,
}

#[inline]
fn hash(number: u64) -> u64 {
    FxBuildHasher.hash_one(number)
}

impl LiveSet {
    #[inline]
    fn slot(&self, key: Key) -> Option<usize> {
        let is_it = |slot: &u32| self.slots[*slot as usize].0 == key.number;
        self.spaces[key.space as usize].find(hash(key.number), is_it).map(|slot| *slot as usize)
    }

    pub fn get(&self, key: Key) -> Option<&Live> {
        Some(&self.slots[self.slot(key)?].1)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Live> {
        let slot = self.slot(key)?;
        Some(&mut self.slots[slot].1)
    }

    /// Adds an allocation and fills its slot. Returns the earlier one with this key, whose place it takes.
    pub(super) fn insert(&mut self, key: Key, live: &mut Live) -> Option<Live> {
        let LiveSet { spaces, slots, free } = self;
        let number = |slot: &u32| slots[*slot as usize].0;
        let is_it = |slot: &u32| number(slot) == key.number;
        let rehash = |slot: &u32| hash(number(slot));
        match spaces[key.space as usize].entry(hash(key.number), is_it, rehash) {
            Entry::Occupied(entry) => {
                live.slot = *entry.get();
                Some(std::mem::replace(&mut slots[live.slot as usize].1, *live))
            }
            Entry::Vacant(entry) => {
                // More than u32 can number would take more memory than machines have.
                live.slot = free.pop().unwrap_or(slots.len() as u32);
                entry.insert(live.slot);
                match slots.get_mut(live.slot as usize) {
                    Some(place) => *place = (key.number, *live),
                    None => slots.push((key.number, *live)),
                }
                None
            }
        }
    }

    /// Removes one reference, or all. The second value: whether the allocation is no longer live.
    pub(super) fn release(&mut self, key: Key, all: bool) -> Option<(&Live, bool)> {
        let LiveSet { spaces, slots, free } = self;
        let is_it = |slot: &u32| slots[*slot as usize].0 == key.number;
        let entry = spaces[key.space as usize].find_entry(hash(key.number), is_it).ok()?;
        let live = &mut slots[*entry.get() as usize].1;
        if live.references > 1 && !all {
            live.references -= 1;
            return Some((live, false));
        }
        free.push(entry.remove().0);
        Some((live, true))
    }

    pub(super) fn clear(&mut self) {
        self.spaces.iter_mut().for_each(HashTable::clear);
        self.slots.clear();
        self.free.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of allocations, blocks among them.
    pub(super) fn entries(&self) -> usize {
        self.spaces.iter().map(HashTable::len).sum()
    }

    /// Number of allocations, without blocks.
    pub fn len(&self) -> usize {
        memory().map(|space| self.spaces[space as usize].len()).sum()
    }

    /// The allocations of a space by number, in no order.
    fn of(&self, space: Space) -> impl Iterator<Item = (u64, &Live)> {
        let slot = |slot: &u32| &self.slots[*slot as usize];
        self.spaces[space as usize].iter().map(slot).map(|(number, live)| (*number, live))
    }

    /// A framework's live blocks by address, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &Live)> {
        self.of(Space::Block)
    }

    /// Memory of the device and of the host, in no order, without blocks.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Live)> {
        memory().flat_map(move |space| {
            self.of(space).map(move |(number, live)| (Key { space, number }, live))
        })
    }

    /// Allocations that end with a context: all that belong to it except VMM objects, pool blocks and
    /// graph memory. A framework's blocks end with the memory below them.
    pub(super) fn owned_by(&self, context: ContextId) -> Vec<Key> {
        if context == ContextId(0) {
            return Vec::new();
        }
        self.iter()
            .filter(|(key, live)| {
                live.context == context
                    && key.space != Space::Vmm
                    && !matches!(live.kind, Kind::Pool | Kind::Graph)
            })
            .map(|(key, _)| key)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use vramtrace_format::sampling::weight;

    #[test]
    fn samples_stand_for_as_many_as_their_chance_says() {
        let rate = 512 << 10;
        // A size equal to the rate is recorded with 1 - 1/e.
        assert!((weight(rate, rate) - 1.0 / (1.0 - (-1.0f64).exp())).abs() < 1e-12);
        // Small ones count for the rate in bytes, large ones for themselves.
        let bytes = |size: u64| weight(size, rate) * size as f64;
        assert!((bytes(16) / rate as f64 - 1.0).abs() < 1e-4);
        assert!((bytes(64 << 20) / (64u64 << 20) as f64 - 1.0).abs() < 1e-12);
    }
}
