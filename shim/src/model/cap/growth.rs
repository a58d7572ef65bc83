//! Memory that an allocator of the driver reserves in steps: a pool, or the graph memory of a device.
//! Its reserved bytes are charged. A request is expected to grow the reserve by the bytes that the free
//! part cannot serve.
//!
//! Sizes are requested sizes. A block occupies a multiple of 512 B, and that must fit. But the driver's
//! figure of a pool's used bytes is the sum of requested sizes (measured on an H200, driver 580). It is
//! lower than the occupied bytes: a request judged by it could make the pool grow beyond the cap.

mod state;

use super::budget::{Budget, Refusal};
use crate::runtime::lock::{Guard, Lock};
pub use state::{Change, Reading, Ticket};
use state::{State, block, padding};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

/// The fields that each call changes are on two cache lines, which the processor fetches together.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Growth {
    /// [`State::begun`], for a look without the lock.
    begun: AtomicU64,
    /// Occupied bytes of live blocks by the ledger, and the part of them that rounding added to the
    /// requested sizes. They change without the lock.
    counted: AtomicI64,
    padding: AtomicI64,
    /// [`State::reserved`], for a look without the lock.
    reserved: AtomicU64,
    state: Lock<State>,
    /// Time of the last reading that was made since it was due.
    looked_ns: AtomicU64,
}

/// Least time between two readings of what is not known to have grown.
const LOOK_EVERY_NS: u64 = 1_000_000;

impl Growth {
    /// Reserves the growth that a request of `size` bytes may cause. Must be followed by
    /// [`Growth::finish`] with the same size. The ticket is one for [`Growth::ticket_after`].
    #[inline(always)]
    pub fn ask(&self, budget: &Budget, size: u64) -> Result<Ticket, Refusal> {
        self.ask_from(self.lock(), budget, size, State::used)
    }

    /// As `ask`, after the figures were read again: if the driver's used bytes are below the ledger's,
    /// the driver's are used.
    pub fn ask_again(&self, budget: &Budget, size: u64) -> Result<Ticket, Refusal> {
        let used = |state: &State| state.used().min(state.used_in_driver());
        self.ask_from(self.lock(), budget, size, used)
    }

    /// As `ask`, for memory whose blocks only the driver knows: graphs'.
    pub fn ask_by_driver(&self, budget: &Budget, size: u64) -> Result<Ticket, Refusal> {
        self.ask_from(self.lock(), budget, size, State::used_in_driver)
    }

    /// As `ask`, whatever the limit: where the cap only warns.
    pub fn ask_anyway(&self, budget: &Budget, size: u64) -> Ticket {
        let mut state = self.lock();
        let size = block(size);
        let wanted = state.wanted(state.used(), size);
        let more = state.short_of(wanted).saturating_sub(state.pending);
        budget.take_anyway(more);
        state.pending += more;
        self.begin(&mut state, size, wanted)
    }

    #[inline(always)]
    fn ask_from(
        &self,
        mut state: Guard<'_, State>,
        budget: &Budget,
        size: u64,
        used: impl FnOnce(&State) -> u64,
    ) -> Result<Ticket, Refusal> {
        let size = block(size);
        let wanted = state.wanted(used(&state), size);
        if wanted > state.reserved {
            state.take_more(budget, wanted)?;
        }
        Ok(self.begin(&mut state, size, wanted))
    }

    /// A request enters the driver, after which `wanted` bytes may be in use.
    #[inline]
    fn begin(&self, state: &mut State, size: u64, wanted: u64) -> Ticket {
        let began = state.begin(size, wanted);
        // Before the driver's call, which is ordered with those of others.
        self.begun.store(began, Ordering::Release);
        Ticket(began)
    }

    /// The call returned; `got`: with memory. Without a reading (none is permitted during a capture)
    /// the growth that was reserved counts as happened. `report` is called with a change of reserved
    /// bytes, under the lock.
    #[inline(always)]
    pub fn finish(
        &self,
        budget: &Budget,
        size: u64,
        got: bool,
        reading: Option<(Ticket, Reading)>,
        report: impl FnOnce(Change),
    ) {
        let mut state = self.lock();
        let before = (state.reserved, state.charged());
        state.in_flight = state.in_flight.saturating_sub(block(size));
        if got {
            self.count(size, 1);
            self.note(&mut state);
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
        self.settle(state, budget, before, report);
    }

    /// After a change of the figures; `before`: the reserved and the charged bytes before it.
    #[inline(always)]
    fn settle(
        &self,
        state: Guard<'_, State>,
        budget: &Budget,
        before: (u64, i64),
        report: impl FnOnce(Change),
    ) {
        // Nothing is promised beyond what is reserved, and that is as before: there is nothing to settle.
        if state.reserved != before.0 || state.pending != 0 {
            self.settle_changed(state, budget, before, report);
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_changed(
        &self,
        mut state: Guard<'_, State>,
        budget: &Budget,
        before: (u64, i64),
        report: impl FnOnce(Change),
    ) {
        let (reserved, charged) = before;
        state.settle(charged);
        if (state.reserved, state.charged()) != before {
            state.report(budget, reserved, charged, report);
        }
        self.reserved.store(state.reserved, Ordering::Relaxed);
    }

    /// Notes a block that was allocated with no cap in force. True: the blocks do not fit into the
    /// reserve as last read, so the driver should be read.
    #[inline(always)]
    pub fn allocated(&self, size: u64) -> bool {
        self.count(size, 1) > self.reserved.load(Ordering::Relaxed) as i64
    }

    /// A block of this size was freed: its bytes are not in use any more, and stay reserved.
    #[inline(always)]
    pub fn freed(&self, size: u64) {
        self.count(size, -1);
    }

    /// Returns the occupied bytes.
    #[inline(always)]
    fn count(&self, size: u64, times: i64) -> i64 {
        if padding(size) != 0 {
            self.padding.fetch_add(times * padding(size) as i64, Ordering::Relaxed);
        }
        let more = (block(size) as i64).wrapping_mul(times);
        self.counted.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }

    /// Whether no block is live or requested. To be called after a free that may be the last: of
    /// threads that free the last blocks concurrently, at least one gets true.
    pub fn is_unused(&self) -> bool {
        fence(Ordering::SeqCst);
        let state = self.lock();
        state.used().saturating_add(state.in_flight) == 0
    }

    #[inline]
    fn lock(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        self.note(&mut state);
        state
    }

    #[inline]
    fn note(&self, state: &mut State) {
        state.counted = self.counted.load(Ordering::Relaxed);
        state.padding = self.padding.load(Ordering::Relaxed);
    }

    /// True from time to time: the caller then reads the figures.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        now_ns >= last.wrapping_add(LOOK_EVERY_NS)
            && self.looked_ns.compare_exchange(last, now_ns, order, order).is_ok()
    }

    pub fn ticket(&self) -> Ticket {
        self.begin_reading(|state| state.used().min(state.used_in_driver()))
    }

    /// The ticket for a reading after a request whose question gave `asked`. If nobody has asked or begun to read since then,
    /// its question has noted all that a ticket would: one lock less. Must follow a sequentially consistent step after the
    /// driver's call, and come before the reading: then who does not see the other's begin is read by the other.
    #[inline]
    pub fn ticket_after(&self, asked: Ticket) -> Ticket {
        if self.begun.load(Ordering::SeqCst) == asked.0 { asked } else { self.ticket() }
    }

    /// As `ticket`, for memory whose blocks only the driver knows.
    pub fn ticket_by_driver(&self) -> Ticket {
        self.begin_reading(State::used_in_driver)
    }

    fn begin_reading(&self, used: impl FnOnce(&State) -> u64) -> Ticket {
        let mut state = self.lock();
        let wanted = state.wanted(used(&state), 0);
        let began = state.begin(0, wanted);
        self.begun.store(began, Ordering::SeqCst);
        Ticket(began)
    }

    /// Applies figures that were read outside a request: after a trim, or periodically.
    pub fn observe(
        &self,
        budget: &Budget,
        ticket: Ticket,
        reading: Reading,
        report: impl FnOnce(Change),
    ) {
        let mut state = self.lock();
        let before = (state.reserved, state.charged());
        state.apply(ticket, reading);
        self.settle(state, budget, before, report);
    }

    /// (reserved, used) as known; `used` is that of the blocks counted here.
    pub fn known(&self) -> (u64, u64) {
        let state = self.lock();
        (state.reserved, state.used())
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
