//! Which phases of the program (ranges of NVTX, `vramtrace.phase`) a device's memory was highest in.
//!
//! The time is divided at each mark and at each sample. What a device held at most in a part belongs to the innermost range
//! of each thread that has one, and to the ranges of no thread; where none is open, to a row without names. So an
//! allocation does nothing for a phase. A mark reads one sum of each device.

use crate::model::ledger::Ledger;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::tls::thread_pointer;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vramtrace_format::{DeviceId, HistoryPhase, Mark};

/// Most threads and ranges of no thread that are followed. Past it those whose last mark is the oldest are given up:
/// threads may end inside a range.
const OPEN: usize = 64;
/// Most rows of one sample, and of a bin that is being filled: those with the highest peaks.
const ROWS: usize = 128;
/// Rows of a device in a whole bin.
pub(super) const IN_BIN: usize = 4;
const DEEPEST: usize = HistoryPhase::DEEPEST;
/// Marks look for devices that were not used before at most this often: the sums of all devices are 65 cache lines, which a
/// program's step has evicted.
const LOOK_EVERY_NS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// By the address of its own data, which no two threads share.
    Thread(usize),
    /// A range that any thread may end, by its name.
    Range(u32),
}

struct Open {
    owner: Owner,
    /// Ids of the names of nested ranges, from the outermost one inwards; 0 where there is none.
    names: [u32; DEEPEST],
    /// Ranges that are open, also those too deep for a name.
    depth: u32,
    marked_ns: u64,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    rows: Vec<HistoryPhase>,
    /// The devices that are known, with the highest bytes that a mark has taken from the ledger since the last sample.
    taken: Vec<(DeviceId, u64)>,
    /// When devices were looked for.
    looked_ns: u64,
    /// Up to here the time belongs to a phase.
    settled_ns: u64,
}

#[derive(Default)]
pub struct Phases {
    /// Only traces with a limit have a history.
    is_kept: bool,
    /// The program has marked a range.
    any: AtomicBool,
    state: Lock<State>,
}

impl Phases {
    /// `limit`: most bytes of the trace.
    pub fn new(limit: Option<u64>) -> Phases {
        let (any, state) = (AtomicBool::new(false), Lock::new(State::default()));
        Phases { is_kept: limit.is_some(), any, state }
    }

    /// A mark of the program. `name`: the id of its text.
    pub fn mark(&self, ledger: &Ledger, now_ns: u64, name: u32, mark: Mark) {
        if !self.is_kept || mark == Mark::Moment {
            return;
        }
        let mut state = self.state.lock();
        if !self.any.load(Relaxed) {
            // The time before belongs to no phase.
            state.settled_ns = now_ns;
            self.any.store(true, Relaxed);
        }
        if state.taken.is_empty() || now_ns.saturating_sub(state.looked_ns) >= LOOK_EVERY_NS {
            state.look_for_devices(ledger, now_ns);
        }
        state.settle(ledger, now_ns);
        let thread = Owner::Thread(thread_pointer());
        match mark {
            Mark::Push => state.begin(thread, name, now_ns),
            Mark::Pop => state.end(thread, now_ns),
            Mark::Start => state.begin(Owner::Range(name), name, now_ns),
            Mark::End => state.end(Owner::Range(name), now_ns),
            Mark::Moment => {}
        }
    }

    /// A sample begins: adds the rows since the one before.
    pub(super) fn sample(&self, ledger: &Ledger, now_ns: u64, to: &mut Vec<HistoryPhase>) {
        if !self.any.load(Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        state.look_for_devices(ledger, now_ns);
        state.settle(ledger, now_ns);
        state.rows.drain(..).for_each(|row| add(to, row));
    }

    /// The highest bytes of a device since the last sample. It restarts with what is live.
    pub(super) fn take_peak(&self, ledger: &Ledger, device: DeviceId) -> u64 {
        let peak = ledger.take_recent_peak(device);
        if !self.any.load(Relaxed) {
            return peak;
        }
        let mut state = self.state.lock();
        let taken = state.taken.iter_mut().find(|(of, _)| *of == device);
        taken.map_or(0, |(_, bytes)| std::mem::take(bytes)).max(peak)
    }
}

impl State {
    fn look_for_devices(&mut self, ledger: &Ledger, now_ns: u64) {
        self.looked_ns = now_ns;
        for device in ledger.devices() {
            if self.taken.iter().all(|(known, _)| *known != device) {
                // Without host memory the device has no phases.
                let _ = self.taken.try_push((device, 0));
            }
        }
    }

    /// The time since the last mark or sample, and the devices' highest bytes in it, are added to what is open.
    fn settle(&mut self, ledger: &Ledger, now_ns: u64) {
        let (at_ns, State { open, rows, taken, settled_ns, .. }) = (self.settled_ns, self);
        let open_ns = now_ns.saturating_sub(at_ns);
        *settled_ns = now_ns.max(at_ns);
        for (device, highest) in taken {
            let peak = ledger.take_recent_peak(*device);
            *highest = peak.max(*highest);
            let mut add = |names: [u32; DEEPEST], depth: u32| {
                let ([first, second, third, fourth], device) = (names, *device);
                let depth = depth.min(DEEPEST as u32) as u8;
                let row = HistoryPhase {
                    device,
                    depth,
                    first,
                    second,
                    third,
                    fourth,
                    peak,
                    at_ns,
                    open_ns,
                };
                add(rows, row);
            };
            open.iter().for_each(|open| add(open.names, open.depth));
            if open.is_empty() {
                add([0; DEEPEST], 0);
            }
        }
    }

    fn begin(&mut self, owner: Owner, name: u32, now_ns: u64) {
        // Without host memory for it the range is not followed.
        let Some(at) = self.place(owner).or_else(|| self.make(owner)) else { return };
        let open = &mut self.open[at];
        if let Some(place) = open.names.get_mut(open.depth as usize) {
            *place = name;
        }
        (open.depth, open.marked_ns) = (open.depth.saturating_add(1), now_ns);
    }

    fn end(&mut self, owner: Owner, now_ns: u64) {
        let Some(at) = self.place(owner) else { return };
        let open = &mut self.open[at];
        (open.depth, open.marked_ns) = (open.depth.saturating_sub(1), now_ns);
        if let Some(place) = open.names.get_mut(open.depth as usize) {
            *place = 0;
        }
        if open.depth == 0 {
            self.open.swap_remove(at);
        }
    }

    fn place(&self, owner: Owner) -> Option<usize> {
        self.open.iter().position(|open| open.owner == owner)
    }

    fn make(&mut self, owner: Owner) -> Option<usize> {
        if self.open.len() >= OPEN {
            let oldest = (0..self.open.len()).min_by_key(|at| self.open[*at].marked_ns)?;
            self.open.swap_remove(oldest);
        }
        let open = Open { owner, names: [0; DEEPEST], depth: 0, marked_ns: 0 };
        self.open.try_push(open).ok()?;
        self.open.len().checked_sub(1)
    }
}

fn is_same(one: &HistoryPhase, other: &HistoryPhase) -> bool {
    one.device == other.device && one.depth == other.depth && one.names().eq(other.names())
}

/// What rows are ranked by: bytes, and of equal ones what was first. What is held on after a range counts in the
/// next one too.
fn rank(row: &HistoryPhase) -> (u64, u64) {
    (row.peak, !row.at_ns)
}

/// Adds what is known of a phase. Where there are too many, that with the lowest peak goes.
pub(super) fn add(rows: &mut Vec<HistoryPhase>, more: HistoryPhase) {
    if let Some(known) = rows.iter_mut().find(|known| is_same(known, &more)) {
        let open_ns = known.open_ns.saturating_add(more.open_ns);
        if rank(&more) > rank(known) {
            *known = more;
        }
        known.open_ns = open_ns;
        return;
    }
    if rows.len() < ROWS {
        // Without host memory the phase is not told.
        let _ = rows.try_push(more);
        return;
    }
    let lowest = rows.iter_mut().min_by_key(|row| rank(row));
    if let Some(lowest) = lowest.filter(|lowest| rank(lowest) < rank(&more)) {
        *lowest = more;
    }
}

/// Keeps the phases with the highest peaks of each device, highest first.
pub(super) fn choose(rows: &mut Vec<HistoryPhase>) {
    rows.sort_unstable_by_key(|row| (row.device, std::cmp::Reverse(rank(row))));
    let (mut of, mut count) = (None, 0);
    rows.retain(|row| {
        count = if of == Some(row.device) { count + 1 } else { 0 };
        of = Some(row.device);
        count < IN_BIN
    });
}
