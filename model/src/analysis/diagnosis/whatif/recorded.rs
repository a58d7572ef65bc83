//! Reads the requests of a run from its trace, for each device.

use std::collections::BTreeMap;

use vramtrace_format::torch_conf::CONF_VARIABLES;
use vramtrace_format::{
    BLOCK_REQUESTS, BLOCK_STREAMS, BlockChange, DeviceId, Event, Kind, Refused, Space, StackId,
    Stamped, ThreadId,
};

use super::obstacles::{self, Obstacles};
use super::stream_pools::{SegmentStreams, StreamPool};
use crate::allocator::{Conf, Log, LogSegment, TorchVersion};
use crate::facts::ProcessId;
use crate::replay::{
    AllocCause, Asleep, Backing, CacheOomAt, DeviceState, FreeCause, Key, Live, Mapping,
    OUT_OF_MEMORY, Observer, SegmentAt, State, Until, held_by_others,
};
use crate::symbols::{Symbols, torch_version};
use crate::trace::{Definitions, IMPORT, SiteInfo, Trace};

/// The requests to one device's cache, with the facts that a prediction needs. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub process: ProcessId,
    pub device: DeviceId,
    pub log: Log,
    /// Where the allocations of the log come from, in its order. Empty, unless they were asked for. The request that
    /// ended the run has none.
    pub sources: Vec<RequestSource>,
    pub in_force: InForce,
    /// The peaks of the run, not of a replay.
    pub peak_reserved: u64,
    pub peak_allocated: u64,
    /// Begin of the history, with existing segments, ns since the start. `None`: no events are missing.
    pub from_ns: Option<u64>,
    /// The last request that the cache could not serve, if nothing was allocated after it: it ends the log.
    pub out_of_memory: Option<CacheOomAt>,
    /// Number of those after which the run went on: they are not in the log.
    pub survived: u64,
    pub obstacles: Obstacles,
    /// The trace has the requested sizes, not only the sizes of the blocks.
    pub knows_requests: bool,
    /// Blocks for which it does not have it all the same. The log has their size.
    pub unknown_requests: u64,
    /// The trace has streams and private pools.
    pub knows_streams: bool,
    /// The number of streams with blocks.
    pub streams: usize,
    /// The trace has the time at which other streams have finished with a freed block.
    pub knows_uses: bool,
    /// The cap in force at the end.
    pub cap_bytes: Option<u64>,
    /// The memory of the card.
    pub card_bytes: Option<u64>,
    /// What others held of it at the end, by the figures of the driver and of NVML.
    pub others_bytes: Option<u64>,
}

/// Where an allocation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSource {
    pub stack: StackId,
    pub thread: ThreadId,
    /// Of its event in the trace.
    pub offset: u64,
    /// The cache split the block off a larger one, so it is as large as its request, but for less than 512 B.
    pub split: bool,
}

/// The setting that the run was recorded under.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InForce {
    /// The variable and its text. `None`: the trace has none: it was not set, or not recorded.
    pub set: Option<(&'static str, String)>,
    /// `None`: the text is invalid, or names another backend than PyTorch's cache.
    pub conf: Option<Conf>,
}

impl InForce {
    pub fn of(definitions: &Definitions) -> InForce {
        let set = CONF_VARIABLES.iter().find_map(|name| Some((*name, definitions.setting(name)?)));
        let conf = Conf::parse(set.map_or("", |(_, text)| text)).ok();
        InForce { set: set.map(|(name, text)| (name, text.to_string())), conf }
    }

    /// The text, or `default`.
    pub fn name(&self) -> &str {
        self.variable().map_or("default", |(_, text)| text)
    }

    pub fn is_expandable(&self) -> bool {
        self.conf.as_ref().is_some_and(|conf| conf.expandable_segments)
    }

    /// The variable and its text, if that is not empty.
    pub fn variable(&self) -> Option<(&'static str, &str)> {
        let (name, text) = self.set.as_ref()?;
        (!text.trim().is_empty()).then_some((*name, text.as_str()))
    }
}

impl Recorded {
    /// The requests of each device with blocks. Reads the trace once. Memory is bounded by the live set, plus
    /// about three bytes for each event of a block.
    pub fn of(trace: &Trace, definitions: &Definitions) -> Vec<Recorded> {
        Recorded::read(trace, definitions, Until::End, false)
    }

    /// The requests up to a place in the trace. `wants_sources`: with [`Recorded::sources`].
    pub fn read(
        trace: &Trace,
        definitions: &Definitions,
        until: Until,
        wants_sources: bool,
    ) -> Vec<Recorded> {
        let mut observer = RequestObserver {
            definitions,
            conf: InForce::of(definitions).conf.unwrap_or_default(),
            alone: definitions.setting(IMPORT).is_some(),
            wants_sources,
            begun: false,
            devices: BTreeMap::new(),
            streams: Vec::new(),
        };
        let reading = trace.replay_until(definitions, until, &mut observer, &mut |_, _| {});
        observer.finish(&reading.state, trace)
    }
}

/// The request of the last event of a block. The next event may add to it.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Alloc { address: u64, size: u64, stream: u32, pool: u16, source: RequestSource },
    Free { address: u64 },
}

#[derive(Debug, Default)]
struct Builder {
    log: Log,
    /// `None`: not asked for.
    sources: Option<Vec<RequestSource>>,
    from_ns: Option<u64>,
    asked: Option<Asked>,
    /// File offset of its event, and the bytes outside of the cache at that moment.
    asked_at: u64,
    outside: u64,
    /// Reserved bytes at the last change.
    reserved: u64,
    /// Segments were released since the last event of a block; a request was refused before that.
    released: bool,
    refused: bool,
    /// A request that the cache could not serve, with the requests since. These are added to the log when it
    /// is known that the run went on.
    oom: Option<(CacheOomAt, Vec<Asked>)>,
    survived: u64,
    /// The stacks that exported segments to other processes.
    shared: Vec<StackId>,
    /// A block was in mapped memory.
    mapped: bool,
    knows_requests: bool,
    unknown_requests: u64,
    knows_streams: bool,
    streams: SegmentStreams,
}

impl Builder {
    /// Adds the last request to the log, before the next event of a block.
    fn settle(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.log.outside(self.outside);
            self.put(asked);
        }
    }

    fn put(&mut self, asked: Asked) {
        match (asked, &mut self.oom) {
            (Asked::Free { .. }, Some((_, waiting))) => waiting.push(asked),
            (Asked::Free { address }, None) => {
                self.log.free(address);
            }
            (Asked::Alloc { address, size, stream, pool, source }, _) => {
                self.go_on();
                self.log.alloc(address, size, stream, pool);
                if let Some(sources) = &mut self.sources {
                    sources.push(source);
                }
            }
        }
    }

    /// The run survived that the cache gave up.
    fn go_on(&mut self) {
        if let Some((_, waiting)) = self.oom.take() {
            self.survived += 1;
            waiting.into_iter().for_each(|asked| self.put(asked));
        }
    }

    /// Whether a block that ends here was split off a larger one. Free memory behind it was: the cache joins free neighbours,
    /// so what it takes whole ends at an allocated block or at the end of a segment.
    fn is_split(&self, end: u64) -> bool {
        self.sources.is_some() && !self.log.is_live(end) && self.streams.segment_goes_on(end)
    }

    /// Segments that go back without a refused request before them: the program emptied the
    /// cache. After one, the cache did it itself, and does so in the replay.
    fn note_release(&mut self, collects_garbage: bool) {
        if self.released && !self.refused && !collects_garbage {
            self.log.empty_cache();
        }
        (self.released, self.refused) = (false, false);
    }
}

struct RequestObserver<'d> {
    definitions: &'d Definitions,
    conf: Conf,
    /// The trace was imported and has only the cache.
    alone: bool,
    wants_sources: bool,
    /// The first totals were read.
    begun: bool,
    devices: BTreeMap<DeviceId, Builder>,
    /// Raw handles of streams, by the number that they have in a log.
    streams: Vec<u64>,
}

impl RequestObserver<'_> {
    fn device(&mut self, device: DeviceId) -> &mut Builder {
        let sources = self.wants_sources.then(Vec::new);
        self.devices.entry(device).or_insert_with(|| Builder { sources, ..Builder::default() })
    }

    /// Stream and private pool of a block; zero where the trace does not tell.
    fn stream_pool(&mut self, live: &Live) -> StreamPool {
        let stream = self.definitions.site(live.site).map_or(0, |site| site.stream);
        let known = self.streams.iter().position(|known| *known == stream);
        let number = known.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        (number as u32, live.pool.0)
    }

    /// A new event of a block of this device.
    fn next(&mut self, at: &Stamped, device: DeviceId) -> &mut Builder {
        let collects_garbage = self.conf.garbage_collection_threshold > 0.0;
        let builder = self.device(device);
        builder.settle();
        builder.note_release(collects_garbage);
        builder.asked_at = at.offset;
        builder
    }

    fn unmapped(&mut self, start: u64, end: u64) {
        for builder in self.devices.values_mut() {
            for pool in builder.streams.unmapped(start, end) {
                builder.settle();
                builder.log.pool_ends(pool);
            }
        }
    }

    fn segment(&mut self, segment: &SegmentAt) -> LogSegment {
        let stream_pool = segment.blocks.first().map(|block| self.stream_pool(block.live));
        let (stream, pool) = stream_pool.unwrap_or_default();
        LogSegment {
            address: segment.start,
            size: segment.bytes,
            stream,
            pool,
            expandable: segment.backing == Backing::Mapping,
            blocks: segment.blocks.iter().map(|block| (block.address, block.bytes)).collect(),
        }
    }

    fn finish(mut self, state: &State, trace: &Trace) -> Vec<Recorded> {
        let used: Vec<DeviceId> = state
            .devices
            .iter()
            .filter(|(_, device)| device.cache.peak_allocated.bytes > 0)
            .map(|(id, _)| *id)
            .collect();
        let stacks = self.devices.values().flat_map(|builder| builder.shared.iter().copied());
        let header = trace.header();
        let symbols = Symbols::of(self.definitions, header, stacks);
        let mut all = Vec::new();
        for id in used {
            let mut builder = self.devices.remove(&id).unwrap_or_default();
            builder.settle();
            let last = builder.oom.take().map(|(oom, _)| oom);
            if let Some(oom) = last {
                builder.log.refused(oom.size);
            }
            let by = |stack: &StackId| obstacles::shared_by(&symbols, header, *stack);
            let shared: Vec<Option<String>> = builder.shared.iter().map(by).collect();
            let device = &state.devices[&id];
            let in_force = InForce::of(self.definitions);
            let torch = torch_version(self.definitions, header);
            let mut obstacles = Obstacles {
                torch: torch.as_deref().and_then(TorchVersion::parse),
                bypassed: obstacles::bypassed(self.definitions),
                shared_by_torch: shared.contains(&None),
                shared_by: shared.into_iter().flatten().collect(),
                mapped_by_others: builder.mapped && !in_force.is_expandable(),
            };
            obstacles.shared_by.dedup();
            let has = |setting| self.definitions.setting(setting).is_some();
            let known = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0);
            all.push(Recorded {
                process: ProcessId::of(header),
                device: id,
                log: builder.log,
                sources: builder.sources.unwrap_or_default(),
                in_force,
                peak_reserved: device.cache.peak_reserved.bytes,
                peak_allocated: device.cache.peak_allocated.bytes,
                from_ns: builder.from_ns,
                out_of_memory: last,
                survived: builder.survived,
                obstacles,
                knows_requests: builder.knows_requests || has(BLOCK_REQUESTS),
                unknown_requests: builder.unknown_requests,
                knows_streams: builder.knows_streams || has(BLOCK_STREAMS),
                streams: builder.streams.streams(),
                knows_uses: self.alone,
                cap_bytes: known(device.cap_bytes),
                card_bytes: known(self.definitions.device(id).map(|device| device.total_bytes)),
                others_bytes: device.sample.and_then(|at| held_by_others(&at.sample)),
            });
        }
        all
    }
}

/// Bytes of the device outside of the cache: contexts, kernels, allocations of other libraries.
fn outside(state: &DeviceState) -> u64 {
    let unattributed = state.sample.and_then(|at| at.unattributed()).unwrap_or(0).max(0) as u64;
    let managed = state.kind(Kind::Managed).live_bytes;
    state
        .live_bytes
        .saturating_sub(managed)
        .saturating_sub(state.cache.reserved_resident())
        .saturating_add(state.context_bytes)
        .saturating_add(unattributed)
}

impl Observer for RequestObserver<'_> {
    fn on_block_alloc(&mut self, at: &Stamped, address: u64, live: &Live, how: AllocCause) {
        // Blocks of a checkpoint are read at its end, in `on_resume`.
        if how == AllocCause::Checkpoint {
            return;
        }
        let stream_pool = self.stream_pool(live);
        let builder = self.next(at, live.device);
        let split = builder.is_split(address.saturating_add(live.size));
        let source =
            RequestSource { stack: live.stack, thread: at.thread, offset: at.offset, split };
        let block = (address, live.size);
        let (stream, pool) = builder.streams.of_block(block, stream_pool, &mut builder.log);
        builder.knows_streams |= stream != 0 || pool != 0;
        builder.asked = Some(Asked::Alloc { address, size: live.size, stream, pool, source });
    }

    fn on_block_free(&mut self, at: &Stamped, address: u64, live: &Live, _how: FreeCause) {
        self.next(at, live.device).asked = Some(Asked::Free { address });
    }

    fn on_block_change(&mut self, _at: &Stamped, address: u64, change: BlockChange) {
        for builder in self.devices.values_mut() {
            match (change, &mut builder.asked) {
                (BlockChange::Requested(bytes), Some(Asked::Alloc { address: of, size, .. }))
                    if *of == address =>
                {
                    match bytes {
                        0 => builder.unknown_requests += 1,
                        bytes => *size = bytes,
                    }
                    builder.knows_requests = true;
                }
                // Other streams still use it.
                (BlockChange::Pending, Some(Asked::Free { address: of })) if *of == address => {
                    builder.asked = None;
                }
                (BlockChange::Reusable, _) => {
                    builder.settle();
                    builder.put(Asked::Free { address });
                }
                _ => {}
            }
        }
    }

    fn on_segment(&mut self, _at: &Stamped, key: Key, live: &Live) {
        let builder = self.device(live.device);
        match key.space {
            Space::Device => builder.streams.add(key.number, live.size),
            space => builder.mapped |= space == Space::Vmm,
        }
    }

    fn on_free(&mut self, _at: &Stamped, key: Key, live: &Live, _how: FreeCause) {
        if key.space == Space::Device
            && let Some(builder) = self.devices.get_mut(&live.device)
            && let Some(pool) = builder.streams.remove(key.number)
        {
            builder.settle();
            builder.log.pool_ends(pool);
        }
    }

    fn on_unmap(&mut self, _at: &Stamped, address: u64, mapping: &Mapping) {
        self.unmapped(address, mapping.end());
    }

    fn on_sleep(&mut self, _at: &Stamped, asleep: &Asleep, _by: StackId) {
        self.unmapped(asleep.address, asleep.end());
    }

    fn on_cache_oom(&mut self, at: &Stamped, device: DeviceId, oom: &CacheOomAt) {
        let builder = self.next(at, device);
        builder.go_on();
        builder.oom = Some((*oom, Vec::new()));
    }

    fn on_share(
        &mut self,
        _at: &Stamped,
        _address: u64,
        stack: StackId,
        segment: Option<DeviceId>,
    ) {
        let Some(device) = segment else { return };
        let builder = self.device(device);
        if !builder.shared.contains(&stack) {
            builder.shared.push(stack);
        }
    }

    fn on_refusal(&mut self, _at: &Stamped, refused: &Refused, site: Option<&SiteInfo>) {
        if let Some(site) = site.filter(|_| refused.result == OUT_OF_MEMORY) {
            let builder = self.device(site.device);
            // Segments that were released before the refusal were not released for this request.
            if !builder.released {
                builder.refused = true;
            }
        }
    }

    fn on_device_change(&mut self, at: &Stamped, device: DeviceId, state: &DeviceState) {
        let Some(builder) = self.devices.get_mut(&device) else { return };
        if at.offset == builder.asked_at && !self.alone {
            builder.outside = outside(state);
        }
        builder.released |= state.cache.reserved < builder.reserved;
        builder.reserved = state.cache.reserved;
    }

    fn on_history_gap(&mut self, _at: &Stamped) {
        for builder in self.devices.values_mut() {
            let shared = std::mem::take(&mut builder.shared);
            let mapped = builder.mapped;
            let sources = builder.sources.take().map(|_| Vec::new());
            *builder = Builder { shared, sources, mapped, ..Builder::default() };
        }
    }

    fn on_resume(&mut self, at: &Stamped, state: &State) {
        // The state at the end of a checkpoint includes the requests since its begin.
        self.on_history_gap(at);
        let mut segments: BTreeMap<DeviceId, Vec<LogSegment>> = BTreeMap::new();
        for segment in state.segments() {
            let of = self.segment(&segment);
            segments.entry(segment.device).or_default().push(of);
        }
        for (device, segments) in segments {
            let builder = self.device(device);
            builder.from_ns = Some(at.time_ns);
            builder.reserved = segments.iter().map(|segment| segment.size).sum();
            segments.iter().for_each(|segment| builder.streams.add_existing(segment));
            builder.log.begin(segments);
        }
    }

    fn on_applied(&mut self, at: &Stamped, state: &State) {
        // The first totals of an import end what was there before its history.
        let totals = self.alone && matches!(at.event, Event::CacheState { .. });
        if totals && !std::mem::replace(&mut self.begun, true) && !state.segments().is_empty() {
            self.on_resume(at, state);
        }
    }
}
