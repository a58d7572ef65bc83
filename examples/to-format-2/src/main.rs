//! Converts traces of format 1.x to format 2.0: `to-format-2 FROM TO`, both not compressed.
//!
//! Header and definition windows stay as they are, but for the version. Event windows are written anew in their slots, with
//! the same numbers; what does not fit goes into the next one.

use std::sync::atomic::{AtomicU64, Ordering};

use new::{Event as To, GraphChange, Listed, Purpose, StateHolder};
use old::Event as From;

/// Takes an equal value of the old crate into the new one: both have the same numbers.
macro_rules! same {
    ($kind:ident { $($field:ident),* } of $value:expr) => {
        new::$kind { $($field: $value.$field.into_new()),* }
    };
}

trait IntoNew<T> {
    fn into_new(self) -> T;
}

macro_rules! numbers {
    ($($number:ty),*) => { $( impl IntoNew<$number> for $number {
        fn into_new(self) -> $number { self }
    } )* };
}
numbers!(u8, u16, u32, u64, i32, i64, bool);

macro_rules! ids {
    ($($id:ident),*) => { $( impl IntoNew<new::$id> for old::$id {
        fn into_new(self) -> new::$id { new::$id(self.0) }
    } )* };
}
ids!(ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId);

macro_rules! enums {
    ($($kind:ident),*) => { $( impl IntoNew<new::$kind> for old::$kind {
        fn into_new(self) -> new::$kind { new::$kind::from_u8(self as u8).expect("the same numbers") }
    } )* };
}
enums!(Space, RefusedBy, OomEvidence, DriverCause, SummaryMoment, StopReason, SwitchedBy, Drift, Mark);

impl<A: IntoNew<B>, B> IntoNew<Option<B>> for Option<A> {
    fn into_new(self) -> Option<B> {
        self.map(A::into_new)
    }
}

macro_rules! structs {
    ($($kind:ident { $($field:ident),* })*) => { $( impl IntoNew<new::$kind> for old::$kind {
        fn into_new(self) -> new::$kind { same!($kind { $($field),* } of self) }
    } )* };
}
structs! {
    Alloc { key, space, size, site, stack, requested }
    CacheBytes { allocated, reserved }
    Refused { site, stack, size, result, by, counted, limit, driver_free, cache }
    PostMortem { device, by, evidence, stack, size, counted, limit, driver_free, largest_hole, absorbed, cache }
    Took { device, site, stack, delta, cause, name }
    Sample { device, driver_free, driver_total, process_bytes, context_bytes }
    Counters { device, live, peak, peak_time_ns, live_requested, live_allocations, allocations, frees, refused_by_cap, refused_by_driver, counted, warned }
    HistoryBin { tier, samples, from_ns, until_ns }
    HistoryDevice { device, peak, refused_by_cap, refused_by_driver }
    HistoryLevel { device, of_framework, lowest, highest, allocations, frees, other_stacks, other_lowest, other_highest, other_grew }
    HistoryHolder { run, of_framework, stack, device, lowest, highest }
    HistoryPhase { device, depth, first, second, third, fourth, peak, at_ns, open_ns }
}

fn holder(of: old::SummaryHolder) -> To {
    let old::SummaryHolder { device, moment, of_framework, stack, bytes, count } = of;
    To::StateHolder(StateHolder {
        device: device.into_new(),
        moment: moment.into_new(),
        of_framework,
        cause: None,
        stack: stack.into_new(),
        bytes,
        count,
    })
}

/// The limits that were recorded last, by device: three kinds of records are one now.
type Limits = std::collections::BTreeMap<u8, (Option<u64>, Option<u64>, Option<u64>, bool)>;

/// What a summary of an old recorder lacks: the whole summary is left out, and a reader replays the trace.
fn converted(event: From, limits: &mut Limits, skips: &mut bool) -> Vec<To> {
    if *skips {
        *skips = !matches!(event, From::SummaryEnd { .. });
        return vec![];
    }
    let listed = |id: u32, time_ns, event: To| vec![To::StateEvent(Listed::new(id as u8, time_ns, &event))];
    let cap = |device: old::DeviceId, limits: &Limits| {
        let (bytes, group, soft, only_warns) = limits.get(&device.0).copied().unwrap_or_default();
        vec![To::Cap { device: device.into_new(), bytes, group, soft, only_warns }]
    };
    // Histories had numbers apart from those of checkpoints.
    let history = |id: u32| id as u8 ^ 0x80;
    vec![match event {
        From::Alloc(alloc) => To::Alloc(alloc.into_new()),
        From::SampledAlloc { rate, alloc } => To::SampledAlloc { rate, alloc: alloc.into_new() },
        From::Free { key, space, site } => To::Free { key, space: space.into_new(), site: site.into_new() },
        From::FreeFailed { key, space, .. } => To::FreeFailed { key, space: space.into_new() },
        From::Refused(refused) => To::Refused(refused.into_new()),
        From::Map { address, size, offset, object, stack } => {
            To::Map { address, size, offset, object, owner: new::StackId(0), stack: stack.into_new() }
        }
        From::Unmap { address, size, stack } => To::Unmap { address, size, stack: stack.into_new() },
        From::AddressReserve { address, size, site, stack, .. } => To::AddressReserve {
            asleep: false,
            device: new::DeviceId::UNKNOWN,
            address,
            size,
            site: site.into_new(),
            stack: stack.into_new(),
        },
        From::AddressFree { address, size } => To::AddressFree { address, size },
        From::PoolState { pool, reserved, used } => To::PoolState { pool: pool.into_new(), reserved, used },
        From::GraphState { device, reserved, used } => {
            To::GraphState { device: device.into_new(), reserved, used }
        }
        From::ContextCreated { context, device, stack } => To::ContextCreated {
            context: context.into_new(),
            device: device.into_new(),
            stack: stack.into_new(),
        },
        From::ContextDestroyed { context } => To::ContextDestroyed { context: context.into_new() },
        From::Sample(sample) => To::Sample(sample.into_new()),
        From::Cap { device, bytes } => {
            limits.entry(device.0).or_default().0 = bytes;
            return cap(device, limits);
        }
        From::CapPolicy { device, only_warns, soft } => {
            let of = limits.entry(device.0).or_default();
            (of.2, of.3) = (soft, only_warns);
            return cap(device, limits);
        }
        From::GroupCap { device, bytes } => {
            limits.entry(device.0).or_default().1 = bytes;
            return cap(device, limits);
        }
        From::SoftLimit { device, over, .. } => To::SoftLimit { device: device.into_new(), over },
        From::Limit { context, grown, .. } => To::Limit { context: context.into_new(), grown },
        From::Took(took) => To::Took(took.into_new()),
        From::Mark { name, mark } => To::Mark { name, mark: mark.into_new() },
        From::CacheState { device, allocated, reserved } => {
            To::CacheState { device: device.into_new(), allocated, reserved }
        }
        From::CacheOom { device, stack, size, allocated, reserved } => To::CacheOom {
            device: device.into_new(),
            stack: stack.into_new(),
            size,
            allocated,
            reserved,
        },
        From::PostMortem(found) => To::PostMortem(found.into_new()),
        From::Neighbour { device, pid, bytes } => To::Neighbour { device: device.into_new(), pid, bytes },
        From::Shared { address, site, stack } => {
            To::Shared { address, site: site.into_new(), stack: stack.into_new() }
        }
        From::BlockChange { address, change } => To::BlockChange {
            address,
            change: match change {
                old::BlockChange::Requested(bytes) => new::BlockChange::Requested(bytes),
                old::BlockChange::Pending => new::BlockChange::Pending,
                old::BlockChange::Reusable => new::BlockChange::Reusable,
            },
        },
        From::Counters(counters) => To::Counters(counters.into_new()),
        From::RecorderCost { calls, ns, one_of, bytes, stacks } => {
            To::RecorderCost { calls, ns, one_of, bytes, stacks }
        }
        From::CheckpointBegin { id } => {
            To::StateBegin { id: id as u8, what: Purpose::Checkpoint, cache_ooms: 0 }
        }
        From::CheckpointAlloc { id, time_ns, alloc } => {
            return listed(id, time_ns, To::Alloc(alloc.into_new()));
        }
        From::CheckpointSampled { id, time_ns, rate, alloc } => {
            return listed(id, time_ns, To::SampledAlloc { rate, alloc: alloc.into_new() });
        }
        From::CheckpointMap { id, address, size, offset, object, owner, stack } => {
            let (owner, stack) = (owner.into_new(), stack.into_new());
            return listed(id, 0, To::Map { address, size, offset, object, owner, stack });
        }
        From::CheckpointReserve { id, asleep, device, address, size, site, stack } => {
            let (device, site, stack) = (device.into_new(), site.into_new(), stack.into_new());
            return listed(id, 0, To::AddressReserve { asleep, device, address, size, site, stack });
        }
        From::CheckpointPool { id, pool, reserved, used } => {
            return listed(id, 0, To::PoolState { pool: pool.into_new(), reserved, used });
        }
        From::CheckpointGraph { id, device, reserved, used } => {
            return listed(id, 0, To::GraphState { device: device.into_new(), reserved, used });
        }
        From::CheckpointContext { id, device, time_ns, context, stack } => {
            let (device, context, stack) = (device.into_new(), context.into_new(), stack.into_new());
            return listed(id, time_ns, To::ContextCreated { context, device, stack });
        }
        From::CheckpointTotals { id, site, stack, allocations, frees, .. } => To::StateTotals {
            id: id as u8,
            site: site.into_new(),
            stack: stack.into_new(),
            allocations,
            frees,
        },
        From::CheckpointCounters { id, counters } => {
            return listed(id, 0, To::Counters(counters.into_new()));
        }
        From::CheckpointTook { id, took } => return listed(id, 0, To::Took(took.into_new())),
        From::CheckpointEnd { id } => To::StateEnd { id: id as u8, cut: false },
        From::Anchor => return vec![],
        From::Stopped { errno, reason } => To::Stopped { errno, reason: reason.into_new() },
        From::Ended => To::Ended,
        From::Drift { what, key } => To::Drift { what: what.into_new(), key },
        From::SummaryBegin { has_driver_memory: false, .. } => {
            *skips = true;
            return vec![];
        }
        From::SummaryBegin { cache_ooms, .. } => {
            To::StateBegin { id: 0, what: Purpose::Summary, cache_ooms }
        }
        From::SummaryDevice { counters, held } => {
            let device = new::DeviceId(counters.device);
            let mut all = listed(0, 0, To::Counters(counters.into_new()));
            all.extend(held.map(|old::HeldBytes { byte_s, error_byte_s }| {
                To::StateHeld(new::HeldBytes { device, byte_s, error_byte_s })
            }));
            return all;
        }
        From::SummaryKind { device, kind, at_peak, live } => {
            To::StateKind { device: device.into_new(), kind, at_peak, live }
        }
        From::SummaryHolder(of) | From::HistoryPeakHolder(of) => holder(of),
        From::SummaryDriver(old::SummaryDriver { device, moment, cause, stack, bytes, count }) => {
            To::StateHolder(StateHolder {
                device: device.into_new(),
                moment: moment.into_new(),
                of_framework: false,
                cause: Some(cause.into_new()),
                stack: stack.into_new(),
                bytes,
                count,
            })
        }
        From::SummaryEnd { .. } => To::StateEnd { id: 0, cut: false },
        From::ErrorAfterRefusal { api, result } => To::Aftermath { api: Some(api.into()), result },
        From::ExitStatus { status } => To::Aftermath { api: None, result: status },
        From::GraphMade { nodes, exec, site, stack } => {
            To::GraphMade { nodes, exec, site: site.into_new(), stack: stack.into_new() }
        }
        From::GraphUsed { again, exec } => {
            let change = if again { GraphChange::LaunchedAgain } else { GraphChange::Launched };
            To::GraphUsed { change, exec }
        }
        From::GraphEnded { exec } => To::GraphUsed { change: GraphChange::Ended, exec },
        From::Recording { on, by } => To::Recording { on, by: by.into_new() },
        From::HistoryBegin { id, .. } => {
            To::StateBegin { id: history(id), what: Purpose::History, cache_ooms: 0 }
        }
        From::HistoryBin(of) => To::HistoryBin(of.into_new()),
        From::HistoryDevice(of) => To::HistoryDevice(of.into_new()),
        From::HistoryLevel(of) => To::HistoryLevel(of.into_new()),
        From::HistoryKind { device, kind, bytes } => {
            To::StateKind { device: device.into_new(), kind, at_peak: bytes, live: 0 }
        }
        From::HistoryHolder(of) => To::HistoryHolder(of.into_new()),
        From::HistoryPhase(of) => To::HistoryPhase(of.into_new()),
        From::HistoryEnd { id, cut, .. } => To::StateEnd { id: history(id), cut },
        From::Sampling { rate, least, cost, bound } => To::Sampling { rate, least, cost, bound },
        From::BlockCounts { device, live, allocations, peak } => {
            To::BlockCounts { device: device.into_new(), live, allocations, peak }
        }
        From::PassedThrough { api } => To::PassedThrough { api },
    }]
}

/// A window of events that is filled.
struct Window {
    header: new::WindowHeader,
    words: &'static [AtomicU64],
    writer: new::WindowWriter<'static>,
}

impl Window {
    fn begin(header: new::WindowHeader) -> Window {
        let words: Vec<_> = (0..header.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = words.leak();
        Window { header, words, writer: new::WindowWriter::begin(words, header) }
    }

    fn store(&self, file: &mut Vec<u8>, length: usize) {
        let at = new::slot_offset(self.header.slot.into()) as usize;
        let bytes: Vec<u8> =
            self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let bytes = &bytes[..length.min(bytes.len())];
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, from, to] = &arguments[..] else { panic!("to-format-2 FROM TO") };
    let bytes = std::fs::read(from).expect("the trace can be read");
    let reader = old::TraceReader::new(&bytes).expect("a trace of format 1");
    let mut file = bytes.clone();
    // Its version.
    file[8..12].copy_from_slice(&[2, 0, 0, 0]);
    let mut page: [u8; new::HEADER_BYTES] = file[..new::HEADER_BYTES].try_into().expect("a page");
    new::header::seal(&mut page);
    file[..new::HEADER_BYTES].copy_from_slice(&page);

    let (mut limits, mut skips) = (Limits::new(), false);
    // What did not fit into a window goes into the next one.
    let mut waiting = Vec::new();
    let all = reader.event_windows().to_vec();
    for (at, found) in all.iter().enumerate() {
        let run = old::Run { first: at, count: 1, after_gap: false, from_ns: 0 };
        let old::WindowHeader { slots, slot, sequence, base_time_ns, file: tag, .. } = found.header;
        let kind = new::WindowKind::Events;
        let header = new::WindowHeader { kind, slots, slot, sequence, base_time_ns, file: tag };
        let window = Window::begin(header);
        let mut events = reader.events_of(&run);
        for stamped in &mut events {
            let thread: new::ThreadId = stamped.thread.into_new();
            let now = converted(stamped.event, &mut limits, &mut skips);
            waiting.extend(now.into_iter().map(|event| (thread, stamped.time_ns, event)));
        }
        assert!(events.damage().is_empty(), "{from}: damaged");
        let fits = |(thread, time_ns, event): &(new::ThreadId, u64, To)| {
            window.writer.append(*thread, *time_ns, event) != new::Appended::Full
        };
        let written = waiting.iter().take_while(|one| fits(one)).count();
        waiting.drain(..written);
        let follows = all.get(at + 1).is_some_and(|next| next.header.sequence == sequence + 1);
        assert!(waiting.is_empty() || follows, "{from}: no room");
        let begin = new::slot_offset(slot.into()) as usize;
        let published =
            u64::from_le_bytes(bytes[begin + 56..begin + 64].try_into().expect("a word"));
        if published as usize == found.header.bytes() {
            window.writer.close();
        }
        // The last window ends where the file ends.
        window.store(&mut file, (bytes.len() - begin).max(window.writer.published()));
    }
    println!("{from}: {} windows of events", all.len());
    std::fs::write(to, file).expect("the trace can be written");
}
