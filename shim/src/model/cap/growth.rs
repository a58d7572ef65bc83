//! Memory that an allocator of the driver reserves in steps: a pool, or the graph memory of a device.
//! Its reserved bytes are charged. A request is expected to grow the reserve by the bytes that the free
//! part cannot serve.
//!
//! Sizes are requested sizes. A block occupies a multiple of 512 B, and that must fit. But the driver's
//! figure of a pool's used bytes is the sum of requested sizes (measured on an H200, driver 580). It is
//! lower than the occupied bytes: a request judged by it could make the pool grow beyond the cap.

use super::budget::{Budget, Refusal};
use super::most_in_use::MostInUse;
use crate::runtime::lock::{Guard, Lock};
use crate::runtime::sharded_counter::ShardedCounter;
use std::sync::atomic::{Ordering, fence};
use vramtrace_format::physical::{GRAIN, POOL_STEP, round_up};

/// The fields that each call changes are on two cache lines, which the processor fetches together.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Growth {
    state: Lock<State>,
    /// Used bytes, and the part added by rounding, while no cap is in force; changed without a lock.
    /// Under a cap it is closed, and `State` has everything.
    striped: ShardedCounter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[repr(C)]
pub(super) struct State {
    /// Reserved bytes as last read from the driver; charged.
    reserved: u64,
    /// Occupied bytes of live blocks by the ledger, and the part of them that rounding added to the
    /// requested sizes.
    booked: i64,
    padding: i64,
    /// The part of both that is in the cells, as last read. In closed cells it changes no more, but for
    /// threads that were adding when they were closed: those are read at each `RARELY`th lock.
    striped: (i64, i64),
    locks: u8,
    /// Bytes of requests in the driver now.
    in_flight: u64,
    /// The growth that those may cause; charged. It is shared by all of them, so that one that fails
    /// does not release what another one needs.
    pending: u64,
    /// The number of read-backs started, and the latest one applied.
    asked: u64,
    applied: u64,
    /// The driver's figure of used bytes at the last reading, plus requests granted since; frees lower
    /// it only at the next reading. It does not include padding.
    driver_used: u64,
    /// The most bytes that were in use or in flight since the latest applied read-back began. The
    /// driver may have grown up to this, whatever was freed since.
    most: MostInUse,
}

const RARELY: u8 = 64;

/// Taken before the driver's figures are read. Of two readings, the one that started later is more
/// recent, whichever finishes first.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u64);

/// The driver's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub reserved: u64,
    pub used: u64,
}

/// A change of reserved bytes, for the ledger and the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub delta: i64,
    pub reserved: u64,
    pub used: u64,
}

impl State {
    fn used(&self) -> u64 {
        self.booked.max(0) as u64
    }

    /// The driver's used bytes, never too low: padding of blocks that the driver has already freed may
    /// still be included.
    fn used_in_driver(&self) -> u64 {
        self.driver_used.saturating_add(self.padding.max(0) as u64)
    }

    fn book(&mut self, size: u64) {
        self.booked = self.booked.saturating_add_unsigned(block(size));
        self.padding = self.padding.saturating_add_unsigned(padding(size));
    }

    /// The cells as they are now.
    fn note(&mut self, striped: (i64, i64)) {
        self.booked = self.booked.wrapping_add(striped.0.wrapping_sub(self.striped.0));
        self.padding = self.padding.wrapping_add(striped.1.wrapping_sub(self.striped.1));
        self.striped = striped;
    }

    fn wanted(&self, used: u64, more: u64) -> u64 {
        used.saturating_add(self.in_flight).saturating_add(more)
    }

    /// The growth needed to hold `bytes`.
    fn short_of(&self, bytes: u64) -> u64 {
        round_up(bytes.saturating_sub(self.reserved), POOL_STEP)
    }

    /// Notes that a request enters the driver, after which `wanted` bytes may be in use.
    fn begin(&mut self, size: u64, wanted: u64) {
        self.in_flight = self.in_flight.saturating_add(size);
        self.most.note(self.asked, wanted);
    }

    /// Keeps reserved what requests in flight may still need or have used already, up to what was
    /// charged before: also if the driver released memory in between, or blocks were freed.
    fn settle(&mut self, charged: i64) {
        let needed = if self.in_flight == 0 { 0 } else { self.short_of(self.most.get()) };
        let left = (charged.max(0) as u64).saturating_sub(self.reserved);
        self.pending = needed.min(left);
    }

    fn charged(&self) -> i64 {
        self.reserved.saturating_add(self.pending) as i64
    }

    fn apply(&mut self, ticket: Ticket, reading: Reading) {
        if ticket.0 > self.applied {
            self.applied = ticket.0;
            self.most.forget_before(ticket.0);
            self.reserved = reading.reserved;
            self.driver_used = reading.used;
        }
    }

    /// Charges and reports the difference. Under the lock, so that the file has the changes of one
    /// allocator in their order.
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
        // A decrease is reported before it is released to others, an increase after it was charged: so
        // the file never shows more than was counted.
        if delta < 0 {
            tell(change);
            charge_budget(budget, charge);
        } else {
            charge_budget(budget, charge);
            if delta > 0 {
                tell(change);
            }
        }
    }
}

/// The bytes that a block of this requested size occupies.
fn block(size: u64) -> u64 {
    round_up(size, GRAIN)
}

/// The part of them that rounding adds.
fn padding(size: u64) -> u64 {
    block(size).saturating_sub(size)
}

/// Adds to the device's count; does nothing for the unknown device, which has no budget.
fn charge_budget(budget: Option<&Budget>, charge: i64) {
    if let Some(budget) = budget {
        budget.charge(charge);
    }
}

impl Growth {
    /// Reserves the growth that a request of `size` bytes may cause. Must be followed by
    /// [`Growth::finish`] with the same size.
    pub fn ask(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        if self.striped.is_open() {
            self.striped.close();
        }
        self.ask_from(budget, size, State::used)
    }

    /// As `ask`, after the figures were read again: if the driver's used bytes are below the ledger's,
    /// the driver's are used.
    pub fn ask_again(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        drop(self.lock_exactly());
        self.ask_from(budget, size, |state: &State| state.used().min(state.used_in_driver()))
    }

    /// As `ask`, for memory whose blocks only the driver knows: graphs'.
    pub fn ask_by_driver(&self, budget: Option<&Budget>, size: u64) -> Result<(), Refusal> {
        self.ask_from(budget, size, State::used_in_driver)
    }

    /// As `ask`, whatever the limit: where the cap only warns.
    pub fn ask_anyway(&self, budget: &Budget, size: u64) {
        let mut state = self.lock();
        let size = block(size);
        let wanted = state.wanted(state.used(), size);
        let more = state.short_of(wanted).saturating_sub(state.pending);
        budget.take_anyway(more);
        state.pending += more;
        state.begin(size, wanted);
    }

    fn ask_from(
        &self,
        budget: Option<&Budget>,
        size: u64,
        used: impl FnOnce(&State) -> u64,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let size = block(size);
        let wanted = state.wanted(used(&state), size);
        let more = state.short_of(wanted).saturating_sub(state.pending);
        if more > 0 {
            if let Some(budget) = budget {
                budget.try_take(more)?;
            }
            state.pending += more;
        }
        state.begin(size, wanted);
        Ok(())
    }

    /// The call returned; `got`: with memory. Without a reading (none is permitted during a capture)
    /// the growth that was reserved counts as happened. `tell` is called with a change of reserved
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
        state.in_flight = state.in_flight.saturating_sub(block(size));
        if got {
            state.book(size);
            state.driver_used = state.driver_used.saturating_add(size);
        }
        match reading {
            Some((ticket, reading)) => state.apply(ticket, reading),
            None if got => {
                let grown = state.short_of(state.most.get()).min(state.pending);
                state.reserved += grown;
                state.pending -= grown;
            }
            None => {}
        }
        state.settle(charged);
        state.tell(budget, reserved, charged, tell);
        self.share(&state);
    }

    /// Notes a block that was allocated with no cap in force. True: the blocks do not fit into the
    /// reserve as last read, so the driver should be read. (Of two threads at once, a later call may
    /// return it.)
    #[inline]
    pub fn took(&self, size: u64) -> bool {
        match self.striped.add_within(block(size) as i64, padding(size) as i64) {
            Some(false) => false,
            taken => self.exhausted(if taken.is_some() { 0 } else { size }),
        }
    }

    #[cold]
    fn exhausted(&self, size: u64) -> bool {
        let mut state = self.lock();
        state.book(size);
        self.share(&state);
        state.used() > state.reserved
    }

    /// Divides the free part of the reserve between the threads.
    fn share(&self, state: &State) {
        self.striped.share(state.reserved.saturating_sub(state.used()));
    }

    /// A block of this size was freed: its bytes are not in use any more, and stay reserved.
    #[inline]
    pub fn freed(&self, size: u64) {
        if !self.striped.add(-(block(size) as i64), -(padding(size) as i64)) {
            let mut state = self.lock();
            state.booked = state.booked.saturating_sub_unsigned(block(size));
            state.padding = state.padding.saturating_sub_unsigned(padding(size));
        }
    }

    /// Whether no block is live or requested. To be called after a free that may be the last: of
    /// threads that free the last blocks concurrently, at least one gets true.
    pub fn is_unused(&self) -> bool {
        fence(Ordering::SeqCst);
        let state = self.lock_exactly();
        state.used().saturating_add(state.in_flight) == 0
    }

    #[inline]
    fn lock(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        state.locks = state.locks.wrapping_add(1);
        if self.striped.is_open() || state.locks.is_multiple_of(RARELY) {
            state.note(self.striped.sums());
        }
        state
    }

    #[cold]
    fn lock_exactly(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        state.note(self.striped.sums());
        state
    }

    pub fn ticket(&self) -> Ticket {
        self.begin_reading(|state| state.used().min(state.used_in_driver()))
    }

    /// As `ticket`, for memory whose blocks only the driver knows.
    pub fn ticket_by_driver(&self) -> Ticket {
        self.begin_reading(State::used_in_driver)
    }

    fn begin_reading(&self, used: impl FnOnce(&State) -> u64) -> Ticket {
        let mut state = self.lock();
        state.asked += 1;
        let wanted = state.wanted(used(&state), 0);
        let began = state.asked;
        state.most.note(began, wanted);
        Ticket(began)
    }

    /// Applies figures that were read outside a request: after a trim, or periodically.
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

    /// (reserved, used) as known; `used` is that of the blocks counted here.
    pub fn known(&self) -> (u64, u64) {
        let state = self.lock_exactly();
        (state.reserved, state.used())
    }
}

#[cfg(test)]
mod schedules;

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
        let mut reported = None;
        pool.finish(Some(&budget), 1000, true, read(&pool, 32 * MIB, 1000), |c| reported = Some(c));
        let grown = Change { delta: 32 * MIB as i64, reserved: 32 * MIB, used: 1024 };
        assert_eq!(reported, Some(grown));
        assert_eq!(budget.counted(), 32 * MIB);
        pool.ask(Some(&budget), 100 * MIB).unwrap();
        assert_eq!(budget.counted(), 128 * MIB);
        pool.finish(Some(&budget), 100 * MIB, false, None, |_| ());
        assert_eq!(budget.counted(), 32 * MIB);
    }

    /// A cap that came while the program ran costs what one from its start costs: the cells of the time
    /// without a cap are seldom read.
    #[test]
    fn under_a_cap_that_came_later_blocks_are_counted_as_under_any() {
        let (budget, pool) = (capped(1 << 30), Growth::default());
        for _ in 0..10 {
            pool.took(MIB + 1);
        }
        for _ in 0..1000 {
            pool.ask(Some(&budget), MIB).unwrap();
            pool.finish(Some(&budget), MIB, true, read(&pool, 32 * MIB, MIB), |_| ());
            pool.freed(MIB);
        }
        let readings = pool.striped.readings.load(Ordering::Relaxed);
        assert!(readings < 100, "{readings}");
        assert_eq!(pool.known().1, 10 * (MIB + 512));
        for _ in 0..10 {
            pool.freed(MIB + 1);
        }
        assert!(pool.is_unused());
        // The cap is taken away, and comes again.
        for _ in 0..10 {
            pool.took(MIB);
        }
        assert!(pool.striped.is_open());
        pool.freed(MIB);
        pool.ask(Some(&budget), MIB).unwrap();
        pool.finish(Some(&budget), MIB, true, None, |_| ());
        assert!(!pool.striped.is_open());
        assert_eq!(pool.known().1, 10 * MIB);
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

    /// Two blocks fill a step to the last byte. The driver's figure is 1022 bytes lower, and by it
    /// a third block would fit: the pool would grow past the cap.
    #[test]
    fn the_drivers_figure_without_padding_does_not_let_a_request_pass() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        let size = 16 * MIB - 511;
        for blocks in 1..=2 {
            pool.ask(Some(&budget), size).unwrap();
            let reading = read(&pool, 32 * MIB, blocks * size);
            pool.finish(Some(&budget), size, true, reading, |_| ());
        }
        let ticket = pool.ticket();
        let reading = Reading { reserved: 32 * MIB, used: 2 * size };
        pool.observe(Some(&budget), ticket, reading, |_| ());
        assert!(pool.ask(Some(&budget), 1).is_err());
        assert!(pool.ask_again(Some(&budget), 1).is_err());
        // The driver has freed one, which is not reported here yet.
        let ticket = pool.ticket();
        pool.observe(Some(&budget), ticket, Reading { reserved: 32 * MIB, used: size }, |_| ());
        assert!(pool.ask_again(Some(&budget), 1).is_ok());
    }

    #[test]
    fn padding_goes_with_its_block_whichever_thread_took_it() {
        let (budget, pool) = (capped(32 * MIB), Growth::default());
        let held = |used: u64| pool.lock().used_in_driver() - used;
        pool.took(100);
        pool.ask(Some(&budget), 513).unwrap();
        pool.finish(Some(&budget), 513, true, read(&pool, 32 * MIB, 613), |_| ());
        assert_eq!(held(613), 412 + 511);
        pool.freed(100);
        assert_eq!(held(613), 511);
        pool.freed(513);
        assert_eq!((held(613), pool.known().1), (0, 0));
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
