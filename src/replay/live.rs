//! The live set: what is allocated at one moment.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
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

/// All live allocations. The maps have numbers of slots alone: so they are small, and an allocation is mostly stored where
/// one was freed just before.
#[derive(Clone, Debug, Default)]
pub struct LiveSet {
    /// The slot of each allocation. One map for each space: keys of different spaces may have the same number.
    spaces: [FxHashMap<u64, u32>; Space::ALL.len()],
    /// By slot. Those of [`LiveSet::free`] are not live.
    slots: Vec<Live>,
    /// The slots that may be taken, the next one last.
    free: Vec<u32>,
}

impl LiveSet {
    pub fn get(&self, key: Key) -> Option<&Live> {
        let slot = *self.spaces[key.space as usize].get(&key.number)?;
        self.slots.get(slot as usize)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Live> {
        let slot = *self.spaces[key.space as usize].get(&key.number)?;
        self.slots.get_mut(slot as usize)
    }

    /// Adds an allocation and fills its slot. Returns the earlier one with this key, whose place it takes.
    pub(super) fn insert(&mut self, key: Key, live: &mut Live) -> Option<Live> {
        match self.spaces[key.space as usize].entry(key.number) {
            Entry::Occupied(entry) => {
                live.slot = *entry.get();
                Some(std::mem::replace(&mut self.slots[live.slot as usize], *live))
            }
            Entry::Vacant(entry) => {
                // More than u32 can number would take more memory than machines have.
                live.slot = self.free.pop().unwrap_or(self.slots.len() as u32);
                entry.insert(live.slot);
                match self.slots.get_mut(live.slot as usize) {
                    Some(place) => *place = *live,
                    None => self.slots.push(*live),
                }
                None
            }
        }
    }

    /// Removes one reference, or all. The second value: whether the allocation is no longer live.
    pub(super) fn release(&mut self, key: Key, all: bool) -> Option<(Live, bool)> {
        let Entry::Occupied(entry) = self.spaces[key.space as usize].entry(key.number) else {
            return None;
        };
        let live = &mut self.slots[*entry.get() as usize];
        if live.references > 1 && !all {
            live.references -= 1;
            return Some((Live { references: 1, ..*live }, false));
        }
        self.free.push(entry.remove());
        Some((*live, true))
    }

    pub(super) fn clear(&mut self) {
        self.spaces.iter_mut().for_each(FxHashMap::clear);
        self.slots.clear();
        self.free.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of allocations, blocks among them.
    pub(super) fn entries(&self) -> usize {
        self.spaces.iter().map(FxHashMap::len).sum()
    }

    /// Number of allocations, without blocks.
    pub fn len(&self) -> usize {
        memory().map(|space| self.spaces[space as usize].len()).sum()
    }

    /// A framework's live blocks by address, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &Live)> {
        let blocks = self.spaces[Space::Block as usize].iter();
        blocks.map(|(address, slot)| (*address, &self.slots[*slot as usize]))
    }

    /// Memory of the device and of the host, in no order, without blocks.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Live)> {
        memory().flat_map(move |space| {
            self.spaces[space as usize].iter().map(move |(number, slot)| {
                (Key { space, number: *number }, &self.slots[*slot as usize])
            })
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
