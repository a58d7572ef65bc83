//! The figures of one allocator of the driver, the forecast of its growth, and what of it is charged. The
//! caller holds the lock: see [`super::Growth`].

use crate::model::cap::budget::{Budget, Refusal};
use crate::model::cap::most_in_use::MostInUse;
use vramtrace_format::physical::{GRAIN, POOL_STEP, round_up};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[repr(C)]
pub(in crate::model::cap) struct State {
    /// Reserved bytes as last read from the driver; charged.
    pub(super) reserved: u64,
    /// As they were when the lock was taken: see [`super::Growth`].
    pub(super) counted: i64,
    pub(super) padding: i64,
    /// Bytes of requests in the driver now.
    pub(super) in_flight: u64,
    /// The growth that those may cause; charged. It is shared by all of them, so that one that fails
    /// does not release what another one needs.
    pub(super) pending: u64,
    /// The number of requests and read-backs that have begun, and the latest one whose figures were applied.
    pub(super) begun: u64,
    pub(super) applied: u64,
    /// The driver's figure of used bytes at the last reading that has one, plus requests granted since;
    /// frees lower it only at the next such reading. It does not include padding.
    pub(super) driver_used: u64,
    /// The most bytes that were in use or in flight since the latest applied read-back began. The
    /// driver may have grown up to this, whatever was freed since.
    pub(super) most: MostInUse,
}

/// Taken before the driver's figures are read, or before the request after which they are read. Of two readings, the one
/// that started later is more recent, whichever finishes first.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(pub(super) u64);

/// The driver's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub reserved: u64,
    /// `None`: not read. The figure matters where a request is about to be refused.
    pub used: Option<u64>,
}

/// A change of reserved bytes, for the ledger and the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub delta: i64,
    pub reserved: u64,
    pub used: u64,
}

impl State {
    #[inline]
    pub(super) fn used(&self) -> u64 {
        self.counted.max(0) as u64
    }

    /// The driver's used bytes, never too low: padding of blocks that the driver has already freed may
    /// still be included.
    #[inline]
    pub(super) fn used_in_driver(&self) -> u64 {
        self.driver_used.saturating_add(self.padding.max(0) as u64)
    }

    #[inline]
    pub(super) fn wanted(&self, used: u64, more: u64) -> u64 {
        used.saturating_add(self.in_flight).saturating_add(more)
    }

    /// The growth needed to hold `bytes`.
    #[inline]
    pub(super) fn short_of(&self, bytes: u64) -> u64 {
        round_up(bytes.saturating_sub(self.reserved), POOL_STEP)
    }

    /// Notes that a request of `size` bytes enters the driver, or with 0 a reading, where `wanted` bytes may be in use.
    /// Returns its number.
    #[inline]
    pub(super) fn begin(&mut self, size: u64, wanted: u64) -> u64 {
        self.in_flight = self.in_flight.saturating_add(size);
        self.begun += 1;
        self.most.note(self.begun, wanted);
        self.begun
    }

    /// Takes the growth from the budget that holding `wanted` bytes needs beyond what is taken for requests in flight.
    #[cold]
    pub(super) fn take_more(&mut self, budget: &Budget, wanted: u64) -> Result<(), Refusal> {
        let more = self.short_of(wanted).saturating_sub(self.pending);
        if more > 0 {
            budget.try_take(more)?;
            self.pending += more;
        }
        Ok(())
    }

    /// Keeps reserved what requests in flight may still need or have used already, up to what was
    /// charged before: also if the driver released memory in between, or blocks were freed.
    #[inline]
    pub(super) fn settle(&mut self, charged: i64) {
        let needed = if self.in_flight == 0 { 0 } else { self.short_of(self.most.get()) };
        let left = (charged.max(0) as u64).saturating_sub(self.reserved);
        self.pending = needed.min(left);
    }

    #[inline]
    pub(super) fn charged(&self) -> i64 {
        self.reserved.saturating_add(self.pending) as i64
    }

    #[inline(always)]
    pub(super) fn apply(&mut self, ticket: Ticket, reading: Reading) {
        if ticket.0 > self.applied {
            self.applied = ticket.0;
            self.most.forget_before(ticket.0);
            self.reserved = reading.reserved;
            self.driver_used = reading.used.unwrap_or(self.driver_used);
        }
    }

    /// Charges and reports the difference. Under the lock, so that the file has the changes of one
    /// allocator in their order.
    #[cold]
    pub(super) fn report(
        &self,
        budget: &Budget,
        reserved: u64,
        charged: i64,
        report: impl FnOnce(Change),
    ) {
        let charge = self.charged().saturating_sub(charged);
        let delta = self.reserved as i64 - reserved as i64;
        let change = Change { delta, reserved: self.reserved, used: self.used() };
        // A decrease is reported before it is released to others, an increase after it was charged: so
        // the file never shows more than was counted.
        if delta < 0 {
            report(change);
            budget.charge(charge);
        } else {
            budget.charge(charge);
            if delta > 0 {
                report(change);
            }
        }
    }
}

/// The bytes that a block of this requested size occupies.
#[inline]
pub(super) fn block(size: u64) -> u64 {
    size.saturating_add(padding(size))
}

/// The part of them that rounding adds.
#[inline]
pub(super) fn padding(size: u64) -> u64 {
    size.wrapping_neg() % GRAIN
}
