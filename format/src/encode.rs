//! Events to records. Nothing here allocates: the shim runs it in hooks.

use crate::code;
use crate::word::{self, Check, Head, MAX_WORDS, SMALL_BITS, SMALL_MASK, whole_ticks};
use crate::{
    Alloc, BlockChange, CacheBytes, Counters, DeviceId, Event, PostMortem, SiteId, Space, StackId,
    Took,
};

/// Longest event record, in words.
pub const EVENT_WORDS: usize = 16;

/// A record before it has time, thread and check.
#[derive(Clone, Copy, Debug)]
pub struct Record<const N: usize> {
    kind: u8,
    len: usize,
    words: [u64; N],
}

impl<const N: usize> Record<N> {
    #[inline(always)]
    pub(crate) fn new(kind: u8, small: u64) -> Record<N> {
        debug_assert!(small <= SMALL_MASK);
        let mut words = [0; N];
        words[1] = small & SMALL_MASK;
        Record { kind, len: 2, words }
    }

    #[inline(always)]
    pub(crate) fn with(mut self, word: u64) -> Record<N> {
        self.words[self.len] = word;
        self.len += 1;
        self
    }

    fn widen(self) -> Record<EVENT_WORDS> {
        let mut words = [0; EVENT_WORDS];
        words[..self.len].copy_from_slice(&self.words[..self.len]);
        Record { kind: self.kind, len: self.len, words }
    }

    /// Stamps time and thread: the words, all but the check in place. `file`: [`Check::of_file`].
    #[inline(always)]
    pub fn seal(&mut self, file: Check, thread: u16, time_ns: u64) -> Sealed<'_> {
        let ticks = word::ticks(time_ns);
        self.words[0] =
            Head { time_lo: ticks as u16, kind: self.kind, len: self.len as u8, thread, check: 0 }
                .pack();
        self.words[1] |= ticks >> 16 << SMALL_BITS;
        let words = &self.words[..self.len];
        Sealed { words, sum: word::check(file, words) }
    }
}

/// A finished record that has no place in the file yet.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    pub(crate) words: &'a [u64],
    sum: Check,
}

impl Sealed<'_> {
    /// Word 0 with the check, for the record at this byte of the file.
    #[inline(always)]
    pub fn head_at(&self, offset: u64) -> u64 {
        self.words[0] | u64::from(self.sum.sum16(offset))
    }
}

/// A padding record of `len` words at this byte of the file: word 0, the others stay as they are.
pub fn padding(file: Check, offset: u64, len: usize) -> u64 {
    debug_assert!((1..=MAX_WORDS).contains(&len));
    let head = Head { time_lo: 0, kind: code::PAD, len: len as u8, thread: 0, check: 0 }.pack();
    head | u64::from(word::check(file, &[head]).sum16(offset))
}

/// Addresses that the short forms can hold: 512-byte aligned and below 2^49; and which forms.
#[inline(always)]
fn short_address(space: Space, key: u64) -> Option<(u64, [u8; 2])> {
    let codes = match space {
        Space::Device => [code::ALLOC, code::FREE],
        Space::Block => [code::BLOCK_ALLOC, code::BLOCK_FREE],
        _ => return None,
    };
    (key & 511 == 0 && key >> 49 == 0).then_some((key >> 9, codes))
}

/// The 32-byte form of an allocation, where it fits.
#[inline(always)]
pub fn short_alloc(alloc: &Alloc) -> Option<Record<4>> {
    let (address, [code, _]) = short_address(alloc.space, alloc.key)?;
    Some(Record::new(code, address).with(alloc.size).with(pair(alloc.site, alloc.stack)))
}

/// The 16-byte form of a free, where it fits.
#[inline(always)]
pub fn short_free(key: u64, space: Space, site: SiteId) -> Option<Record<2>> {
    let (address, [_, code]) = short_address(space, key)?;
    (site.0 == 0).then(|| Record::new(code, address))
}

#[inline(always)]
fn pair(site: SiteId, stack: StackId) -> u64 {
    u64::from(site.0) << 32 | u64::from(stack.0)
}

/// Any event. `time_ns` is the event's own time (an [`Event::Anchor`] carries it in full).
pub fn event(event: &Event, time_ns: u64) -> Record<EVENT_WORDS> {
    let record = Record::new;
    match *event {
        Event::Alloc(ref alloc) => match short_alloc(alloc) {
            Some(short) => short.widen(),
            None => record(code::ALLOC_WIDE, alloc.space as u64)
                .with(alloc.key)
                .with(alloc.size)
                .with(pair(alloc.site, alloc.stack)),
        },
        Event::Free { key, space, site } => match short_free(key, space, site) {
            Some(short) => short.widen(),
            None => record(code::FREE_WIDE, space as u64).with(key).with(u64::from(site.0)),
        },
        Event::FreeFailed { key, space, site, result } => record(code::FREE_FAILED, space as u64)
            .with(key)
            .with(u64::from(site.0) << 32 | u64::from(result as u32)),
        Event::Refused(r) => {
            let refused = record(code::REFUSED, u64::from(r.result as u32) | (r.by as u64) << 32)
                .with(pair(r.site, r.stack))
                .with(r.size)
                .with(r.counted)
                .with(r.limit)
                .with(r.driver_free);
            cache(refused, r.cache)
        }
        Event::Map { address, size, offset, object } => {
            record(code::MAP, 0).with(address).with(size).with(offset).with(object)
        }
        Event::Unmap { address, size } => record(code::UNMAP, 0).with(address).with(size),
        Event::PoolState { pool, reserved, used } => {
            record(code::POOL_STATE, u64::from(pool.0)).with(reserved).with(used)
        }
        Event::GraphState { device, reserved, used } => {
            record(code::GRAPH_STATE, u64::from(device.0)).with(reserved).with(used)
        }
        Event::ContextCreated { context, device, stack } => {
            record(code::CONTEXT_CREATED, u64::from(context.0) | u64::from(device.0) << 16)
                .with(u64::from(stack.0))
        }
        Event::ContextDestroyed { context } => {
            record(code::CONTEXT_DESTROYED, u64::from(context.0))
        }
        Event::Sample(s) => {
            let has = u64::from(s.driver_free.is_some())
                | u64::from(s.driver_total.is_some()) << 1
                | u64::from(s.process_bytes.is_some()) << 2;
            record(code::SAMPLE, u64::from(s.device.0) | has << 8)
                .with(s.driver_free.unwrap_or(0))
                .with(s.driver_total.unwrap_or(0))
                .with(s.process_bytes.unwrap_or(0))
                .with(s.context_bytes)
        }
        Event::Cap { device, bytes } => {
            record(code::CAP, u64::from(device.0) | u64::from(bytes.is_some()) << 8)
                .with(bytes.unwrap_or(0))
        }
        Event::CapPolicy { device, only_warns, soft } => {
            let has = u64::from(only_warns) << 8 | u64::from(soft.is_some()) << 9;
            record(code::CAP_POLICY, u64::from(device.0) | has).with(soft.unwrap_or(0))
        }
        Event::GroupCap { device, bytes } => {
            record(code::GROUP_CAP, u64::from(device.0) | u64::from(bytes.is_some()) << 8)
                .with(bytes.unwrap_or(0))
        }
        Event::SoftLimit { device, over, counted, limit } => {
            record(code::SOFT_LIMIT, u64::from(device.0) | u64::from(over) << 8)
                .with(counted)
                .with(limit)
        }
        Event::Limit { context, limit, value, grown } => {
            record(code::LIMIT, u64::from(context.0)).with(u64::from(limit)).with(value).with(grown)
        }
        Event::Took(ref t) => took(record(code::TOOK, u64::from(t.device.0)), t),
        Event::Mark { name, mark } => record(code::MARK, u64::from(name) | (mark as u64) << 32),
        Event::CacheState { device, allocated, reserved } => {
            record(code::CACHE_STATE, u64::from(device.0)).with(allocated).with(reserved)
        }
        Event::CacheOom { device, size, allocated, reserved, stack } => {
            record(code::CACHE_OOM, u64::from(device.0))
                .with(u64::from(stack.0))
                .with(size)
                .with(allocated)
                .with(reserved)
        }
        Event::PostMortem(ref p) => post_mortem(p),
        Event::Neighbour { device, pid, bytes } => {
            let small = u64::from(device.0) | u64::from(bytes.is_some()) << 8;
            record(code::NEIGHBOUR, small).with(u64::from(pid)).with(bytes.unwrap_or(0))
        }
        Event::Shared { address, site, stack } => {
            record(code::SHARED, 0).with(address).with(pair(site, stack))
        }
        Event::BlockChange { address, change } => {
            let (what, bytes) = match change {
                BlockChange::Requested(bytes) => (1, bytes),
                BlockChange::Pending => (2, 0),
                BlockChange::Reusable => (3, 0),
            };
            record(code::BLOCK_CHANGE, what).with(address).with(bytes)
        }
        Event::Counters(ref c) => counters(record(code::COUNTERS, u64::from(c.device)), c),
        Event::CheckpointBegin { id } => record(code::CHECKPOINT_BEGIN, u64::from(id)),
        Event::CheckpointAlloc { id, time_ns, alloc } => {
            record(code::CHECKPOINT_ALLOC, u64::from(id) | (alloc.space as u64) << 32)
                .with(whole_ticks(time_ns))
                .with(alloc.key)
                .with(alloc.size)
                .with(pair(alloc.site, alloc.stack))
        }
        Event::CheckpointMap { id, address, size, offset, object } => {
            record(code::CHECKPOINT_MAP, u64::from(id))
                .with(address)
                .with(size)
                .with(offset)
                .with(object)
        }
        Event::CheckpointPool { id, pool, reserved, used } => {
            record(code::CHECKPOINT_POOL, u64::from(id))
                .with(u64::from(pool.0))
                .with(reserved)
                .with(used)
        }
        Event::CheckpointGraph { id, device, reserved, used } => {
            record(code::CHECKPOINT_GRAPH, on_device(id, device)).with(reserved).with(used)
        }
        Event::CheckpointContext { id, context, device, time_ns, stack } => {
            record(code::CHECKPOINT_CONTEXT, on_device(id, device))
                .with(whole_ticks(time_ns))
                .with(u64::from(context.0) << 32 | u64::from(stack.0))
        }
        Event::CheckpointTotals { id, site, stack, allocations, frees, bytes } => {
            record(code::CHECKPOINT_TOTALS, u64::from(id))
                .with(pair(site, stack))
                .with(allocations)
                .with(frees)
                .with(bytes)
        }
        Event::CheckpointCounters { id, counters: ref c } => {
            counters(record(code::CHECKPOINT_COUNTERS, on_device(id, DeviceId(c.device))), c)
        }
        Event::CheckpointTook { id, took: ref t } => {
            took(record(code::CHECKPOINT_TOOK, on_device(id, t.device)), t)
        }
        Event::CheckpointEnd { id } => record(code::CHECKPOINT_END, u64::from(id)),
        Event::Anchor => record(code::ANCHOR, 0).with(time_ns),
        Event::Stopped { reason, errno } => {
            record(code::STOPPED, u64::from(errno as u32) | (reason as u64) << 32)
        }
        Event::Ended => record(code::ENDED, 0),
        Event::Drift { what, key } => record(code::DRIFT, what as u64).with(key),
        Event::PassedThrough { api } => record(code::PASSED_THROUGH, u64::from(api)),
    }
}

fn took(record: Record<EVENT_WORDS>, t: &Took) -> Record<EVENT_WORDS> {
    record
        .with(pair(t.site, t.stack))
        .with(t.delta as u64)
        .with(u64::from(t.name) | (t.cause as u64) << 32)
}

fn on_device(id: u32, device: DeviceId) -> u64 {
    u64::from(id) | u64::from(device.0) << 32
}

/// The framework's totals, where there are some.
fn cache(record: Record<EVENT_WORDS>, cache: Option<CacheBytes>) -> Record<EVENT_WORDS> {
    match cache {
        Some(CacheBytes { allocated, reserved }) => record.with(allocated).with(reserved),
        None => record,
    }
}

fn post_mortem(p: &PostMortem) -> Record<EVENT_WORDS> {
    let by = p.by.map_or(0, |by| by as u64 + 1);
    let has = u64::from(p.driver_free.is_some()) << 24 | u64::from(p.largest_hole.is_some()) << 25;
    let small = u64::from(p.device.0) | by << 8 | (p.told as u64) << 16 | has;
    let record = Record::new(code::POST_MORTEM, small)
        .with(u64::from(p.stack.0))
        .with(p.size)
        .with(p.counted)
        .with(p.limit)
        .with(p.driver_free.unwrap_or(0))
        .with(p.largest_hole.unwrap_or(0))
        .with(p.absorbed);
    cache(record, p.cache)
}

fn counters(record: Record<EVENT_WORDS>, c: &Counters) -> Record<EVENT_WORDS> {
    record
        .with(c.live)
        .with(c.peak)
        .with(c.peak_time_ns)
        .with(c.live_requested)
        .with(c.live_allocations)
        .with(c.allocations)
        .with(c.frees)
        .with(c.refused_by_cap)
        .with(c.refused_by_driver)
        .with(c.counted)
        .with(c.warned)
}
