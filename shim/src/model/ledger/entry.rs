//! One live allocation, as the ledger keeps it: 64 bytes, one cache line.

use super::totals::Maker;
use crate::runtime::hash_table::{Slot, spread};
use vramtrace_format::physical::{self, Physical};
use vramtrace_format::{Alloc, ContextId, DeviceId, Kind, SiteId, Space, StackId, sampling};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Address, or the number that stands for it in `space`.
    pub key: u64,
    pub space: Space,
    pub kind: Kind,
    pub device: DeviceId,
    pub context: ContextId,
    /// Its number among the pools ([`crate::model::pools`]); 0: none.
    pub pool: u32,
    /// Requested bytes (real pitch x height; memory requirements for arrays).
    pub size: u64,
    /// Raw stream handle of the allocating call (2 = per-thread default), 0 where there is none.
    pub stream: u64,
    pub site: SiteId,
    pub stack: StackId,
    pub time_ns: u64,
    /// Opens of an import that share this address; 1 for everything else.
    pub refs: u32,
    /// The base-2 logarithm of the rate of samples of which this is one; 0: it stands for itself only.
    pub sampled: u8,
}

impl Entry {
    /// An entry with everything unknown but the essentials.
    pub fn new(kind: Kind, key: u64, size: u64, device: DeviceId) -> Entry {
        Entry {
            key,
            space: kind.space(),
            kind,
            device,
            context: ContextId(0),
            pool: 0,
            size,
            stream: 0,
            site: SiteId(0),
            stack: StackId(0),
            time_ns: 0,
            refs: 1,
            sampled: 0,
        }
    }

    #[inline]
    pub fn physical(&self) -> Physical {
        physical::physical(self.kind, self.size)
    }

    /// The rate of samples in bytes; 0: it is none.
    pub fn rate(&self) -> u64 {
        rate(self.sampled)
    }

    /// What it adds to sums by stack: bytes and number, those of the allocations that it stands for.
    #[inline]
    pub fn weighed(&self) -> [u64; 2] {
        weighed(self.size, self.sampled)
    }

    pub(super) fn maker(&self) -> Maker {
        Maker { site: self.site, stack: self.stack, device: self.device, kind: self.kind }
    }

    pub fn alloc(&self) -> Alloc {
        Alloc {
            key: self.key,
            space: self.space,
            size: self.size,
            site: self.site,
            stack: self.stack,
            requested: None,
        }
    }
}

/// An entry in its shard's table, with the fields that a running checkpoint needs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct EntrySlot {
    key: u64,
    size: u64,
    stream: u64,
    time_ns: u64,
    site: u32,
    stack: u32,
    /// The latest checkpoint when the entry was created. The entry belongs to every later one.
    pub epoch: u32,
    /// Last checkpoint that has this entry.
    pub written: u32,
    refs: u32,
    pool: u32,
    context: u16,
    /// 0 = empty slot, else a `Kind`.
    kind: u8,
    space: u8,
    device: u8,
    sampled: u8,
}

// SAFETY: plain numbers; kind 0 is the empty slot.
unsafe impl Slot for EntrySlot {
    type Key = (Space, u64);

    #[inline]
    fn is_empty(&self) -> bool {
        self.kind == 0
    }

    #[inline]
    fn key(&self) -> (Space, u64) {
        (space(self.space), self.key)
    }

    #[inline]
    fn hash((space, key): (Space, u64)) -> u64 {
        hash(space, key)
    }
}

/// Its highest bits choose the shard, lower ones the place there.
#[inline]
pub(super) fn hash(space: Space, key: u64) -> u64 {
    spread(key ^ ((space as u64) << 56))
}

/// As `Kind::from_u8`, without a search.
#[inline]
pub(super) fn kind(value: u8) -> Kind {
    match value {
        2 => Kind::Pitched,
        3 => Kind::Managed,
        4 => Kind::Pool,
        5 => Kind::Vmm,
        6 => Kind::Array,
        7 => Kind::Mipmapped,
        8 => Kind::Graph,
        9 => Kind::Imported,
        10 => Kind::HostPinned,
        11 => Kind::HostRegistered,
        12 => Kind::Block,
        _ => Kind::Device,
    }
}

#[inline]
fn space(value: u8) -> Space {
    match value {
        1 => Space::Vmm,
        2 => Space::Array,
        3 => Space::Host,
        4 => Space::Block,
        _ => Space::Device,
    }
}

impl EntrySlot {
    #[inline]
    pub fn new(entry: &Entry, epoch: u32, written: u32) -> Self {
        EntrySlot {
            key: entry.key,
            size: entry.size,
            stream: entry.stream,
            time_ns: entry.time_ns,
            site: entry.site.0,
            stack: entry.stack.0,
            epoch,
            written,
            refs: entry.refs,
            context: entry.context.0,
            pool: entry.pool,
            kind: entry.kind as u8,
            space: entry.space as u8,
            device: entry.device.0,
            sampled: entry.sampled,
        }
    }

    /// Whether this is the block at this address.
    #[inline]
    pub fn is_block(&self, key: u64) -> bool {
        self.key == key && self.space == Space::Block as u8
    }

    #[inline]
    pub fn made_by(&self) -> Maker {
        Maker {
            site: SiteId(self.site),
            stack: StackId(self.stack),
            device: DeviceId(self.device),
            kind: kind(self.kind),
        }
    }

    #[inline]
    pub fn weighed(&self) -> [u64; 2] {
        weighed(self.size, self.sampled)
    }

    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn context(&self) -> ContextId {
        ContextId(self.context)
    }

    pub fn set_refs(&mut self, refs: u32) {
        self.refs = refs;
    }

    #[inline]
    pub fn entry(&self) -> Entry {
        Entry {
            key: self.key,
            space: space(self.space),
            kind: kind(self.kind),
            device: DeviceId(self.device),
            context: ContextId(self.context),
            pool: self.pool,
            size: self.size,
            stream: self.stream,
            site: SiteId(self.site),
            stack: StackId(self.stack),
            time_ns: self.time_ns,
            refs: self.refs,
            sampled: self.sampled,
        }
    }
}

fn rate(sampled: u8) -> u64 {
    if sampled == 0 { 0 } else { 1 << sampled }
}

#[inline]
fn weighed(size: u64, sampled: u8) -> [u64; 2] {
    if sampled == 0 {
        return [size, 1];
    }
    let weight = sampling::weight(size, rate(sampled));
    [sampling::weigh(size, weight), sampling::weigh(1, weight)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back() {
        for each in Kind::ALL {
            assert_eq!(kind(each as u8), each);
        }
    }

    #[test]
    fn a_slot_is_one_cache_line_and_keeps_everything() {
        assert_eq!(size_of::<EntrySlot>(), 64);
        let entry = Entry {
            context: ContextId(7),
            pool: 9,
            stream: 0x77,
            site: SiteId(3),
            stack: StackId(4),
            time_ns: 5,
            refs: 6,
            sampled: 20,
            ..Entry::new(Kind::Array, 0xabc, 99, DeviceId::UNKNOWN)
        };
        assert_eq!(EntrySlot::new(&entry, 1, 0).entry(), entry);
    }
}
