//! What the driver takes on its own, seen in NVML's figure for this process: contexts, lazily
//! loaded kernels, local memory. It is charged to the cap when seen, and sampled into the trace.
//!
//! A reading costs about 8 us, so it is taken after a context was made, after a call that can make
//! the driver take memory of its own ([`own`]), before a refusal (of many in a row, before some),
//! and otherwise at most once a millisecond, one device a turn. NVML's calls are legal at any time,
//! also while a stream is captured. Where NVML is not there or does not know our pid, only
//! contexts are charged, by what the device's used memory grew when they were made.

mod hidden;
mod nvml;
mod own;
mod taking;

pub use own::{Doing, Maker, Showed};
pub use taking::{Own, Taking};

use crate::devices::Device;
use crate::entry::cuda::{NvmlDevice, NvmlMemory};
use crate::entry::{inside, loader, uncancelled};
use crate::lock::Lock;
use crate::process::Process;
use hidden::{Booked, Bounds};
use nvml::{Figure, Nvml};
use own::Account;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{Cause, DeviceId, Event, Kind, Sample};

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
const DEVICES: usize = 64;

/// A forked child takes over what its parent opened: one of the parent's threads may have been
/// inside the loader, and then the child must not go there.
static OPENED: AtomicPtr<Nvml> = AtomicPtr::new(null_mut());

pub struct Observer {
    nvml: AtomicPtr<Nvml>,
    /// NVML was looked for; it may not be there.
    looked: AtomicBool,
    /// When the next reading is due under a cap; 0 = now, with or without one.
    next_ns: AtomicU64,
    turn: AtomicU8,
    /// What readings after calls have taken so far.
    spent_ns: AtomicU64,
    devices: [Watched; DEVICES],
}

#[derive(Default)]
struct Watched {
    /// NVML's handle.
    handle: AtomicPtr<core::ffi::c_void>,
    last: Lock<Option<Sample>>,
    /// Time and live bytes of the last reading.
    read_ns: AtomicU64,
    read_live: AtomicU64,
    /// What it took.
    read_took_ns: AtomicU64,
    /// Our pid was found in NVML's lists.
    present: AtomicBool,
    /// What the driver holds of its own.
    account: Lock<Account>,
    /// Its sums, by cause.
    took: [AtomicU64; Cause::COUNT],
    /// Calls under way that can make it take more, by [`Doing`].
    active: [AtomicU32; Doing::COUNT],
}

impl Default for Observer {
    fn default() -> Self {
        Observer {
            nvml: AtomicPtr::new(null_mut()),
            looked: AtomicBool::new(false),
            next_ns: AtomicU64::new(0),
            turn: AtomicU8::new(0),
            spent_ns: AtomicU64::new(0),
            devices: std::array::from_fn(|_| Watched::default()),
        }
    }
}

/// The figures before a call, so that what it takes can be told.
#[derive(Debug)]
pub struct Before {
    figure: Figure,
    /// The device's used bytes, all processes together.
    used: Option<u64>,
    live: u64,
}

impl Observer {
    /// Under a cap, before each call: the device to be read now, if any. What lazy loading took
    /// since the last call is to be known before a request is granted. Mostly a look at the clock.
    #[inline]
    pub fn due<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        // Before the first context there is nothing to see, and NVML is not even opened.
        if p.cap.is_set() && self.looked.load(Ordering::Relaxed) {
            return self.due_now(p);
        }
        None
    }

    fn due_now<'p>(&self, p: &'p Process) -> Option<&'p Device> {
        let (now, next) = (p.recorder.now_ns(), self.next_ns.load(Ordering::Relaxed));
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
        let now = p.recorder.now_ns();
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

    /// Somebody wants to know: a cap, or the trace. Else NVML is not even opened.
    pub fn is_wanted(p: &Process) -> bool {
        p.cap.is_set() || !p.recorder.is_silent()
    }

    /// The last reading is good enough to refuse by: nothing was done since that may show.
    pub fn is_fresh(&self, p: &Process, device: DeviceId) -> bool {
        let Some(watched) = self.devices.get(device.0 as usize) else { return false };
        let read_ns = watched.read_ns.load(Ordering::Relaxed);
        let took = watched.read_took_ns.load(Ordering::Relaxed);
        let age = p.recorder.now_ns().saturating_sub(read_ns);
        let known = read_ns != 0 && self.next_ns.load(Ordering::Relaxed) != 0;
        known && age < FRESH_NS.max(took.saturating_mul(FRESH_SHARE))
    }

    /// Before a call that makes the driver take memory of its own.
    pub fn before(&self, p: &Process, device: &Device) -> Before {
        let live = p.ledger.live(device.id);
        let (figure, used) = match self.reach(device) {
            None => (Figure::Unavailable, None),
            Some((nvml, handle)) => inside(|| {
                (nvml.figure(handle, pid()), nvml.memory(handle).map(|memory| memory.used))
            }),
        };
        Before { figure, used, live }
    }

    /// After it: the bytes that the driver took. `None` where nobody tells.
    pub fn taken_since(&self, p: &Process, device: &Device, before: &Before) -> Option<u64> {
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
    pub fn read(&self, p: &Process, device: &Device, reserves: impl Fn(), own: Option<Own<'_>>) {
        reserves();
        if !Observer::is_wanted(p) {
            return;
        }
        let before = booked(p, device.id);
        let began_ns = p.recorder.now_ns();
        let figure = match self.reach(device) {
            Some((nvml, handle)) => inside(|| nvml.figure(handle, pid())),
            None => Figure::Unavailable,
        };
        reserves();
        let after = booked(p, device.id);
        let context_bytes = p.contexts.bytes_on(device.id);
        let Some(watched) = self.devices.get(device.id.0 as usize) else { return };
        if figure.bytes().is_some() {
            watched.present.store(true, Ordering::Relaxed);
        }
        let now_ns = p.recorder.now_ns();
        watched.read_ns.store(now_ns, Ordering::Relaxed);
        watched.read_took_ns.store(now_ns.saturating_sub(began_ns), Ordering::Relaxed);
        watched.read_live.store(after.live, Ordering::Relaxed);
        let known = p.cap.outside(device.id);
        let (hidden, exact) = match figure {
            Figure::Bytes(bytes) => {
                let bounds = Bounds::of(bytes, before, after);
                // A pool that gave memory back unseen is booked too high: that must not eat up
                // what the contexts are known to hold.
                (bounds.narrow(known).max(context_bytes), bounds.meet())
            }
            // Listed before and no more: the last context is gone.
            Figure::Absent if watched.present.load(Ordering::Relaxed) => {
                let bounds = Bounds::of(0, before, after);
                (bounds.narrow(known), bounds.meet())
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
        let told = |sample: &Sample| (sample.process_bytes, sample.context_bytes);
        let process_bytes = figure.bytes();
        if !named && last.as_ref().map(told) == Some((process_bytes, context_bytes)) {
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
        p.recorder.record(&Event::Sample(Sample {
            driver_free: memory.as_ref().map(|memory| memory.free),
            driver_total: memory.as_ref().map(|memory| memory.total),
            ..sample
        }));
    }

    /// The device's free and whole bytes, all processes together. Asked now, of NVML alone, and
    /// only if that is open.
    pub fn memory(&self, device: &Device) -> Option<NvmlMemory> {
        let (nvml, handle) = self.reach_open(device)?;
        inside(|| nvml.memory(handle))
    }

    /// The other processes on a device and what they have, as far as NVML tells. None where our own
    /// is not in its lists: then it cannot be told from the others.
    pub fn neighbours(&self, device: &Device) -> Vec<(u32, Option<u64>)> {
        let Some((nvml, handle)) = self.reach_open(device) else { return Vec::new() };
        let mut all = inside(|| nvml.processes(handle));
        let listed = all.len();
        all.retain(|(process, _)| *process != pid());
        if all.len() == listed {
            all.clear();
        }
        all
    }

    fn reach_open(&self, device: &Device) -> Option<(&Nvml, NvmlDevice)> {
        let open = !self.nvml.load(Ordering::Acquire).is_null();
        open.then(|| self.reach(device)).flatten()
    }

    /// The device that the program means with its own NVML handle.
    pub fn device_of<'p>(&self, p: &'p Process, handle: NvmlDevice) -> Option<&'p Device> {
        let name = inside(|| self.nvml()?.name(handle))?;
        p.devices.by_nvml_name(&name)
    }

    fn reach(&self, device: &Device) -> Option<(&Nvml, NvmlDevice)> {
        let nvml = self.nvml()?;
        let watched = self.devices.get(device.id.0 as usize)?;
        let known = watched.handle.load(Ordering::Relaxed);
        if !known.is_null() {
            return Some((nvml, known));
        }
        let handle = uncancelled(|| inside(|| nvml.device(&device.nvml_name())))?;
        watched.handle.store(handle, Ordering::Relaxed);
        Some((nvml, handle))
    }

    /// NVML, opened at the first need. Racing threads open it twice, which it counts.
    fn nvml(&self) -> Option<&Nvml> {
        let known = self.nvml.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: never freed.
            return Some(unsafe { &*known });
        }
        if self.looked.load(Ordering::Acquire) {
            return None;
        }
        let open = || {
            let library = loader::dlopen(c"libnvidia-ml.so.1", libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                return None;
            }
            // SAFETY: an open library, and names that end.
            Nvml::open(|name| unsafe { loader::dlsym(library, name) })
        };
        let mut opened = OPENED.load(Ordering::Acquire);
        if opened.is_null()
            && let Some(fresh) = uncancelled(|| inside(open))
        {
            // A racing thread's copy is leaked: a few pointers, once.
            opened = Box::into_raw(Box::new(fresh));
            OPENED.store(opened, Ordering::Release);
        }
        if !opened.is_null() {
            self.nvml.store(opened, Ordering::Release);
        }
        self.looked.store(true, Ordering::Release);
        let found = self.nvml.load(Ordering::Acquire);
        // SAFETY: never freed.
        unsafe { found.as_ref() }
    }
}

fn booked(p: &Process, device: DeviceId) -> Booked {
    let live = p.ledger.live(device);
    let managed = p.ledger.live_of(device, Kind::Managed);
    let held = p.cap.held(device, live);
    Booked { held, live, managed }
}

fn pid() -> u32 {
    std::process::id()
}
