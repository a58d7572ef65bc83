//! What the driver takes on its own, seen in NVML's figure for this process: contexts, lazily
//! loaded kernels, local memory. It is charged to the cap when seen, and sampled into the trace.
//!
//! A reading costs about 8 us, so it is taken after a context was made, after a call that can make
//! the driver take memory for itself ([`activity`]), before a refusal (of many in a row, before some),
//! and otherwise at most once a millisecond, one device a turn. NVML's calls are legal at any time,
//! also while a stream is captured. Where NVML is not there or does not know our pid (a container
//! with its own pids), only contexts are charged, by what the device's used memory grew when they
//! were made, and what cuCtxSetLimit takes, by its forecast.
//!
//! Readings after calls take 0.1 s in all and then at most 1/1,000 of the process's life, since NVML
//! is slow where many processes share a GPU ([`activity`]). The next reading shows what an omitted
//! one would have shown.

pub mod activity;
pub mod reader;

use crate::driver::depth::inside;
use crate::driver::nvml::Figure;
use crate::hooks::nvml_reading::activity::AttributedReading;
use crate::hooks::nvml_reading::reader::{NvmlReader, pid};
use crate::hooks::state::Process;
use crate::model::attribution::unattributed::{AccountedBytes, Bounds};
use crate::model::devices::Device;
use std::sync::atomic::Ordering;
use vramtrace_format::{DeviceId, Event, Kind, Sample};

/// Between two readings under a cap.
const EVERY_NS: u64 = 1_000_000;
/// Without a cap, a device is read anew after this time, or when its live bytes moved so much.
const RESTED_NS: u64 = 10_000_000;
const MUCH: u64 = 16 << 20;
/// Without a cap readings take at most one part in so many of the time, and of a time in which much
/// changes: where many processes share a GPU, NVML is slow.
const COST_SHARE: u64 = 200;
const COST_SHARE_MOVED: u64 = 20;
/// Before a refusal it is read anew, unless this was done so short a time ago, or so many times
/// what it takes: a program that asks again and again is not to be slowed down.
const FRESH_NS: u64 = 200_000;
const FRESH_SHARE: u64 = 10;

/// The figures before a call, so that what it takes can be computed.
#[derive(Debug)]
pub struct FigureBefore {
    figure: Figure,
    /// The device's used bytes, all processes together.
    used: Option<u64>,
    live: u64,
}

impl NvmlReader {
    /// Under a cap, before each call: the device to be read now, if any. What lazy loading took
    /// since the last call is to be known before a request is granted. Mostly a look at the clock.
    #[inline]
    pub fn due<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        // Before the first context there is nothing to see.
        if p.cap.is_set() && self.looked.load(Ordering::Relaxed) {
            return self.due_now(p);
        }
        None
    }

    fn due_now<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        let (now, next) = (p.clock.now_ns(), self.next_ns.load(Ordering::Relaxed));
        if now < next {
            return None;
        }
        let later = now.saturating_add(EVERY_NS);
        self.next_ns.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        self.whose_turn(p)
    }

    /// Without a cap only the trace wants to know. Called about once a millisecond, from the end
    /// of a hook, outside all locks; reads when much has changed or some time has passed.
    pub fn now_and_then(&self, p: &Process) {
        if p.cap.is_set() || !self.looked.load(Ordering::Relaxed) {
            return;
        }
        let Some(device) = self.whose_turn(p) else { return };
        let Some(watched) = self.devices.get(device.id.0 as usize) else { return };
        let now = p.clock.now_ns();
        let rested = now.saturating_sub(watched.read_ns.load(Ordering::Relaxed));
        let took = watched.read_took_ns.load(Ordering::Relaxed);
        let asked = self.next_ns.swap(1, Ordering::Relaxed) == 0;
        let moved = p.ledger.live(device.id).abs_diff(watched.read_live.load(Ordering::Relaxed));
        let idle = rested >= RESTED_NS.max(took.saturating_mul(COST_SHARE));
        let busy = moved >= MUCH && rested >= took.saturating_mul(COST_SHARE_MOVED);
        if asked || idle || busy {
            self.read(p, device, || (), None);
        }
    }

    /// One of the devices with a context, in turn.
    fn whose_turn<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let with_context = || p.devices.all().filter(|device| p.contexts.any_on(device.id));
        let count = with_context().count();
        if count == 0 { None } else { with_context().nth(turn % count) }
    }

    /// Somebody wants to know: a cap, or the trace. Else NVML is not asked.
    pub fn is_wanted(p: &Process) -> bool {
        p.cap.is_set() || !p.trace_writer.is_silent()
    }

    /// The last reading is good enough to refuse by: nothing was done since that may show.
    pub fn is_fresh(&self, p: &Process, device: DeviceId) -> bool {
        let Some(watched) = self.devices.get(device.0 as usize) else { return false };
        let read_ns = watched.read_ns.load(Ordering::Relaxed);
        let took = watched.read_took_ns.load(Ordering::Relaxed);
        let age = p.clock.now_ns().saturating_sub(read_ns);
        let known = read_ns != 0 && self.next_ns.load(Ordering::Relaxed) != 0;
        known && age < FRESH_NS.max(took.saturating_mul(FRESH_SHARE))
    }

    /// Before a call that makes the driver take memory for itself.
    pub fn before(&self, p: &Process, device: &Device) -> FigureBefore {
        let live = p.ledger.live(device.id);
        let (figure, used) = match self.reach(device) {
            None => (Figure::Unavailable, None),
            Some((nvml, handle)) => inside(|| {
                (nvml.figure(handle, pid()), nvml.memory(handle).map(|memory| memory.used))
            }),
        };
        FigureBefore { figure, used, live }
    }

    /// After it: the bytes that the driver took. `None` where nobody tells.
    pub fn taken_since(&self, p: &Process, device: &Device, before: &FigureBefore) -> Option<u64> {
        let (nvml, handle) = self.reach(device)?;
        let grown = p.ledger.live(device.id).saturating_sub(before.live);
        let (figure, used) =
            inside(|| (nvml.figure(handle, pid()), nvml.memory(handle).map(|memory| memory.used)));
        let taken = match (before.figure, figure, before.used, used) {
            (Figure::Bytes(before), Figure::Bytes(after), ..) => after.saturating_sub(before),
            (Figure::Absent, Figure::Bytes(after), ..) => after,
            // Another process may have taken or freed memory meanwhile: the best there is.
            (_, _, Some(before), Some(after)) => after.saturating_sub(before),
            _ => return None,
        };
        Some(taken.saturating_sub(grown))
    }

    /// Reads the figure of this process now, charges what it shows, names it, and samples it.
    /// `reserves` reads pools and graphs: before the figure and after it. `own`: the call that the
    /// reading is made after.
    pub fn read(
        &self,
        p: &Process,
        device: &Device,
        reserves: impl Fn(),
        own: Option<AttributedReading<'_>>,
    ) {
        reserves();
        if !NvmlReader::is_wanted(p) {
            return;
        }
        let before = accounted(p, device.id);
        let began_ns = p.clock.now_ns();
        let figure = match self.reach(device) {
            Some((nvml, handle)) => inside(|| nvml.figure(handle, pid())),
            None => Figure::Unavailable,
        };
        reserves();
        let after = accounted(p, device.id);
        let context_bytes = p.contexts.bytes_on(device.id);
        let Some(watched) = self.devices.get(device.id.0 as usize) else { return };
        if figure.bytes().is_some() {
            watched.present.store(true, Ordering::Relaxed);
        }
        let now_ns = p.clock.now_ns();
        watched.read_ns.store(now_ns, Ordering::Relaxed);
        watched.read_took_ns.store(now_ns.saturating_sub(began_ns), Ordering::Relaxed);
        watched.read_live.store(after.live, Ordering::Relaxed);
        let known = p.cap.outside(device.id);
        let (hidden, exact) = match figure {
            Figure::Bytes(bytes) => {
                let bounds = Bounds::of(bytes, before, after);
                // A pool that gave memory back unseen is accounted too high: that must not eat up
                // what the contexts are known to hold.
                (bounds.narrow(known).max(context_bytes), bounds.meet())
            }
            // Listed before and no more: the last context is gone.
            Figure::Absent if watched.present.load(Ordering::Relaxed) => {
                let bounds = Bounds::of(0, before, after);
                (bounds.narrow(known), bounds.meet())
            }
            // NVML answered before and does not now: the GPU is sick. The last figure stays counted.
            Figure::Unavailable if watched.present.load(Ordering::Relaxed) => {
                (known.max(context_bytes), false)
            }
            _ => (context_bytes.saturating_add(p.contexts.growth_on(device.id)), true),
        };
        let mut last = watched.last.lock();
        let young = p.cap.outside(device.id) == known;
        if young {
            p.cap.charge(device.id, (hidden as i64).wrapping_sub(known as i64));
        }
        drop(last);
        let named = self.name(p, device, watched, exact && young, own);
        last = watched.last.lock();
        let figures = |sample: &Sample| (sample.process_bytes, sample.context_bytes);
        let process_bytes = figure.bytes();
        if !named && last.as_ref().map(figures) == Some((process_bytes, context_bytes)) {
            return;
        }
        let sample = Sample {
            device: device.id,
            driver_free: None,
            driver_total: None,
            process_bytes,
            context_bytes,
        };
        *last = Some(sample);
        drop(last);
        let memory = self.reach(device).and_then(|(nvml, handle)| inside(|| nvml.memory(handle)));
        p.trace_writer.record(&Event::Sample(Sample {
            driver_free: memory.as_ref().map(|memory| memory.free),
            driver_total: memory.as_ref().map(|memory| memory.total),
            ..sample
        }));
    }
}

fn accounted(p: &Process, device: DeviceId) -> AccountedBytes {
    let live = p.ledger.live(device);
    let managed = p.ledger.live_of(device, Kind::Managed);
    let held = p.cap.held(device, live);
    AccountedBytes { held, live, managed }
}
