//! One device's refusals since its last granted request, to decide whether the program survives them.
//! Only arithmetic on times.

use vramtrace_format::{OomEvidence, PostMortem};

/// The last refused request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    pub time_ns: u64,
    /// A number that identifies the thread.
    pub thread: usize,
    /// Bytes requested of the driver for it: a framework requests whole segments.
    pub whole: u64,
    /// Bytes of the device that were allocated; where it has pools, the number of its allocations and frees.
    pub changes: u64,
    /// The refused call takes no memory for the program.
    pub other_call: bool,
    /// `by` is `None`: the framework gave up without a refusal.
    pub event: PostMortem,
}

/// A program that is refused again after this time, with nothing granted in between, is out of memory.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// How long before a framework gives up its refused request to the driver may have been: it empties its
/// cache in between.
const BEFORE_NS: u64 = 1_000_000_000;

/// A reading of the card also serves the next burst within this time, or within a multiple of its
/// duration. A library that is refused, allocates less, frees it and tries again makes each request a
/// burst.
const FRESH_NS: u64 = 200_000;
const FRESH_SHARE: u64 = 10;

/// NVML's figures of the card at the first refusal of a burst.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardReading {
    pub driver_free: Option<u64>,
    /// What this process held beside its pools: what it frees since then is free on the card.
    pub held: u64,
    /// Other processes and their bytes. `None`: not read, since it was not the driver that refused.
    pub neighbours: Option<Vec<(u32, Option<u64>)>>,
    pub began_ns: u64,
    pub duration_ns: u64,
}

impl CardReading {
    fn is_fresh(&self, now_ns: u64) -> bool {
        let age = now_ns.saturating_sub(self.began_ns + self.duration_ns);
        age < FRESH_NS.max(self.duration_ns.saturating_mul(FRESH_SHARE))
    }
}

#[derive(Debug, Default)]
pub struct Burst {
    card: Option<CardReading>,
    /// Whether `card` was read for this burst, or taken from the one before.
    card_is_read: bool,
    last: Option<Refusal>,
    first_ns: u64,
    /// Refusals since the last granted request.
    run: u64,
    /// These were reported already.
    reported: bool,
    /// Refusals that the program survived, since the last post-mortem.
    absorbed: u64,
}

impl Burst {
    /// Ends the burst, because a request was granted: the program has survived these refusals.
    fn absorb(&mut self) {
        self.absorbed = self.absorbed.saturating_add(self.run);
        let card = self.card.take();
        *self = Burst { absorbed: self.absorbed, card, ..Burst::default() };
    }

    /// Called before each refusal. `given`: a request on the device was granted since the last one.
    /// Returns the driver's free bytes as read for this burst or shortly before it, with what was freed since. `None`: the
    /// card must be read, with its other processes if the driver refused (`by_driver`). `held`: as in [`CardReading`].
    pub fn begin(
        &mut self,
        given: bool,
        now_ns: u64,
        by_driver: bool,
        held: u64,
    ) -> Option<Option<u64>> {
        if given {
            self.absorb();
        }
        let known = self.card.as_ref()?;
        let suffices = known.is_fresh(now_ns) && (known.neighbours.is_some() || !by_driver);
        self.card_is_read |= suffices;
        let now = |free: u64| free.saturating_add(known.held).saturating_sub(held);
        self.card_is_read.then_some(known.driver_free.map(now))
    }

    /// Stores a reading. Returns the one that it replaces.
    pub fn see(&mut self, card: CardReading) -> Option<CardReading> {
        self.card_is_read = true;
        self.card.replace(card)
    }

    pub fn is_reported(&self) -> bool {
        self.reported
    }

    /// The other processes on the card, as they were read for this burst.
    pub fn neighbours(&self) -> Vec<(u32, Option<u64>)> {
        let card = self.card.as_ref().filter(|_| self.card_is_read);
        card.and_then(|card| card.neighbours.clone()).unwrap_or_default()
    }

    /// Notes a refusal. True: the program has been refused for too long.
    pub fn refused(&mut self, refusal: Refusal) -> bool {
        if self.run == 0 {
            self.first_ns = refusal.time_ns;
        }
        self.run += 1;
        self.last = Some(refusal);
        !self.reported && refusal.time_ns.saturating_sub(self.first_ns) >= PATIENCE_NS
    }

    /// A framework gave up on `requested`. Finds the refusal of its request, if there was one.
    pub fn gave_up(&mut self, requested: Refusal, given: bool) -> Refusal {
        let by_driver = self.last.filter(|last| {
            last.thread == requested.thread
                && requested.time_ns.saturating_sub(last.time_ns) < BEFORE_NS
                // Another thread may have been granted a request meanwhile.
                && (!given || last.event.size >= requested.event.size)
        });
        if by_driver.is_none() && given {
            self.absorb();
        }
        let mut known = requested;
        if let Some(last) = by_driver {
            let PostMortem { by, counted, limit, .. } = last.event;
            known.event = PostMortem { by, counted, limit, ..known.event };
            known.whole = last.whole;
        }
        self.run = self.run.max(1);
        self.last = Some(known);
        known
    }

    /// At the process's end: the refusal that is to be reported, if there is one.
    pub fn at_exit(&self, given: bool) -> Option<Refusal> {
        self.last.filter(|_| !given && !self.reported)
    }

    /// Marks these refusals as reported. Returns this one with those that were absorbed before.
    pub fn report(&mut self, refusal: Refusal, evidence: OomEvidence) -> Refusal {
        self.reported = true;
        let absorbed = std::mem::take(&mut self.absorbed);
        Refusal { event: PostMortem { evidence, absorbed, ..refusal.event }, ..refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::RefusedBy;

    const SECOND: u64 = 1_000_000_000;

    fn refused(burst: &mut Burst, time_ns: u64, given: bool) -> bool {
        burst.begin(given, time_ns, false, 0);
        burst.refused(refusal(time_ns))
    }

    fn refusal(time_ns: u64) -> Refusal {
        Refusal {
            time_ns,
            thread: 1,
            whole: 100,
            changes: 0,
            other_call: false,
            event: PostMortem {
                by: Some(RefusedBy::Cap),
                size: 100,
                counted: 950,
                limit: 1000,
                ..PostMortem::default()
            },
        }
    }

    /// What a framework asks for that no call is known to have refused.
    fn unrefused(time_ns: u64, size: u64) -> Refusal {
        let known = refusal(time_ns);
        let event = PostMortem { by: None, counted: 0, limit: 0, size, ..known.event };
        Refusal { whole: size, event, ..known }
    }

    fn report(burst: &mut Burst) -> u64 {
        burst.report(refusal(0), OomEvidence::StillRefused).event.absorbed
    }

    #[test]
    fn what_the_program_lives_with_is_counted() {
        let mut burst = Burst::default();
        assert!(!refused(&mut burst, 0, true));
        assert!(!refused(&mut burst, 1, false));
        assert!(!refused(&mut burst, 5 * SECOND, true), "something was given in between");
        assert_eq!(burst.at_exit(true), None);
        assert_eq!(burst.at_exit(false), Some(refusal(5 * SECOND)));
        assert_eq!(report(&mut burst), 2);
        assert_eq!(burst.at_exit(false), None, "reported");
    }

    fn card(neighbours: Option<Vec<(u32, Option<u64>)>>) -> CardReading {
        CardReading {
            driver_free: Some(5),
            held: 3,
            neighbours,
            began_ns: SECOND,
            duration_ns: 9_000,
        }
    }

    #[test]
    fn the_card_is_read_once_a_burst() {
        let mut burst = Burst::default();
        assert_eq!(burst.begin(true, SECOND, true, 0), None);
        burst.see(card(Some(vec![(7, None)])));
        burst.refused(refusal(SECOND));
        assert_eq!(burst.begin(false, 3 * SECOND, true, 3), Some(Some(5)), "of this burst");
        assert_eq!(burst.begin(false, 3 * SECOND, true, 1), Some(Some(7)), "and 2 were freed");
        assert_eq!(burst.neighbours(), [(7, None)]);
        assert_eq!(burst.begin(true, 3 * SECOND, true, 0), None, "another burst");
        assert_eq!(burst.neighbours(), [], "they were read long before it");
    }

    #[test]
    fn the_next_burst_takes_over_a_fresh_reading() {
        let soon = SECOND + 9_000 + FRESH_NS;
        for (neighbours, now_ns, by_driver, known) in [
            (Some(vec![]), soon - 1, true, true),
            (Some(vec![]), soon, true, false),
            (None, soon - 1, false, true),
            // The driver refuses now: who else is on the card was not queried.
            (None, soon - 1, true, false),
        ] {
            let mut burst = Burst::default();
            burst.begin(true, SECOND, by_driver, 3);
            burst.see(card(neighbours));
            burst.refused(refusal(SECOND));
            let free = burst.begin(true, now_ns, by_driver, 3);
            assert_eq!(free, known.then_some(Some(5)), "{now_ns} {by_driver}");
        }
        let mut slow = Burst::default();
        slow.see(CardReading { duration_ns: SECOND, ..card(None) });
        assert_eq!(
            slow.begin(true, 11 * SECOND, false, 3),
            Some(Some(5)),
            "a reading takes a second"
        );
    }

    #[test]
    fn a_second_without_anything() {
        let mut burst = Burst::default();
        assert!(!refused(&mut burst, SECOND, true));
        assert!(!refused(&mut burst, 2 * SECOND - 1, false));
        assert!(refused(&mut burst, 2 * SECOND, false));
        assert!(refused(&mut burst, 2 * SECOND + 1, false), "until it is reported");
        report(&mut burst);
        assert!(!refused(&mut burst, 9 * SECOND, false));
        assert!(!refused(&mut burst, 10 * SECOND, true), "another burst begins");
        assert!(refused(&mut burst, 11 * SECOND, false));
        assert_eq!(report(&mut burst), 5);
    }

    #[test]
    fn who_refused_what_a_framework_gives_up() {
        let mut burst = Burst::default();
        refused(&mut burst, SECOND, true);
        let known = burst.gave_up(unrefused(SECOND + 5, 90), false);
        assert_eq!((known.event.by, known.event.counted), (Some(RefusedBy::Cap), 950));
        assert_eq!((known.event.size, known.whole), (90, 100));
        // Of another thread, or long ago, or smaller with something given since: not this one.
        for (thread, time_ns, given, size) in
            [(2, SECOND + 5, false, 1), (1, 3 * SECOND, false, 1), (1, SECOND + 5, true, 101)]
        {
            let mut burst = Burst::default();
            refused(&mut burst, SECOND, true);
            let known = burst.gave_up(Refusal { thread, ..unrefused(time_ns, size) }, given);
            assert_eq!(known.event.by, None);
        }
        let mut other = Burst::default();
        refused(&mut other, SECOND, true);
        let known = other.gave_up(unrefused(SECOND + 5, 100), true);
        assert_eq!(known.event.by, Some(RefusedBy::Cap), "another thread was given something");
    }

    #[test]
    fn one_that_was_not_reported_is_reported_at_the_exit() {
        let mut burst = Burst::default();
        let requested = unrefused(SECOND, 100);
        burst.gave_up(requested, true);
        assert_eq!(burst.at_exit(false), Some(requested));
        assert_eq!(burst.at_exit(true), None);
    }
}
