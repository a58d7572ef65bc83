//! Why the program is out of memory: told when it really is, once, in ten lines.
//!
//! | step | where |
//! |---|---|
//! | is it, or does it live with its refusals | [`burst`] |
//! | the sums, at each refusal | [`sums`] |
//! | who holds it, and what is free in between | [`held`], [`holes`] |
//! | that of a refusal, kept for the end | [`kept`] |
//! | all figures together | [`gather`] |
//! | the lines behind the stacks | [`names`] |
//! | the words | [`words`] |
//! | the file, where one is wanted | [`file`] |
//!
//! It runs on the program's thread, at the refusal that ends it, often with a framework's lock held
//! and on any stack: it takes our own short locks one at a time, keeps its copies on our own heap,
//! and asks nobody but NVML, and that only if it is open. The program's own calls answer as before.

mod burst;
mod file;
mod gather;
mod held;
mod holes;
mod kept;
mod names;
mod sums;
mod words;

use crate::caches::Figures;
use crate::devices::Device;
use crate::entry::{errno, uncancelled};
use crate::ledger::{DEVICES, device_at, device_index};
use crate::lock::Lock;
use crate::process::Process;
use crate::say;
use burst::{Burst, Refusal, Seen};
use gather::{Asked, Holding};
use kept::{Budget, Kept};
use std::path::Path;
use sums::Sums;
use vramtrace_format::policy::OomReport;
use vramtrace_format::{CacheBytes, DeviceId, Event, Refused, RefusedBy, StackId, Told};

/// Between two post-mortems, but for the one at the end.
const QUIET_NS: u64 = 60 * 1_000_000_000;

pub struct PostMortems(Lock<State>);

struct State {
    bursts: Box<[Burst]>,
    /// Who held each device at one of the last refusals.
    kept: Box<[Option<Kept>]>,
    looks: Budget,
    /// When the last one was told.
    told_ns: Option<u64>,
}

impl Default for PostMortems {
    fn default() -> PostMortems {
        // Not by way of the stack: it may be small.
        let bursts = (0..DEVICES).map(|_| Burst::default()).collect();
        let kept = (0..DEVICES).map(|_| None).collect();
        PostMortems(Lock::new(State { bursts, kept, looks: Budget::default(), told_ns: None }))
    }
}

impl State {
    /// Nothing is told so soon after the last.
    fn is_quiet(&self, now_ns: u64) -> bool {
        self.told_ns.is_some_and(|told| now_ns.saturating_sub(told) < QUIET_NS)
    }

    /// It is told now: what was absorbed before.
    fn tell(&mut self, device: DeviceId, now_ns: u64) -> u64 {
        self.told_ns = Some(now_ns);
        self.bursts[device_index(device)].tell()
    }

    /// What is to be told at the end, and what was seen of it.
    fn at_exit(&mut self, device: DeviceId, given: bool) -> Option<(Asked, Seen)> {
        let burst = &self.bursts[device_index(device)];
        let refusal = burst.at_exit(given)?;
        let same = burst.is_looked_at(refusal.sums.live);
        let seen = burst.seen().cloned().unwrap_or_default();
        let holding = match self.kept[device_index(device)].take() {
            Some(kept) if same => Holding::Then(kept),
            Some(kept) => Holding::Before(kept),
            None => Holding::Unknown,
        };
        let absorbed = self.tell(device, refusal.time_ns);
        Some((Asked { device, told: Told::Exit, refusal, absorbed, holding }, seen))
    }
}

fn in_format(figures: Figures) -> CacheBytes {
    CacheBytes { allocated: figures.allocated, reserved: figures.reserved }
}

/// What PyTorch said of its cache last.
pub fn cache_of(p: &Process, device: DeviceId) -> Option<CacheBytes> {
    p.caches.of(device).map(in_format)
}

fn neighbours(p: &Process, device: DeviceId) -> Vec<(u32, Option<u64>)> {
    let device = p.devices.known(device);
    device.map(|device| p.observe.neighbours(device)).unwrap_or_default()
}

fn driver_free(p: &Process, device: DeviceId) -> Option<u64> {
    p.devices.known(device).and_then(|device: &Device| p.observe.memory(device)).map(|m| m.free)
}

impl PostMortems {
    /// Before a refusal is recorded: the driver's free bytes. Looked at with the first of a burst
    /// only, so that the next ones cost nothing.
    pub fn look(&self, p: &'static Process, device: DeviceId, by: RefusedBy) -> Option<u64> {
        let given = p.ledger.has_come(device);
        p.ledger.await_next(device);
        let index = device_index(device);
        if let Some(seen) = self.0.lock().bursts[index].begin(given) {
            return seen.driver_free;
        }
        let mut seen = Seen { driver_free: driver_free(p, device), neighbours: Vec::new() };
        if by == RefusedBy::Driver {
            seen.neighbours = neighbours(p, device);
        }
        let free = seen.driver_free;
        self.0.lock().bursts[index].see(seen);
        free
    }

    /// A request for device memory was refused, and recorded as `refused`.
    #[cold]
    pub fn refused(&self, p: &'static Process, device: DeviceId, refused: &Refused) {
        let now_ns = p.recorder.now_ns();
        let refusal = Refusal {
            time_ns: now_ns,
            thread: this_thread(),
            by: Some(refused.by),
            size: refused.size,
            whole: refused.size,
            stack: refused.stack,
            counted: refused.counted,
            limit: refused.limit,
            driver_free: Some(refused.driver_free).filter(|free| *free > 0),
            sums: sums(p, device, refused),
        };
        let told = {
            let mut state = self.0.lock();
            let too_long = state.bursts[device_index(device)].refused(refusal);
            // PyTorch tells by itself when it is out.
            let now = too_long && refused.cache.is_none() && !state.is_quiet(now_ns);
            now.then(|| state.tell(device, now_ns))
        };
        let Some(absorbed) = told else { return self.keep(p, device, &refusal) };
        let holding = Holding::Now;
        let asked = Asked { device, told: Told::Again, refusal, absorbed, holding };
        tell(p, &asked, neighbours(p, device));
    }

    /// PyTorch gives up on a request: called with its lock held.
    #[cold]
    pub fn gave_up(
        &self,
        p: &'static Process,
        device: DeviceId,
        size: u64,
        stack: StackId,
        figures: Figures,
    ) {
        let now_ns = p.recorder.now_ns();
        let asked = Refusal {
            time_ns: now_ns,
            thread: this_thread(),
            by: None,
            size,
            whole: size,
            stack,
            counted: 0,
            limit: 0,
            driver_free: None,
            sums: Sums::now(p, device, Some(in_format(figures))),
        };
        let given = p.ledger.has_come(device);
        p.ledger.await_next(device);
        let (known, told) = {
            let mut state = self.0.lock();
            let known = state.bursts[device_index(device)].gave_up(asked, given);
            let now = !state.is_quiet(now_ns);
            (known, now.then(|| state.tell(device, now_ns)))
        };
        let Some(absorbed) = told else { return self.keep(p, device, &known) };
        let refusal = Refusal { driver_free: driver_free(p, device), ..known };
        let holding = Holding::Now;
        let asked = Asked { device, told: Told::Framework, refusal, absorbed, holding };
        tell(p, &asked, neighbours(p, device));
    }

    /// It may be told at the end, when all is freed: who holds the memory now is kept. Looked at
    /// once while nothing changes, and seldom enough where it does.
    fn keep(&self, p: &'static Process, device: DeviceId, refusal: &Refusal) {
        let (index, live) = (device_index(device), refusal.sums.live);
        {
            let state = self.0.lock();
            let burst = &state.bursts[index];
            if burst.is_told() || burst.is_looked_at(live) || !state.looks.allows(refusal.time_ns) {
                return;
            }
        }
        let held = held::look(p, device).add_up(p, |_| false);
        let now_ns = p.recorder.now_ns();
        let kept = Kept { time_ns: refusal.time_ns, held };
        let _before = {
            let mut state = self.0.lock();
            state.looks.spend(now_ns, now_ns.saturating_sub(refusal.time_ns));
            state.bursts[index].look(live);
            state.kept[index].replace(kept)
        };
    }

    /// The process ends in order. NVML may be gone by now, and the memory freed: what was seen
    /// before is told.
    pub fn at_exit(&self, p: &'static Process) {
        for device in (0..DEVICES).map(device_at) {
            let given = p.ledger.has_come(device);
            let found = self.0.lock().at_exit(device, given);
            if let Some((asked, seen)) = found {
                tell(p, &asked, seen.neighbours);
            }
        }
    }
}

/// What the memory is used for at a refusal, in which it was said how much that is.
fn sums(p: &Process, device: DeviceId, refused: &Refused) -> Sums {
    let mut sums = Sums::now(p, device, refused.cache);
    // A group's figure is of all its members.
    if refused.by != RefusedBy::Group {
        sums.used = refused.counted;
    }
    sums
}

/// Into the trace, and to whoever reads.
#[cold]
fn tell(p: &'static Process, asked: &Asked, neighbours: Vec<(u32, Option<u64>)>) {
    uncancelled(|| {
        let mut found = gather::gather(p, &p.recorder.this_process(), asked);
        let trace = p.recorder.path();
        found.neighbours = neighbours;
        found.quiet_s = (asked.told != Told::Exit).then_some(QUIET_NS / 1_000_000_000);
        found.trace = trace.as_deref().map(shown);
        p.recorder.record(&Event::PostMortem(found.event));
        for &(pid, bytes) in &found.neighbours {
            p.recorder.record(&Event::Neighbour { device: asked.device, pid, bytes });
        }
        match (p.config.oom_report, trace) {
            (OomReport::Off, _) => {}
            (OomReport::File, Some(trace)) => {
                let text = words::summary(&found);
                if let Err(error) = file::write(&trace, &text) {
                    say::line(format_args!("no file beside {}: {error}", trace.display()));
                    say::text(&text);
                }
            }
            _ => say::text(&words::summary(&found)),
        }
    });
}

/// As it would be typed.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let relative = here.and_then(|here| path.strip_prefix(here).ok());
    relative.unwrap_or(path).to_string_lossy().into_owned()
}

/// Another one for each thread that lives.
fn this_thread() -> usize {
    errno::place() as usize
}
