//! The post-mortem: why the program is out of memory, in ten lines at most.
//!
//! | step | where |
//! |---|---|
//! | out of memory, or a refusal that the program absorbs | `burst` |
//! | sums, at each refusal | `sums` |
//! | stacks that hold memory, and holes between blocks | `held`, `holes` |
//! | the same, kept from a refusal for the exit | `kept` |
//! | all figures together | `gather` |
//! | source lines of stacks, names of native functions | `names`, `demangle` |
//! | the text | `words` |
//! | the file, where one is wanted | `file` |
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
//!   asks again. If the walk was omitted, the text says how old the holders are, and the sum names no
//!   library.
//! * **The card.** Its free bytes are read at the first refusal of a burst, so that the next ones pay
//!   no reading; so are the other processes on it where the driver refused. A burst that begins within
//!   0.2 ms of a reading (or ten times what it took) uses that one.
//! * **Source lines** of five stacks at most are read again from the trace file (`read/lookup.rs` of
//!   the format crate), so no interpreter is needed. Names of native functions are in the files of the program and its
//!   libraries, of which a limited part is read (`runtime/file_symbols.rs`).

mod aftermath;
mod burst;
mod demangle;
mod file;
pub mod gather;
pub mod held;
mod holes;
mod kept;
pub mod names;
pub mod sources;
mod sums;
mod words;

use crate::model::ledger::{DEVICES, device_at, device_index};
use crate::model::torch_totals::{CacheTotals, TorchTotals};
use crate::runtime::errno;
use crate::runtime::fallible::list_of;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::own_stack;
use crate::runtime::uncancelled::uncancelled;
use aftermath::Aftermath;
pub use aftermath::keep_exit_status;
use burst::{Burst, CardReading, Refusal};
use gather::{Holding, Request};
use kept::{Budget, Kept};
use sources::Sources;
use std::path::Path;
use sums::Sums;
use vramtrace_format::policy::OomReport;
use vramtrace_format::{CacheBytes, DeviceId, Event, OomEvidence, Refused, RefusedBy, StackId};

/// Least time between two post-mortems, except for the one at exit.
const QUIET_NS: u64 = 60 * 1_000_000_000;

/// Other processes on a card and their bytes.
type Neighbours = Vec<(u32, Option<u64>)>;

pub struct OomReporter {
    state: Lock<State>,
    /// The error that follows a refusal, and the exit status.
    pub aftermath: Aftermath,
}

struct State {
    bursts: Box<[Burst]>,
    /// Who held each device at one of the last refusals.
    kept: Box<[Option<Kept>]>,
    looks: Budget,
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
        let looks = Budget::default();
        OomReporter {
            state: Lock::new(State { bursts, kept, looks, reported_ns: None, cache_ooms: 0 }),
            aftermath: Aftermath::default(),
        }
    }
}

impl State {
    /// Whether the last report was too recent for another one.
    fn is_quiet(&self, now_ns: u64) -> bool {
        self.reported_ns.is_some_and(|last| now_ns.saturating_sub(last) < QUIET_NS)
    }

    /// Marks it as reported. Returns what was absorbed before.
    fn report(&mut self, device: DeviceId, now_ns: u64) -> u64 {
        self.reported_ns = Some(now_ns);
        self.bursts[device_index(device)].report()
    }

    /// What is to be reported at the end, and the other processes on the card.
    fn at_exit(&mut self, device: DeviceId, given: bool) -> Option<(Request, Neighbours)> {
        let burst = &self.bursts[device_index(device)];
        let refusal = burst.at_exit(given)?;
        let same = burst.is_looked_at(refusal.sums.live);
        let neighbours = burst.neighbours();
        let holding = match self.kept[device_index(device)].take() {
            Some(kept) if same => Holding::Then(kept),
            Some(kept) => Holding::Before(kept),
            None => Holding::Unknown,
        };
        let absorbed = self.report(device, refusal.time_ns);
        Some((
            Request { device, evidence: OomEvidence::EndedRefused, refusal, absorbed, holding },
            neighbours,
        ))
    }
}

fn in_format(figures: CacheTotals) -> CacheBytes {
    CacheBytes { allocated: figures.allocated, reserved: figures.reserved }
}

/// PyTorch's last totals of its cache.
pub fn cache_of(totals: &TorchTotals, device: DeviceId) -> Option<CacheBytes> {
    totals.of(device).map(in_format)
}

fn neighbours(p: Sources, device: DeviceId) -> Neighbours {
    let device = p.devices.known(device);
    device.map(|device| p.card.neighbours(device)).unwrap_or_default()
}

fn driver_free(p: Sources, device: DeviceId) -> Option<u64> {
    p.devices.known(device).and_then(|device| p.card.free_bytes(device))
}

/// The names of the libraries that requested memory by these stacks; the flag says that the memory is a
/// block of PyTorch's cache. An empty name: not known.
pub fn libraries(p: Sources, stacks: &[(StackId, bool)]) -> Vec<((StackId, bool), String)> {
    let mut found = Vec::new();
    p.trace_writer.look_up(|read| {
        let mut names = names::Names::new(p, &p.trace_writer.this_process(), read);
        let mut title = |(stack, block): (StackId, bool)| {
            names.library(stack, block).map(|it| it.title).unwrap_or_default()
        };
        let named = stacks.iter().map(|stack| (*stack, title(*stack)));
        found = list_of(stacks.len(), named).unwrap_or_default();
    });
    found
}

impl OomReporter {
    /// Before a refusal is recorded: the driver's free bytes. The card is read for the first refusal
    /// of a burst, so that the next ones cost nothing, and not again within a moment.
    pub fn look(&self, p: Sources, device: DeviceId, by: RefusedBy) -> Option<u64> {
        let given = p.ledger.has_allocated(device);
        p.ledger.await_allocation(device);
        let (index, by_driver) = (device_index(device), by == RefusedBy::Driver);
        let began_ns = p.clock.now_ns();
        if let Some(free) = self.state.lock().bursts[index].begin(given, began_ns, by_driver) {
            return free;
        }
        let driver_free = driver_free(p, device);
        let neighbours = by_driver.then(|| neighbours(p, device));
        let duration_ns = p.clock.now_ns().saturating_sub(began_ns);
        let card = CardReading { driver_free, neighbours, began_ns, duration_ns };
        // The reading that it replaces is freed after the lock is released.
        let _before = self.state.lock().bursts[index].see(card);
        driver_free
    }

    /// A request for device memory was refused, and recorded as `refused`.
    #[cold]
    pub fn refused(&self, p: Sources, device: DeviceId, refused: &Refused) {
        self.aftermath.refused(device, refused);
        let now_ns = p.clock.now_ns();
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
        let report = {
            let mut state = self.state.lock();
            let too_long = state.bursts[device_index(device)].refused(refusal);
            // PyTorch reports its own out-of-memory.
            let now = too_long && refused.cache.is_none() && !state.is_quiet(now_ns);
            now.then(|| state.report(device, now_ns))
        };
        let Some(absorbed) = report else { return self.keep(p, device, &refusal) };
        let holding = Holding::Now;
        let request =
            Request { device, evidence: OomEvidence::StillRefused, refusal, absorbed, holding };
        write(p, &request, neighbours(p, device));
    }

    /// PyTorch gives up on a request: called with its lock held.
    #[cold]
    pub fn gave_up(
        &self,
        p: Sources,
        device: DeviceId,
        size: u64,
        stack: StackId,
        figures: CacheTotals,
    ) {
        let now_ns = p.clock.now_ns();
        let requested = Refusal {
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
        let given = p.ledger.has_allocated(device);
        p.ledger.await_allocation(device);
        let (known, report) = {
            let mut state = self.state.lock();
            state.cache_ooms = state.cache_ooms.saturating_add(1);
            let known = state.bursts[device_index(device)].gave_up(requested, given);
            let now = !state.is_quiet(now_ns);
            (known, now.then(|| state.report(device, now_ns)))
        };
        let Some(absorbed) = report else { return self.keep(p, device, &known) };
        let refusal = Refusal { driver_free: driver_free(p, device), ..known };
        let holding = Holding::Now;
        let request =
            Request { device, evidence: OomEvidence::FrameworkGaveUp, refusal, absorbed, holding };
        write(p, &request, neighbours(p, device));
    }

    /// Requests on which a framework's cache gave up.
    pub fn cache_ooms(&self) -> u32 {
        self.state.lock().cache_ooms
    }

    /// Keeps the current holders for a report at exit, when the memory is freed. Walks once while
    /// nothing changes, and otherwise within the time budget.
    fn keep(&self, p: Sources, device: DeviceId, refusal: &Refusal) {
        let (index, live) = (device_index(device), refusal.sums.live);
        {
            let state = self.state.lock();
            let burst = &state.bursts[index];
            if burst.is_reported()
                || burst.is_looked_at(live)
                || !state.looks.allows(refusal.time_ns)
            {
                return;
            }
        }
        let look = || held::look(p, device).add_up(p, |_| false, held::OF_BLOCKS_MOST);
        let Some(held) = own_stack::run(look) else { return };
        let now_ns = p.clock.now_ns();
        let kept = Kept { time_ns: refusal.time_ns, held };
        let _before = {
            let mut state = self.state.lock();
            state.looks.spend(now_ns, now_ns.saturating_sub(refusal.time_ns));
            state.bursts[index].look(live);
            state.kept[index].replace(kept)
        };
    }

    /// Called when the process exits normally. NVML may be shut down and the memory freed by now, so
    /// kept figures are reported.
    pub fn at_exit(&self, p: Sources) {
        for device in (0..DEVICES).map(device_at) {
            let given = p.ledger.has_allocated(device);
            let found = self.state.lock().at_exit(device, given);
            if let Some((request, neighbours)) = found {
                write(p, &request, neighbours);
            }
        }
        own_stack::run(|| uncancelled(|| self.aftermath.at_exit(p)));
    }
}

/// The use of the memory at a refusal.
fn sums(p: Sources, device: DeviceId, refused: &Refused) -> Sums {
    let mut sums = Sums::now(p, device, refused.cache);
    // A group's figure is of all its members.
    if refused.by != RefusedBy::Group {
        sums.used = refused.counted;
    }
    sums
}

/// Writes the post-mortem to the trace and to stderr.
#[cold]
fn write(p: Sources, request: &Request, neighbours: Vec<(u32, Option<u64>)>) {
    let write_all = || {
        let mut found = gather::gather(p, &p.trace_writer.this_process(), request);
        let trace = p.trace_writer.path();
        found.neighbours = neighbours;
        found.quiet_s =
            (request.evidence != OomEvidence::EndedRefused).then_some(QUIET_NS / 1_000_000_000);
        found.trace = trace.as_deref().map(shown);
        p.trace_writer.record(&Event::PostMortem(found.event));
        for &(pid, bytes) in &found.neighbours {
            p.trace_writer.record(&Event::Neighbour { device: request.device, pid, bytes });
        }
        match (p.config.oom_report, trace) {
            (OomReport::Off, _) => {}
            (OomReport::File, Some(trace)) => {
                let text = words::summary(&found);
                if let Err(error) = file::write(&trace, &text) {
                    log::line(format_args!(
                        "cannot write the post-mortem beside {}: {error}; it follows here",
                        trace.display()
                    ));
                    log::text(&text);
                }
            }
            _ => log::text(&words::summary(&found)),
        }
    };
    own_stack::run(|| uncancelled(write_all));
}

/// The path as a user would type it.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let relative = here.and_then(|here| path.strip_prefix(here).ok());
    relative.unwrap_or(path).to_string_lossy().into_owned()
}

/// A number that is unique among live threads.
fn this_thread() -> usize {
    errno::here().address()
}
