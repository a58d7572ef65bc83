//! What the driver takes on its own, seen in NVML's figure for this process: contexts, lazily
//! loaded kernels, local memory. It is charged to the cap when seen, and sampled into the trace.
//!
//! A reading costs 50 us and more, so it is taken after a context was made, after a call that can make the
//! driver take memory for itself ([`activity`]), before a refusal (of many in a row, before some), and
//! otherwise from time to time, one device a turn: under a cap the next one is due a millisecond after the
//! end of the last, or later by the share of the time that readings may take. Between them the last figure
//! counts. NVML's calls are legal at any time, also
//! while a stream is captured. Where NVML is not there or does not know our pid (a container with its
//! own pids), only two things are charged: contexts, by the growth of the device's used bytes during
//! their creation, and cuCtxSetLimit, by its forecast. Where no other process can use the card, its used bytes stand for the
//! figure ([`exclusive`]).
//!
//! Without a cap readings take 0.1 s in all and at most 1/1,000 of the process's life
//! ([`activity`]): NVML is slow where many processes share a GPU. Under a cap that holds for those after calls, and the others take at most a twentieth. The
//! next reading shows what an omitted one would have shown.

pub mod activity;
mod exclusive;
pub mod reader;

use crate::driver::nvml::Figure;
use crate::hooks::process::nvml_reading::activity::AttributedReading;
use crate::hooks::process::nvml_reading::reader::{NvmlReader, pid};
use crate::hooks::process::refresh::refresh_reserves;
use crate::hooks::process::state::Process;
use crate::model::attribution::unattributed::{AccountedBytes, Bounds};
use crate::model::devices::Device;
use crate::runtime::{clock, faults};
use std::sync::atomic::Ordering;
use vramtrace_format::{DeviceId, Event, Kind, Sample};

/// Under a cap, from the end of a reading to the next, or so many times the duration of the reading.
const EVERY_NS: u64 = 1_000_000;
const COST_SHARE_CAPPED: u64 = 20;
/// No reading takes longer: after this time another thread may begin the next.
const CLAIM_NS: u64 = 10_000_000_000;
/// Without a cap, a device is read anew after this time, or when its live bytes moved so much.
const RESTED_NS: u64 = 10_000_000;
/// The same where samples are recorded, for programs that stay on. A program that waits for requests would wait for a reading, 0.2
/// to 3 ms, in many of them.
const RESTED_NS_SAMPLED: u64 = 10_000_000_000;
const MUCH: u64 = 16 << 20;
/// Without a cap readings take at most one part in so many of the time; of a time in which much changes more, within the
/// budget.
const COST_SHARE: u64 = 1000;
const COST_SHARE_MOVED: u64 = 20;
/// Before a refusal the figure is read again, unless the last reading is younger than this, or younger
/// than ten times a reading's duration: a program that retries in a loop must not be slowed down.
const FRESH_NS: u64 = 200_000;
const FRESH_SHARE: u64 = 10;

/// Whether a device is to be read before a call.
pub enum Due<'p> {
    /// With the time, if it was read; else 0.
    Not(u64),
    /// This one, and the time. [`NvmlReader::was_read`] must follow.
    Now(&'p Device, u64),
}

/// The figures before a call, so that what it takes can be computed.
#[derive(Debug)]
pub struct FigureBefore {
    figure: Figure,
    /// The device's used bytes, all processes together.
    used: Option<u64>,
    live: u64,
}

#[cold]
fn due_at(p: &Process, now: u64, next: u64) -> Due<'_> {
    let (later, order) = (now.saturating_add(CLAIM_NS), Ordering::Relaxed);
    if p.nvml.next_ns.compare_exchange(next, later, order, order).is_err() {
        return Due::Not(now);
    }
    if let Some(device) = p.nvml.whose_turn(p) {
        return Due::Now(device, now);
    }
    p.nvml.was_read(p, now);
    Due::Not(now)
}

impl NvmlReader {
    /// Under a cap, before each call: whether a device is to be read now. Usually this only reads the clock.
    #[inline(always)]
    pub fn due<'p>(&self, p: &'p Process) -> Due<'p> {
        if !p.cap.is_set() {
            return Due::Not(0);
        }
        let (now, next) = (p.clock.now_ns(), self.next_ns.load(Ordering::Relaxed));
        if now < next { Due::Not(now) } else { due_at(p, now, next) }
    }

    /// After the reading that `due` returned: sets when the next is due.
    pub fn was_read(&self, p: &Process, began_ns: u64) {
        let now = p.clock.now_ns();
        let pause = now.saturating_sub(began_ns).saturating_mul(COST_SHARE_CAPPED);
        self.next_ns.store(now.saturating_add(pause.max(EVERY_NS)), Ordering::Relaxed);
    }

    /// Without a cap readings serve only the trace. Called about once a millisecond, at the end of a
    /// hook, outside all locks. Reads if the live bytes changed much, if calls wait for a reading, or after some time.
    pub fn now_and_then(&self, p: &'static Process) {
        if p.cap.is_set() {
            return;
        }
        let Some(device) = self.whose_turn(p) else { return };
        let Some(watched) = self.of(device.id) else { return };
        let now = p.clock.now_ns();
        let requested = self.next_ns.swap(1, Ordering::Relaxed) == 0;
        let moved = p.ledger.live(device.id).abs_diff(watched.read_live.load(Ordering::Relaxed));
        let least = if p.block_sampling.is_some() { RESTED_NS_SAMPLED } else { RESTED_NS };
        let is_idle = watched.age_ns(now) >= least && !watched.was_read_within(COST_SHARE, now);
        let is_busy = moved >= MUCH && !watched.was_read_within(COST_SHARE_MOVED, now);
        let is_wanted = || (is_busy || watched.is_awaited(now)) && self.is_within_budget(p);
        if requested || is_idle || is_wanted() {
            self.read_within_budget(p, device, false, None);
        }
    }

    /// One of the devices with a context, in turn.
    fn whose_turn<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let with_context = || p.devices.all().filter(|device| p.contexts.any_on(device.id));
        with_context().nth(turn % with_context().count().max(1))
    }

    /// Whether a cap or a trace uses the figure. If not, NVML is not called.
    pub fn is_wanted(p: &Process) -> bool {
        p.cap.is_set() || !p.trace_writer.is_silent()
    }

    /// Whether the last reading is recent enough for a refusal, and no call since can have changed the
    /// figure.
    pub fn is_fresh(&self, p: &Process, device: DeviceId) -> bool {
        let Some(watched) = self.of(device) else { return false };
        let now_ns = p.clock.now_ns();
        let is_known = self.next_ns.load(Ordering::Relaxed) != 0;
        is_known
            && (watched.age_ns(now_ns) < FRESH_NS || watched.was_read_within(FRESH_SHARE, now_ns))
    }

    /// The bytes of this process on a device.
    fn figure(&self, p: &Process, device: &Device) -> Figure {
        let Some((nvml, handle)) = self.handle_of(device) else { return Figure::Unavailable };
        match (nvml.figure(handle, pid()), self.of(device.id)) {
            (Figure::Absent, Some(watched)) => watched.exclusive.figure(p, device, nvml, handle),
            (figure, _) => figure,
        }
    }

    /// The figures before a call that can make the driver take memory for itself.
    pub fn before(&self, p: &Process, device: &Device) -> FigureBefore {
        let live = p.ledger.live(device.id);
        let used = self.memory(device).map(|memory| memory.used);
        if !p.contexts.any_on(device.id)
            && let Some(readings) = self.of(device.id)
        {
            readings.exclusive.without_context(used);
        }
        FigureBefore { figure: self.figure(p, device), used, live }
    }

    /// After that call: the bytes that the driver took for itself. `None`: NVML gives no figure.
    pub fn taken_since(&self, p: &Process, device: &Device, before: &FigureBefore) -> Option<u64> {
        self.handle_of(device)?;
        let grown = p.ledger.live(device.id).saturating_sub(before.live);
        let figure = self.figure(p, device);
        let used = self.memory(device).map(|memory| memory.used);
        let taken = match (before.figure, figure, before.used, used) {
            (Figure::Bytes(before), Figure::Bytes(after), ..) => after.saturating_sub(before),
            (Figure::Absent, Figure::Bytes(after), ..) => after,
            // The device's used bytes of all processes: another process may have taken or freed memory
            // meanwhile, but there is no better figure.
            (_, _, Some(before), Some(after)) => after.saturating_sub(before),
            _ => return None,
        };
        Some(taken.saturating_sub(grown))
    }

    /// Reads NVML's figure of this process, charges growth, attributes it, and records a sample.
    /// `reserves`: pools and graphs are read too, before the figure and after it. `own`: the call after which
    /// the reading is made.
    pub fn read(
        &self,
        p: &'static Process,
        device: &Device,
        reserves: bool,
        own: Option<AttributedReading<'_>>,
    ) {
        let read_reserves = || {
            if reserves {
                refresh_reserves(p, device.id);
            }
        };
        read_reserves();
        if NvmlReader::is_wanted(p) {
            let began_ns = clock::mono_ns();
            self.read_wanted(p, device, read_reserves, own);
            p.cost.add_reading(clock::elapsed_ns(began_ns));
        }
    }

    fn read_wanted(
        &self,
        p: &Process,
        device: &Device,
        read_reserves: impl Fn(),
        own: Option<AttributedReading<'_>>,
    ) {
        let before = accounted(p, device.id);
        let began_ns = p.clock.now_ns();
        let figure = self.figure(p, device);
        read_reserves();
        let after = accounted(p, device.id);
        let context_bytes = p.contexts.bytes_on(device.id);
        let Some(watched) = self.of(device.id) else { return };
        if figure.bytes().is_some() {
            watched.present.store(true, Ordering::Relaxed);
        }
        let now_ns = p.clock.now_ns();
        watched.read_ns.store(now_ns, Ordering::Relaxed);
        let cost_ns = faults::reading_cost_ns(now_ns.saturating_sub(began_ns));
        watched.read_duration_ns.store(cost_ns, Ordering::Relaxed);
        watched.read_live.store(after.live, Ordering::Relaxed);
        let known = p.cap.outside(device.id);
        let was_present = watched.present.load(Ordering::Relaxed);
        let within = |bytes, least| {
            let bounds = Bounds::of(bytes, before, after);
            (bounds.narrow(known).max(least), bounds.are_equal())
        };
        let (hidden, exact) = match figure {
            // The count of a pool that released memory unseen is too high. That must not reduce the
            // figure below what the contexts are known to hold.
            Figure::Bytes(bytes) => within(bytes, context_bytes),
            // NVML listed this process before and does not now: its last context has ended.
            Figure::Absent if was_present => within(0, 0),
            // NVML gave a figure before and fails now: the GPU is in an error state. The last figure
            // stays counted.
            Figure::Unavailable if was_present => (known.max(context_bytes), false),
            _ => (context_bytes.saturating_add(p.contexts.growth_on(device.id)), true),
        };
        let young = {
            let _one = watched.last.lock();
            let young = p.cap.outside(device.id) == known;
            if young {
                p.cap.charge(device.id, (hidden as i64).wrapping_sub(known as i64));
            }
            young
        };
        let named = self.name(p, device, watched, exact && young, own);
        let process_bytes = figure.bytes();
        let figures = (process_bytes, context_bytes);
        if watched.last.lock().replace(figures) == Some(figures) && !named {
            return;
        }
        let memory = self.memory(device);
        p.trace_writer.record(&Event::Sample(Sample {
            device: device.id,
            driver_free: memory.as_ref().map(|memory| memory.free),
            driver_total: memory.as_ref().map(|memory| memory.total),
            process_bytes,
            context_bytes,
        }));
    }
}

fn accounted(p: &Process, device: DeviceId) -> AccountedBytes {
    let live = p.ledger.live(device);
    let managed = p.ledger.live_of(device, Kind::Managed);
    let held = p.cap.held(device);
    let live = live.saturating_add(p.cap.beside_arrays(device));
    AccountedBytes { held, live, managed }
}
