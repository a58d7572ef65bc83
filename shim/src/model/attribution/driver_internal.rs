//! Bytes that the driver holds for itself on one device, without its contexts, by cause and by call.
//!
//! Only NVML's figure shows it, and only as one sum. The figure is read after each call that can
//! make the driver take memory; growth since the last reading is attributed to that call.
//!
//! * Where calls of several kinds were in flight, or no reading followed one of them, the growth
//!   gets the cause that all these kinds share, or [`Cause::Other`], and no call.
//! * What the driver takes for an executable graph belongs to the call that instantiated it, whenever it
//!   shows. Calls for graphs of one such call are not told apart: they have the same originator. Where
//!   graphs of several are meant, or calls run at once, the growth gets the cause only.
//! * Growth that shows after no such call stays unattributed, also later.
//! * A call that is not followed (cuCtxSetCurrent) may take memory too. It shows as the next
//!   followed call's, unless another reading comes between. (Measured: the driver takes such memory
//!   only inside calls, never between them.)
//! * Freed memory is subtracted from the same cause first, then from an originator with exactly as many
//!   bytes, then from the latest. A context's end frees everything that was taken in it.

use super::at_peak::AtPeak;
use crate::runtime::fallible::TryPush;
use vramtrace_format::{Cause, ContextId, SiteId, StackId};

/// Kinds of calls that can make the driver take memory for itself, by the use of that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DriverActivity {
    /// Code and its variables.
    Loading = 0,
    /// A first launch: code that was not loaded before, local memory, the heap.
    Launching = 1,
    Streams = 2,
    /// Also what the kernels in a graph need at their first launch.
    Graphs = 3,
    Sharing = 4,
    Context = 5,
    /// cuCtxSetLimit of the stack; of anything else.
    StackLimit = 6,
    OtherLimit = 7,
}

impl DriverActivity {
    pub const COUNT: usize = 8;
    pub const ALL: [DriverActivity; DriverActivity::COUNT] = [
        DriverActivity::Loading,
        DriverActivity::Launching,
        DriverActivity::Streams,
        DriverActivity::Graphs,
        DriverActivity::Sharing,
        DriverActivity::Context,
        DriverActivity::StackLimit,
        DriverActivity::OtherLimit,
    ];

    /// The cause, if nothing more is known.
    pub fn cause(self) -> Cause {
        match self {
            DriverActivity::Loading | DriverActivity::Launching => Cause::Modules,
            DriverActivity::Streams => Cause::Streams,
            DriverActivity::Graphs => Cause::Graphs,
            DriverActivity::Sharing => Cause::Sharing,
            DriverActivity::Context => Cause::Context,
            DriverActivity::StackLimit => Cause::LocalMemory,
            DriverActivity::OtherLimit => Cause::Heap,
        }
    }
}

/// A set of [`DriverActivity`], by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActivitySet(pub u8);

impl ActivitySet {
    pub fn with(self, doing: DriverActivity) -> ActivitySet {
        ActivitySet(self.0 | 1 << doing as u8)
    }

    pub fn and(self, other: ActivitySet) -> ActivitySet {
        ActivitySet(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The cause that all of them share, if there is one. (A launch takes memory for several.)
    fn common(self) -> Cause {
        match DriverActivity::ALL
            .into_iter()
            .find(|doing| ActivitySet::default().with(*doing) == self)
        {
            Some(DriverActivity::Launching) | None => Cause::Other,
            Some(doing) => doing.cause(),
        }
    }
}

/// The call that made the driver take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Originator {
    pub cause: Cause,
    /// The context whose end frees the memory.
    pub context: ContextId,
    pub site: SiteId,
    pub stack: StackId,
    /// The id of a text; 0 = none.
    pub name: u32,
}

impl Originator {
    pub fn unnamed(cause: Cause) -> Originator {
        Originator { cause, context: ContextId(0), site: SiteId(0), stack: StackId(0), name: 0 }
    }
}

/// A call that can make the driver take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    pub doing: DriverActivity,
    /// Who is charged, where that is known before the growth: the call that instantiated the graph.
    pub originator: Option<Originator>,
}

impl From<DriverActivity> for Followed {
    fn from(doing: DriverActivity) -> Followed {
        Followed { doing, originator: None }
    }
}

/// Who is charged for the calls that one reading shows.
#[derive(Clone, Copy, Debug, Default)]
enum Originators {
    #[default]
    None,
    One(Originator),
    /// Or of some call it is not known.
    Several,
}

impl Originators {
    fn and(self, call: Followed) -> Originators {
        match (self, call.originator) {
            (Originators::None, Some(of)) => Originators::One(of),
            (Originators::One(known), Some(of)) if known == of => self,
            _ => Originators::Several,
        }
    }
}

/// The result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    Nothing,
    /// Growth, by the only call in progress.
    ByCall(u64),
    /// Growth, by calls for graphs that this one instantiated.
    ByOriginator(Originator, u64),
    /// Growth, by one or several of the calls in progress.
    BySome(Cause, u64),
    /// A decrease, to be subtracted from originators.
    Less(u64),
}

/// Originators beyond this number share one entry for each cause and context.
pub const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct DriverInternal {
    /// Hidden bytes without those of contexts that are attributed to a call, or known to have none.
    settled: u64,
    by_cause: [u64; Cause::COUNT],
    makers: Vec<(Originator, u64)>,
    at_peak: AtPeak,
    /// There were more than [`MOST`].
    overflowed: bool,
    /// Kinds of calls that no reading followed, or only one that was not exact.
    waiting: ActivitySet,
    /// Their originators.
    waiting_for: Originators,
    /// The originator of the last call, and how many calls in a row had it.
    last: Option<Originator>,
    in_a_row: u32,
}

impl DriverInternal {
    pub fn of(&self, cause: Cause) -> u64 {
        self.by_cause[cause as usize]
    }

    fn named(&self) -> u64 {
        self.by_cause.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub fn wait(&mut self, call: Followed) {
        self.waiting = self.waiting.with(call.doing);
        self.waiting_for = self.waiting_for.and(call);
    }

    /// The number of calls up to this one, in a row, that had its originator.
    pub fn in_a_row(&mut self, call: Followed) -> u32 {
        let same = call.originator.is_some() && call.originator == self.last;
        self.in_a_row = if same { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = call.originator;
        self.in_a_row
    }

    /// Whether a call waits for a reading.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether all calls that wait have one originator, which is not this call's: what they took can be told apart
    /// from what it takes only before it begins.
    pub fn waits_for_other(&self, call: Followed) -> bool {
        matches!(self.waiting_for, Originators::One(maker) if call.originator != Some(maker))
    }

    /// `hidden`: the bytes that a reading shows now. `own`: the call after which it was made; `others`:
    /// calls in progress meanwhile; `exact`: whether the reading is exact.
    pub fn settle(
        &mut self,
        hidden: u64,
        own: Option<Followed>,
        others: ActivitySet,
        exact: bool,
    ) -> Attribution {
        let before = self.settled;
        let involved = self.waiting.and(others);
        // The growth is left to the reading after the other call.
        let wait = own.is_none() && !others.is_empty() && hidden > before;
        if wait {
            return Attribution::Nothing;
        }
        let originators = match own {
            _ if !others.is_empty() => Originators::Several,
            Some(call) => self.waiting_for.and(call),
            None => self.waiting_for,
        };
        self.settled = hidden;
        match own {
            _ if exact => {
                (self.waiting, self.waiting_for) = (ActivitySet::default(), Originators::default());
            }
            Some(call) => self.wait(call),
            None => {}
        }
        if hidden > before {
            let grown = hidden - before;
            let doing = own.map_or(involved, |call| involved.with(call.doing));
            return match (own, originators) {
                (None, _) if involved.is_empty() => Attribution::Nothing,
                (_, Originators::One(originator)) => Attribution::ByOriginator(originator, grown),
                (Some(_), _) if involved.is_empty() => Attribution::ByCall(grown),
                _ => Attribution::BySome(doing.common(), grown),
            };
        }
        // Unattributed bytes are subtracted first, unless this call frees its own.
        let surplus = self.named().saturating_sub(hidden);
        let given = match own {
            Some(call) => (before - hidden).min(self.of(call.doing.cause())).max(surplus),
            None => surplus,
        };
        if given > 0 { Attribution::Less(given) } else { Attribution::Nothing }
    }

    /// Whether some originators share an entry.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Before the account changes. `epoch`: the number of the device's highest peak.
    pub fn keep_peak(&mut self, epoch: u32) {
        self.at_peak.keep(epoch, &self.makers);
    }

    /// What was held at the device's highest peak, whose number is `epoch`. `None`: not known.
    pub fn makers_at_peak(&self, epoch: u32) -> Option<&[(Originator, u64)]> {
        self.at_peak.at(epoch, &self.makers)
    }

    /// Adds bytes to an originator's.
    pub fn add(&mut self, maker: Originator, bytes: u64) -> Originator {
        let same = |known: &Originator, maker: &Originator| known == maker;
        let mut maker = maker;
        if self.makers.len() >= MOST && !self.makers.iter().any(|(known, _)| same(known, &maker)) {
            maker = Originator { context: maker.context, ..Originator::unnamed(maker.cause) };
            self.overflowed = true;
        }
        let sum = &mut self.by_cause[maker.cause as usize];
        *sum = sum.saturating_add(bytes);
        match self.makers.iter_mut().find(|(known, _)| same(known, &maker)) {
            Some((_, held)) => *held = held.saturating_add(bytes),
            // Without host memory it is only in the sum of its cause.
            None => drop(self.makers.try_push((maker, bytes))),
        }
        maker
    }

    /// Subtracts `bytes`: from the call's own originator first, then from its cause, from an originator
    /// with exactly as many bytes first, from the latest first. `report` is called for each originator
    /// that changes.
    pub fn give_back(
        &mut self,
        bytes: u64,
        call: Option<Followed>,
        mut report: impl FnMut(&Originator, u64),
    ) {
        let mut left = bytes;
        while left > 0 {
            let cause = call.map(|call| call.doing.cause());
            let own = call.and_then(|call| call.originator);
            let rank = |maker: &Originator, held: u64| {
                (Some(*maker) == own, Some(maker.cause) == cause, held == left)
            };
            let best = self
                .makers
                .iter()
                .enumerate()
                .max_by_key(|(at, (maker, held))| (rank(maker, *held), *at));
            let Some((at, &(maker, held))) = best else { return };
            let given = held.min(left);
            left -= given;
            self.take(at, given);
            report(&maker, given);
        }
    }

    /// A context has ended: removes everything that was taken in it.
    pub fn context_ended(&mut self, context: ContextId, mut report: impl FnMut(&Originator, u64)) {
        while let Some(at) = self.makers.iter().position(|(maker, _)| maker.context == context) {
            let (maker, held) = self.makers[at];
            self.take(at, held);
            report(&maker, held);
        }
    }

    fn take(&mut self, at: usize, bytes: u64) {
        let (maker, held) = &mut self.makers[at];
        *held -= bytes;
        let sum = &mut self.by_cause[maker.cause as usize];
        *sum = sum.saturating_sub(bytes);
        if *held == 0 {
            // In their order: the latest come last.
            self.makers.remove(at);
        }
    }

    pub fn makers(&self) -> &[(Originator, u64)] {
        &self.makers
    }
}

#[cfg(test)]
mod tests;
