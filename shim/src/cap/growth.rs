//! Memory that grows in steps behind an allocator of the driver's own: a pool, or the graph memory
//! of a device. What is charged is what it reserves; a request is forecast to grow it by what it
//! cannot serve from what it holds.

use super::budget::{Budget, Refusal};
use crate::lock::{Guard, Lock};
use crate::striped::Striped;
use std::sync::atomic::{Ordering, fence};
use vramtrace_format::physical::{POOL_STEP, round_up};

#[derive(Default)]
pub struct Growth {
    state: Lock<State>,
    /// Used bytes taken and freed while no cap is in force: no lock there. Under a cap there are
    /// none, and `State::used` has all.
    striped: Striped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// As last read back from the driver; charged.
    reserved: u64,
    /// Bytes of live blocks, as the ledger knows them: those taken under a cap, and what was
    /// taken without one (as read when the lock was taken).
    booked: u64,
    striped: i64,
    /// Bytes of requests that are with the driver now.
    in_flight: u64,
    /// Growth that those may cause; charged. It belongs to all of them, so that one that fails
    /// does not take away what another one needs.
    pending: u64,
    /// Read-backs started, and the youngest one applied.
    asked: u64,
    applied: u64,
    /// The driver's own figure of used bytes when last read, and what was taken since: frees
    /// only lower it at the next reading, so it is never too low.
    driver_used: u64,
}

/// Taken before the driver is asked for the figures: of two threads that read, the one that
/// started later knows more, whichever comes back first.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u64);

/// The driver's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub reserved: u64,
    pub used: u64,
}

/// Reserved bytes that changed, for the ledger and the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub delta: i64,
    pub reserved: u64,
    pub used: u64,
}

impl State {
    fn used(&self) -> u64 {
        self.booked.saturating_add_signed(self.striped)
    }

    fn needed(&self, used: u64, more: u64) -> u64 {
        let wanted = used.saturating_add(self.in_flight).saturating_add(more);
        round_up(wanted.saturating_sub(self.reserved), POOL_STEP)
    }

    /// What requests under way may still need stays promised, out of what was charged before:
    /// also when the driver gave reserved memory back in between. It never grows beyond that.
    fn settle(&mut self, charged: i64) {
        let needed = if self.in_flight == 0 { 0 } else { self.needed(self.used(), 0) };
        let left = (charged.max(0) as u64).saturating_sub(self.reserved);
        self.pending = needed.min(left);
    }

    fn charged(&self) -> i64 {
        self.reserved.saturating_add(self.pending) as i64
    }

    fn apply(&mut self, ticket: Ticket, reading: Reading) {
        if ticket.0 > self.applied {
            self.applied = ticket.0;
            self.reserved = reading.reserved;
            self.driver_used = reading.used;
        }
    }

    /// Charges and tells what is different now. Under the lock, so that the file has the changes
    /// of one allocator in their order.
    fn tell(
        &self,
        budget: Option<&Budget>,
        reserved: u64,
        charged: i64,
        tell: impl FnOnce(Change),
    ) {
        let charge = self.charged().saturating_sub(charged);
        let delta = self.reserved as i64 - reserved as i64;
        let change = Change { delta, reserved: self.reserved, used: self.used() };
        // What is given back is told before others can take it, what is taken after it is ours:
        // so the file never shows more than was counted.
        if delta < 0 {
            tell(change);
            give(budget, charge);
        } else {
            give(budget, charge);
            if delta > 0 {
                tell(change);
            }
        }
    }
}

fn give(budget: Option<&Budget>, charge: i64) {
    if let Some(budget) = budget {
        budget.charge(charge);
    }
}

impl Growth {
    /// Promises the growth that a request of `size` bytes may cause. Must be followed by
    /// [`Growth::finish`] with the same size.
    pub fn ask(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        self.ask_from(budget, size, State::used)
    }

    /// As `ask`, after the figures were read again: where the driver knows of fewer used bytes
    /// than the ledger, the driver is right.
    pub fn ask_again(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        self.ask_from(budget, size, |state: &State| state.used().min(state.driver_used))
    }

    /// As `ask`, for memory whose blocks only the driver knows: graphs'.
    pub fn ask_by_driver(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        self.ask_from(budget, size, |state: &State| state.driver_used)
    }

    /// As `ask`, whatever the limit: where the cap only warns.
    pub fn ask_anyway(&self, budget: &Budget, size: u64) {
        let mut state = self.lock();
        let more = state.needed(state.used(), size).saturating_sub(state.pending);
        budget.take_anyway(more);
        state.pending += more;
        state.in_flight = state.in_flight.saturating_add(size);
    }

    fn ask_from(
        &self,
        budget: Option<&Budget>,
        size: u64,
        used: impl FnOnce(&State) -> u64,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let needed = state.needed(used(&state), size);
        let more = needed.saturating_sub(state.pending);
        if more > 0 {
            if let Some(budget) = budget {
                budget.try_take(more)?;
            }
            state.pending += more;
        }
        state.in_flight = state.in_flight.saturating_add(size);
        Ok(())
    }

    /// The call came back: `got` = with memory. Without a reading (none may be made during a
    /// capture) a promise that was needed counts as come true. `tell` hears of changed reserved
    /// bytes, under the lock.
    pub fn finish(
        &self,
        budget: Option<&Budget>,
        size: u64,
        got: bool,
        reading: Option<(Ticket, Reading)>,
        tell: impl FnOnce(Change),
    ) {
        let mut state = self.lock();
        let (reserved, charged) = (state.reserved, state.charged());
        state.in_flight = state.in_flight.saturating_sub(size);
        if got {
            state.booked = state.booked.saturating_add(size);
            state.driver_used = state.driver_used.saturating_add(size);
        }
        match reading {
            Some((ticket, reading)) => state.apply(ticket, reading),
            None if got => {
                let short = round_up(state.used().saturating_sub(state.reserved), POOL_STEP);
                let grown = short.min(state.pending);
                state.reserved += grown;
                state.pending -= grown;
            }
            None => {}
        }
        state.settle(charged);
        state.tell(budget, reserved, charged, tell);
        self.share(&state);
    }

    /// Memory taken with no cap in force. True: the blocks do not fit into what was last seen
    /// reserved, so the driver should be asked. (Of two threads that take at once, it may be a
    /// later call that says so.)
    #[inline]
    pub fn took(&self, size: u64) -> bool {
        match self.striped.add_within(size as i64) {
            Some(false) => false,
            taken => self.exhausted(if taken.is_some() { 0 } else { size }),
        }
    }

    #[cold]
    fn exhausted(&self, size: u64) -> bool {
        let mut state = self.lock();
        state.booked = state.booked.saturating_add(size);
        self.share(&state);
        state.used() > state.reserved
    }

    /// Shares between the threads what is reserved and not used.
    fn share(&self, state: &State) {
        self.striped.share(state.reserved.saturating_sub(state.used()));
    }

    #[inline]
    pub fn freed(&self, size: u64) {
        if !self.striped.add(-(size as i64)) {
            let mut state = self.lock();
            state.booked = state.booked.saturating_sub(size);
        }
    }

    /// Whether no block is left or asked for. To be asked after a free that may have been the
    /// last: of threads that free the last ones at once, one at least is told so.
    pub fn is_unused(&self) -> bool {
        fence(Ordering::SeqCst);
        let state = self.lock();
        state.used().saturating_add(state.in_flight) == 0
    }

    #[inline]
    fn lock(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        state.striped = self.striped.sum();
        state
    }

    pub fn ticket(&self) -> Ticket {
        let mut state = self.lock();
        state.asked += 1;
        Ticket(state.asked)
    }

    /// Figures read back outside a request: after a trim, or now and then.
    pub fn observe(
        &self,
        budget: Option<&Budget>,
        ticket: Ticket,
        reading: Reading,
        tell: impl FnOnce(Change),
    ) {
        let mut state = self.lock();
        let (reserved, charged) = (state.reserved, state.charged());
        state.apply(ticket, reading);
        state.settle(charged);
        state.tell(budget, reserved, charged, tell);
        self.share(&state);
    }

    /// (reserved, used) as known; `used` is that of the blocks booked here.
    pub fn known(&self) -> (u64, u64) {
        let state = self.lock();
        (state.reserved, state.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::physical::MIB;

    fn capped(limit: u64) -> Budget {
        let budget = Budget::default();
        budget.set_limit(Some(limit));
        budget
    }

    fn read(growth: &Growth, reserved: u64, used: u64) -> Option<(Ticket, Reading)> {
        Some((growth.ticket(), Reading { reserved, used }))
    }

    #[test]
    fn growth_goes_in_steps_of_32_mib() {
        let (budget, pool) = (capped(1 << 30), Growth::default());
        pool.ask(Some(&budget), 1000).unwrap();
        assert_eq!(budget.counted(), 32 * MIB);
        let mut told = None;
        pool.finish(Some(&budget), 1000, true, read(&pool, 32 * MIB, 1000), |c| told = Some(c));
        let grown = Change { delta: 32 * MIB as i64, reserved: 32 * MIB, used: 1000 };
        assert_eq!(told, Some(grown));
        assert_eq!(budget.counted(), 32 * MIB);
        pool.ask(Some(&budget), 100 * MIB).unwrap();
        assert_eq!(budget.counted(), 128 * MIB);
        pool.finish(Some(&budget), 100 * MIB, false, None, |_| ());
        assert_eq!(budget.counted(), 32 * MIB);
    }

    #[test]
    fn what_it_holds_is_never_refused() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        pool.ask(Some(&budget), MIB).unwrap();
        pool.finish(Some(&budget), MIB, true, read(&pool, 32 * MIB, MIB), |_| ());
        budget.charge(MIB as i64); // above the cap now
        for _ in 0..31 {
            pool.ask(Some(&budget), MIB).unwrap();
            pool.finish(Some(&budget), MIB, true, None, |_| ());
        }
        assert!(pool.ask(Some(&budget), 1).is_err());
        pool.freed(MIB);
        assert!(pool.ask(Some(&budget), MIB).is_ok());
    }

    #[test]
    fn calls_under_way_share_one_step_and_keep_it_when_one_fails() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        pool.ask(Some(&budget), MIB).unwrap();
        pool.ask(Some(&budget), MIB).unwrap();
        assert_eq!(budget.counted(), 32 * MIB);
        pool.finish(Some(&budget), MIB, false, None, |_| ());
        assert_eq!(budget.counted(), 32 * MIB, "the second still needs it");
        pool.finish(Some(&budget), MIB, true, read(&pool, 32 * MIB, MIB), |_| ());
        assert_eq!(budget.counted(), 32 * MIB);
        let ticket = pool.ticket();
        pool.observe(Some(&budget), ticket, Reading { reserved: 0, used: 0 }, |_| ());
        assert_eq!(budget.counted(), 0);
    }

    #[test]
    fn memory_given_back_meanwhile_stays_promised_to_who_needs_it() {
        let (budget, pool) = (capped(64 * MIB), Growth::default());
        pool.ask(Some(&budget), 40 * MIB).unwrap();
        let reading = read(&pool, 64 * MIB, 40 * MIB);
        pool.finish(Some(&budget), 40 * MIB, true, reading, |_| ());
        pool.freed(40 * MIB);
        // Forecast to be served from what is held; then a synchronisation takes that away.
        pool.ask(Some(&budget), 20 * MIB).unwrap();
        let ticket = pool.ticket();
        pool.observe(Some(&budget), ticket, Reading { reserved: 0, used: 0 }, |_| ());
        assert_eq!(budget.counted(), 32 * MIB);
        assert!(budget.try_take(33 * MIB).is_err());
        pool.finish(Some(&budget), 20 * MIB, true, read(&pool, 32 * MIB, 20 * MIB), |_| ());
        assert_eq!(budget.counted(), 32 * MIB);
    }

    #[test]
    fn an_older_reading_does_not_undo_a_younger_one() {
        let (budget, pool) = (capped(1 << 30), Growth::default());
        let (old, young) = (pool.ticket(), pool.ticket());
        pool.observe(Some(&budget), young, Reading { reserved: 64 * MIB, used: 0 }, |_| ());
        pool.observe(Some(&budget), old, Reading { reserved: 32 * MIB, used: 0 }, |_| ());
        assert_eq!((pool.known().0, budget.counted()), (64 * MIB, 64 * MIB));
    }

    #[test]
    fn a_low_forecast_is_charged_when_seen() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        pool.ask(Some(&budget), MIB).unwrap();
        pool.finish(Some(&budget), MIB, true, read(&pool, 64 * MIB, MIB), |_| ());
        assert_eq!(budget.counted(), 64 * MIB);
        assert!(budget.try_take(0).is_err());
    }

    #[test]
    fn when_the_driver_knows_of_fewer_used_bytes_it_is_believed_before_a_refusal() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        pool.ask(Some(&budget), 32 * MIB).unwrap();
        pool.finish(Some(&budget), 32 * MIB, true, read(&pool, 32 * MIB, 32 * MIB), |_| ());
        assert!(pool.ask(Some(&budget), MIB).is_err());
        let ticket = pool.ticket();
        pool.observe(Some(&budget), ticket, Reading { reserved: 32 * MIB, used: 8 * MIB }, |_| ());
        assert!(pool.ask_again(Some(&budget), MIB).is_ok());
    }

    #[test]
    fn threads_lose_nothing() {
        let (budget, pool) = (capped(96 * MIB), Growth::default());
        let refused = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let (budget, pool, refused) = (&budget, &pool, &refused);
                scope.spawn(move || {
                    for turn in 0..20_000u64 {
                        let size = ((turn * 7 + thread) % 20 + 1) * MIB;
                        match pool.ask(Some(budget), size) {
                            Err(_) => {
                                refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            }
                            Ok(()) => {
                                assert!(budget.counted() <= 96 * MIB);
                                let got = turn % 5 != 0;
                                pool.finish(Some(budget), size, got, None, |_| ());
                                if got {
                                    pool.freed(size);
                                }
                            }
                        }
                    }
                });
            }
        });
        let ticket = pool.ticket();
        pool.observe(Some(&budget), ticket, Reading { reserved: 0, used: 0 }, |_| ());
        assert_eq!((pool.known(), budget.counted()), ((0, 0), 0));
    }
}
