//! The post-mortem: that the program is out of memory, by which limit, and who holds it, in ten lines at most.
//!
//! | step | where |
//! |---|---|
//! | out of memory, or a refusal that the program absorbs | `burst` |
//! | stacks that hold memory, and holes between blocks | `held` |
//! | source lines of stacks, libraries | `names` |
//! | all figures together, as text | `message` |
//! | the next error, and how the process ends | `aftermath` |
//!
//! It is written when PyTorch gives up, at the exit if the last request on a device was refused, or at
//! a refusal a second after the first with no request granted in between. No other follows for 60 s,
//! except at the exit. The trace gets a `PostMortem` event and a `Neighbour` for each other process on
//! the card, even where nothing is printed.
//!
//! It runs on the program's thread, often with a framework's lock held and on any stack. It takes short
//! locks one at a time, keeps its copies on the recorder's heap, and calls nothing but NVML, if that is
//! open.
//!
//! * **By whom.** The refusal is the last one of the same thread in the second before PyTorch gave
//!   up. Without one, PyTorch's own memory fraction refused.
//! * **The hot path** pays one load: a refusal asks the ledger to note the device's next allocation
//!   or block.
//! * **Figures of the refusal, not of the exit.** An interpreter frees its memory before the exit. So
//!   each refusal stores the sums, and the holders (at most 128 stacks). Walks over the live memory may
//!   take 1/100 of the time; two in a row are allowed, since a refused library empties its cache and
//!   asks again. If the walk was omitted and the memory has changed since, the text names no holders.
//! * **The card.** Its free bytes are read at the first refusal of a burst, so that the next ones pay
//!   no reading, and what the process frees since then is added; so are the other processes on it where the driver refused. A burst that begins within
//!   0.2 ms of a reading (or ten times what it took) uses that one.
//! * **Source lines** are read again from the trace file (`read/lookup.rs` of the format crate), so no interpreter is needed.
//!   Native functions have no names here: they are in files, which `vramtrace oom` reads.

mod aftermath;
mod burst;
pub mod held;
mod message;
pub mod names;

use crate::hooks::process::state::Process;
use crate::model::ledger::{DEVICES, device_at, device_index};
use crate::runtime::errno;
use crate::runtime::lock::Lock;
use crate::runtime::own_stack;
use crate::runtime::stderr;
use crate::runtime::uncancelled::uncancelled;
use aftermath::Aftermath;
pub use aftermath::keep_exit_status;
use burst::{Burst, CardReading, Refusal};
use held::Held;
use vramtrace_format::policy::OomReport;
use vramtrace_format::{
    CacheBytes, DeviceId, Event, Kind, OomEvidence, PostMortem, Refused, RefusedBy, StackId,
};

/// Least time between two post-mortems, except for the one at exit.
const QUIET_S: u64 = 60;
/// Stacks of a framework's blocks that are kept.
const OF_BLOCKS_MOST: usize = 64;

/// Walks over the live memory for the exit may take 1 / WALKS_ONE_OF of the time.
const WALKS_ONE_OF: u64 = 100;

/// Other processes on a card and their bytes.
type Neighbours = Vec<(u32, Option<u64>)>;

pub struct OomReporter {
    state: Lock<State>,
    /// The error that follows a refusal, and the exit status.
    pub aftermath: Aftermath,
}

struct State {
    bursts: Box<[Burst]>,
    /// Who held each device at one of the last refusals, and its `changes` then: with as many, nothing was given or freed
    /// since.
    kept: Box<[Option<(u64, Held)>]>,
    /// When the next two walks are allowed: a library empties its cache after a first refusal, and the second one is the
    /// one that matters.
    walks_due_ns: [u64; 2],
    /// When the last one was reported.
    reported_ns: Option<u64>,
    /// Requests on which a framework's cache gave up.
    cache_ooms: u32,
}

impl Default for OomReporter {
    #[allow(clippy::disallowed_methods)] // once, at the start
    fn default() -> OomReporter {
        // Not constructed on the stack, which may be small.
        let bursts = (0..DEVICES).map(|_| Burst::default()).collect();
        let kept = (0..DEVICES).map(|_| None).collect();
        let state = State { bursts, kept, walks_due_ns: [0; 2], reported_ns: None, cache_ooms: 0 };
        OomReporter { state: Lock::new(state), aftermath: Aftermath::default() }
    }
}

/// What is written.
struct Report {
    /// With its evidence and with what was absorbed before.
    refusal: Refusal,
    /// Empty if it is not known.
    held: Held,
    neighbours: Neighbours,
}

impl State {
    /// What is to be reported now, unless the last report was too recent.
    fn report(&mut self, refusal: Refusal, evidence: OomEvidence) -> Option<Refusal> {
        let quiet_ns = QUIET_S * 1_000_000_000;
        if self.reported_ns.is_some_and(|last| refusal.time_ns.saturating_sub(last) < quiet_ns) {
            return None;
        }
        self.reported_ns = Some(refusal.time_ns);
        let burst = &mut self.bursts[device_index(refusal.event.device)];
        Some(burst.report(refusal, evidence))
    }

    /// What is to be reported at the end.
    fn at_exit(&mut self, device: DeviceId, given: bool) -> Option<Report> {
        let index = device_index(device);
        let burst = &mut self.bursts[index];
        let neighbours = burst.neighbours();
        let refusal = burst.at_exit(given)?;
        let refusal = burst.report(refusal, OomEvidence::EndedRefused);
        let (changes, held) = self.kept[index].take().unwrap_or_default();
        // Of an earlier moment only this is known.
        let may_leak = held.may_leak;
        let is_now = changes == refusal.changes;
        let held = if is_now { held } else { Held { may_leak, ..Held::default() } };
        Some(Report { refusal, held, neighbours })
    }
}

fn neighbours(p: &Process, device: DeviceId) -> Neighbours {
    let device = p.devices.known(device);
    device.map(|device| p.nvml.others_on(device)).unwrap_or_default()
}

/// The card's free bytes, all processes together. `None`: NVML is not open, or gives none.
fn driver_free(p: &Process, device: DeviceId) -> Option<u64> {
    let device = p.devices.known(device)?;
    p.nvml.memory(device).map(|memory| memory.free)
}

impl OomReporter {
    /// Before a refusal is recorded: the driver's free bytes. The card is read for the first refusal
    /// of a burst, so that the next ones cost nothing, and not again within a moment.
    pub fn look(&self, p: &Process, device: DeviceId, by: RefusedBy) -> Option<u64> {
        let given = p.ledger.has_allocated(device);
        p.ledger.await_allocation(device);
        let (index, by_driver) = (device_index(device), by == RefusedBy::Driver);
        let began_ns = p.clock.now_ns();
        let held = p.ledger.live(device).saturating_sub(p.ledger.live_of(device, Kind::Pool));
        let known = self.state.lock().bursts[index].begin(given, began_ns, by_driver, held);
        if let Some(free) = known {
            return free;
        }
        let driver_free = driver_free(p, device);
        let neighbours = by_driver.then(|| neighbours(p, device));
        let duration_ns = p.clock.now_ns().saturating_sub(began_ns);
        let card = CardReading { driver_free, held, neighbours, began_ns, duration_ns };
        // The reading that it replaces is freed after the lock is released.
        let _before = self.state.lock().bursts[index].see(card);
        driver_free
    }

    /// A request for device memory was refused, and recorded as `refused`. `other`: it takes no memory for the program.
    #[cold]
    pub fn refused(&self, p: &'static Process, device: DeviceId, refused: &Refused, other: bool) {
        self.aftermath.refused(device, refused);
        let &Refused { size, stack, by, counted, limit, cache, .. } = refused;
        let mut refusal = requested(p, device, size, stack, cache);
        let driver_free = Some(refused.driver_free).filter(|free| *free > 0);
        let event = PostMortem { by: Some(by), counted, limit, driver_free, ..refusal.event };
        (refusal.event, refusal.other_call) = (event, other);
        let report = {
            let mut state = self.state.lock();
            let too_long = state.bursts[device_index(device)].refused(refusal);
            // PyTorch reports its own out-of-memory.
            let now = too_long && cache.is_none();
            now.then(|| state.report(refusal, OomEvidence::StillRefused)).flatten()
        };
        report.map_or_else(|| self.keep(p, &refusal), |refusal| write_now(p, refusal));
    }

    /// PyTorch gives up on a request: called with its lock held.
    #[cold]
    pub fn gave_up(
        &self,
        p: &'static Process,
        device: DeviceId,
        size: u64,
        stack: StackId,
        figures: CacheBytes,
    ) {
        let requested = requested(p, device, size, stack, Some(figures));
        let given = p.ledger.has_allocated(device);
        p.ledger.await_allocation(device);
        let (known, report) = {
            let mut state = self.state.lock();
            state.cache_ooms = state.cache_ooms.saturating_add(1);
            let known = state.bursts[device_index(device)].gave_up(requested, given);
            (known, state.report(known, OomEvidence::FrameworkGaveUp))
        };
        let Some(mut refusal) = report else { return self.keep(p, &known) };
        refusal.event.driver_free = driver_free(p, device);
        write_now(p, refusal);
    }

    /// Requests on which a framework's cache gave up.
    pub fn cache_ooms(&self) -> u32 {
        self.state.lock().cache_ooms
    }

    /// Keeps the current holders for a report at exit, when the memory is freed. Walks once while
    /// nothing changes, and otherwise within the time budget.
    fn keep(&self, p: &'static Process, refusal: &Refusal) {
        let (device, time_ns, changes) = (refusal.event.device, refusal.time_ns, refusal.changes);
        let index = device_index(device);
        {
            let state = self.state.lock();
            let is_same = state.kept[index].as_ref().is_some_and(|(kept, _)| *kept == changes);
            let is_soon = time_ns < state.walks_due_ns[0];
            if state.bursts[index].is_reported() || is_same || is_soon {
                return;
            }
        }
        let look = || held::look(p, device, OF_BLOCKS_MOST);
        let Some(held) = own_stack::run(look) else { return };
        let now_ns = p.clock.now_ns();
        let _before = {
            let mut state = self.state.lock();
            let pause_ns = now_ns.saturating_sub(time_ns).saturating_mul(2 * WALKS_ONE_OF);
            state.walks_due_ns = [state.walks_due_ns[1], now_ns.saturating_add(pause_ns)];
            state.kept[index].replace((changes, held))
        };
    }

    /// Called when the process exits normally. NVML may be shut down and the memory freed by now, so
    /// kept figures are reported.
    pub fn at_exit(&self, p: &'static Process) {
        for device in (0..DEVICES).map(device_at) {
            let given = p.ledger.has_allocated(device);
            let found = self.state.lock().at_exit(device, given);
            if let Some(report) = found {
                own_stack::run(|| uncancelled(|| write(p, &report)));
            }
        }
        own_stack::run(|| uncancelled(|| self.aftermath.at_exit(p)));
    }
}

/// A request that was refused just now, with the use of the memory.
fn requested(
    p: &'static Process,
    device: DeviceId,
    size: u64,
    stack: StackId,
    cache: Option<CacheBytes>,
) -> Refusal {
    let event = PostMortem { device, stack, size, cache, ..PostMortem::default() };
    // What is freed in a pool stays in its reserve. All shards are read only where there is one.
    let changes = match p.ledger.live_of(device, Kind::Pool) {
        0 => p.ledger.live(device),
        _ => {
            let so_far = p.ledger.counters(device);
            so_far.allocations.saturating_add(so_far.frees)
        }
    };
    Refusal {
        time_ns: p.clock.now_ns(),
        // A number that is unique among live threads.
        thread: errno::here().address(),
        whole: size,
        changes,
        other_call: false,
        event,
    }
}

/// Reports a refusal with the holders and the other processes of this moment.
#[cold]
fn write_now(p: &'static Process, refusal: Refusal) {
    let device = refusal.event.device;
    let all = || {
        p.patched_entries.look(p);
        let held = held::look(p, device, OF_BLOCKS_MOST);
        let neighbours = neighbours(p, device);
        write(p, &Report { refusal, held, neighbours });
    };
    own_stack::run(|| uncancelled(all));
}

/// Writes the post-mortem to the trace and to stderr.
#[cold]
fn write(p: &'static Process, report: &Report) {
    let found = message::findings(p, report);
    p.trace_writer.record(&Event::PostMortem(found.event));
    for &(pid, bytes) in &found.neighbours {
        p.trace_writer.record(&Event::Neighbour { device: found.event.device, pid, bytes });
    }
    if p.config.oom_report == OomReport::Stderr {
        stderr::write(message::summary(&found).as_bytes());
    }
}
