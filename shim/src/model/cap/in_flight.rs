//! A granted request of a [`Growth`] while it is with the driver.

use super::budget::Budget;
use super::growth::{Change, Growth, Reading, Ticket};
use crate::runtime::panic_boundary::catch;

/// Created when [`Growth::ask`] grants the request. Dropped without [`InFlight::finish`] (the thread
/// was cancelled in the driver) it counts as failed, so that the reserved growth is released.
#[must_use]
pub struct InFlight<'a> {
    pub growth: &'a Growth,
    pub budget: &'a Budget,
    pub size: u64,
    /// What [`Growth::ask`] returned.
    pub asked: Ticket,
}

impl InFlight<'_> {
    /// See [`Growth::ticket_after`].
    #[inline]
    pub fn ticket(&self) -> Ticket {
        self.growth.ticket_after(self.asked)
    }

    /// See [`Growth::finish`].
    #[inline(always)]
    pub fn finish(
        self,
        got: bool,
        reading: Option<(Ticket, Reading)>,
        report: impl FnOnce(Change),
    ) {
        let InFlight { growth, budget, size, .. } = self;
        std::mem::forget(self);
        growth.finish(budget, size, got, reading, report);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // A lock that a thread has left must not unwind out of a destructor.
        let _ = catch(|| self.growth.finish(self.budget, self.size, false, None, |_| ()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::physical::MIB;

    #[test]
    fn a_call_that_never_came_back_gives_its_promise_back() {
        let (budget, pool) = (Budget::default(), Growth::default());
        budget.set_limit(Some(32 * MIB));
        let asked = pool.ask(&budget, MIB).unwrap();
        let lost = InFlight { growth: &pool, budget: &budget, size: MIB, asked };
        assert_eq!(budget.counted(), 32 * MIB);
        drop(lost);
        assert_eq!(budget.counted(), 0);
        let asked = pool.ask(&budget, MIB).unwrap();
        InFlight { growth: &pool, budget: &budget, size: MIB, asked }.finish(true, None, |_| ());
        assert_eq!(pool.known(), (32 * MIB, MIB));
    }
}
