//! What the driver holds of its own on one device, beside its contexts, and for what.
//!
//! Only NVML's figure shows it, and only as one sum. So it is read after each call that can make
//! the driver take memory, and what is more than before is that call's. Where several such calls
//! were under way, or one could not be read after, only what all of them have in common is said.

use vramtrace_format::{Cause, ContextId, SiteId, StackId};

/// Calls that can make the driver take memory of its own, by what they can make it take it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Doing {
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

impl Doing {
    pub const COUNT: usize = 8;
    pub const ALL: [Doing; Doing::COUNT] = [
        Doing::Loading,
        Doing::Launching,
        Doing::Streams,
        Doing::Graphs,
        Doing::Sharing,
        Doing::Context,
        Doing::StackLimit,
        Doing::OtherLimit,
    ];

    /// What it is for, if nothing more is known.
    pub fn cause(self) -> Cause {
        match self {
            Doing::Loading | Doing::Launching => Cause::Modules,
            Doing::Streams => Cause::Streams,
            Doing::Graphs => Cause::Graphs,
            Doing::Sharing => Cause::Sharing,
            Doing::Context => Cause::Context,
            Doing::StackLimit => Cause::LocalMemory,
            Doing::OtherLimit => Cause::Heap,
        }
    }
}

/// A set of [`Doing`], by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls(pub u8);

impl Calls {
    pub fn with(self, doing: Doing) -> Calls {
        Calls(self.0 | 1 << doing as u8)
    }

    pub fn and(self, other: Calls) -> Calls {
        Calls(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What all of them take memory for, if that is one thing. (A launch takes it for several.)
    fn common(self) -> Cause {
        match Doing::ALL.into_iter().find(|doing| Calls::default().with(*doing) == self) {
            Some(Doing::Launching) | None => Cause::Other,
            Some(doing) => doing.cause(),
        }
    }
}

/// Who made the driver take so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    pub cause: Cause,
    /// With it the memory goes.
    pub context: ContextId,
    pub site: SiteId,
    pub stack: StackId,
    /// The id of a text; 0 = none.
    pub name: u32,
}

impl Maker {
    pub fn unnamed(cause: Cause) -> Maker {
        Maker { cause, context: ContextId(0), site: SiteId(0), stack: StackId(0), name: 0 }
    }
}

/// What a reading shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Showed {
    Nothing,
    /// More, by the one call that was under way.
    ByCall(u64),
    /// More, by one or several of those that were.
    BySome(Cause, u64),
    /// Less: so much is to be taken back from who took it.
    Less(u64),
}

/// Makers beyond so many share one line for each cause and context.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub struct Account {
    /// Hidden bytes, less those of contexts, up to which it was told who took them, or that nobody
    /// knows.
    settled: u64,
    by_cause: [u64; Cause::COUNT],
    makers: Vec<(Maker, u64)>,
    /// Calls that no reading followed, or one that could not tell all.
    waiting: Calls,
}

impl Account {
    pub fn of(&self, cause: Cause) -> u64 {
        self.by_cause[cause as usize]
    }

    fn named(&self) -> u64 {
        self.by_cause.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub fn wait(&mut self, doing: Doing) {
        self.waiting = self.waiting.with(doing);
    }

    /// `hidden`: what a reading shows now. `own`: the call that it was made after; `others`: what
    /// was under way beside it; `exact`: all that there is did show.
    pub fn settle(
        &mut self,
        hidden: u64,
        own: Option<Doing>,
        others: Calls,
        exact: bool,
    ) -> Showed {
        let before = self.settled;
        let involved = self.waiting.and(others);
        // Somebody else's call will tell of it.
        let wait = own.is_none() && !others.is_empty() && hidden > before;
        if wait {
            return Showed::Nothing;
        }
        self.settled = hidden;
        self.waiting = match own {
            _ if exact => Calls::default(),
            Some(doing) => self.waiting.with(doing),
            None => self.waiting,
        };
        if hidden > before {
            let grown = hidden - before;
            return match own {
                Some(_) if involved.is_empty() => Showed::ByCall(grown),
                Some(doing) => Showed::BySome(involved.with(doing).common(), grown),
                None if involved.is_empty() => Showed::Nothing,
                None => Showed::BySome(involved.common(), grown),
            };
        }
        // What nobody was named for goes first, unless this call gives its own back.
        let surplus = self.named().saturating_sub(hidden);
        let given = match own {
            Some(doing) => (before - hidden).min(self.of(doing.cause())).max(surplus),
            None => surplus,
        };
        if given > 0 { Showed::Less(given) } else { Showed::Nothing }
    }

    /// Books what a maker took.
    pub fn add(&mut self, maker: Maker, bytes: u64) -> Maker {
        let same = |known: &Maker, maker: &Maker| known == maker;
        let mut maker = maker;
        if self.makers.len() >= MOST && !self.makers.iter().any(|(known, _)| same(known, &maker)) {
            maker = Maker { context: maker.context, ..Maker::unnamed(maker.cause) };
        }
        let sum = &mut self.by_cause[maker.cause as usize];
        *sum = sum.saturating_add(bytes);
        match self.makers.iter_mut().find(|(known, _)| same(known, &maker)) {
            Some((_, held)) => *held = held.saturating_add(bytes),
            None => self.makers.push((maker, bytes)),
        }
        maker
    }

    /// Takes `bytes` back: of `cause` before others; who took exactly so much before others; the
    /// latest before others. `tell` hears of each maker that gives some up.
    pub fn give_back(
        &mut self,
        bytes: u64,
        cause: Option<Cause>,
        mut tell: impl FnMut(&Maker, u64),
    ) {
        let mut left = bytes;
        while left > 0 {
            let rank = |maker: &Maker, held: u64| (Some(maker.cause) == cause, held == left);
            let best = self
                .makers
                .iter()
                .enumerate()
                .max_by_key(|(at, (maker, held))| (rank(maker, *held), *at));
            let Some((at, &(maker, held))) = best else { return };
            let given = held.min(left);
            left -= given;
            self.take(at, given);
            tell(&maker, given);
        }
    }

    /// A context is gone, and all that was taken in it.
    pub fn context_ended(&mut self, context: ContextId, mut tell: impl FnMut(&Maker, u64)) {
        while let Some(at) = self.makers.iter().position(|(maker, _)| maker.context == context) {
            let (maker, held) = self.makers[at];
            self.take(at, held);
            tell(&maker, held);
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

    pub fn makers(&self) -> impl Iterator<Item = &(Maker, u64)> {
        self.makers.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Calls = Calls(0);

    fn maker(cause: Cause, context: u16) -> Maker {
        Maker { context: ContextId(context), ..Maker::unnamed(cause) }
    }

    #[test]
    fn what_shows_after_a_call_is_its_own() {
        let mut account = Account::default();
        assert_eq!(account.settle(0, Some(Doing::Loading), NONE, true), Showed::Nothing);
        assert_eq!(account.settle(6, Some(Doing::Loading), NONE, true), Showed::ByCall(6));
        account.add(maker(Cause::Modules, 1), 6);
        assert_eq!(account.settle(6, Some(Doing::Streams), NONE, true), Showed::Nothing);
        assert_eq!(account.settle(8, Some(Doing::Streams), NONE, true), Showed::ByCall(2));
    }

    #[test]
    fn what_shows_after_no_call_is_unknown_and_never_named_later() {
        let mut account = Account::default();
        assert_eq!(account.settle(10, None, NONE, true), Showed::Nothing);
        assert_eq!(account.settle(12, Some(Doing::Launching), NONE, true), Showed::ByCall(2));
        account.add(maker(Cause::Modules, 1), 2);
        // The unknown goes first.
        assert_eq!(account.settle(2, None, NONE, true), Showed::Nothing);
        assert_eq!(account.settle(1, None, NONE, true), Showed::Less(1));
    }

    #[test]
    fn calls_at_once_are_told_as_what_they_have_in_common() {
        let loading = NONE.with(Doing::Loading);
        let mut account = Account::default();
        // A look of somebody's while a call is under way leaves it to the call.
        assert_eq!(account.settle(4, None, loading, true), Showed::Nothing);
        assert_eq!(account.settle(4, Some(Doing::Loading), NONE, true), Showed::ByCall(4));
        let some = account.settle(5, Some(Doing::Loading), loading, true);
        assert_eq!(some, Showed::BySome(Cause::Modules, 1));
        let some = account.settle(7, Some(Doing::Streams), loading, true);
        assert_eq!(some, Showed::BySome(Cause::Other, 2));
        let launching = NONE.with(Doing::Launching);
        let some = account.settle(9, Some(Doing::Launching), launching, true);
        assert_eq!(some, Showed::BySome(Cause::Other, 2), "code or local memory");
    }

    #[test]
    fn what_waits_is_told_by_the_next_reading() {
        let mut account = Account::default();
        account.wait(Doing::Streams);
        assert_eq!(account.settle(2, None, NONE, true), Showed::BySome(Cause::Streams, 2));
        account.wait(Doing::Streams);
        account.wait(Doing::Loading);
        assert_eq!(account.settle(4, None, NONE, true), Showed::BySome(Cause::Other, 2));
        account.wait(Doing::Streams);
        let some = account.settle(6, Some(Doing::Sharing), NONE, true);
        assert_eq!(some, Showed::BySome(Cause::Other, 2));
        // An allocation under way hid some of it.
        assert_eq!(account.settle(6, Some(Doing::Loading), NONE, false), Showed::Nothing);
        assert_eq!(account.settle(8, None, NONE, true), Showed::BySome(Cause::Modules, 2));
        assert_eq!(account.settle(10, None, NONE, true), Showed::Nothing);
    }

    #[test]
    fn a_call_gives_its_own_back_and_nothing_goes_below_zero() {
        let mut account = Account::default();
        account.settle(20, None, NONE, true);
        for (cause, bytes) in [(Cause::Modules, 4), (Cause::Streams, 2), (Cause::Modules, 6)] {
            let name = bytes as u32;
            account.add(Maker { name, ..maker(cause, 1) }, bytes);
        }
        // 8 are unknown; the unload gives back a module all the same.
        assert_eq!(account.settle(16, Some(Doing::Loading), NONE, true), Showed::Less(4));
        let mut told = Vec::new();
        account.give_back(4, Some(Cause::Modules), |maker, bytes| told.push((maker.name, bytes)));
        assert_eq!(told, [(4, 4)], "who took exactly so much");
        account.give_back(100, Some(Cause::Modules), |maker, bytes| told.push((maker.name, bytes)));
        assert_eq!(told, [(4, 4), (6, 6), (2, 2)]);
        assert_eq!((account.of(Cause::Modules), account.named()), (0, 0));
        assert_eq!(account.makers().count(), 0);
    }

    #[test]
    fn with_a_context_goes_what_was_taken_in_it() {
        let mut account = Account::default();
        account.add(maker(Cause::Modules, 1), 4);
        account.add(maker(Cause::LocalMemory, 2), 8);
        account.add(maker(Cause::Streams, 1), 2);
        let mut gone = 0;
        account.context_ended(ContextId(1), |_, bytes| gone += bytes);
        assert_eq!((gone, account.named()), (6, 8));
    }

    #[test]
    fn many_makers_share_a_line() {
        let mut account = Account::default();
        for name in 0..2 * MOST as u32 {
            account.add(Maker { name, ..maker(Cause::Modules, 1) }, 1);
        }
        assert_eq!(account.of(Cause::Modules), 2 * MOST as u64);
        assert!(account.makers().count() <= MOST + 1);
    }
}
