//! One device's budget: bytes that are allocated or reserved, and the limit. Lock-free: a request is
//! added by compare-and-swap, so that two threads are never granted the same byte.

use super::managed::Managed;
use super::soft::SoftLimiter;
pub use crate::model::cap::counting::Refusal;
use crate::model::cap::counting::{add_saturating, take_within};
use crate::model::cap::group_share::GroupShare;
use crate::runtime::panic_boundary::catch;
use crate::runtime::reserve;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::Release, Ordering::SeqCst};

pub struct Budget {
    /// `u64::MAX` = no cap.
    limit: AtomicU64,
    counted: Contended,
    /// Null, or this process's share in a group's budget, which has a copy of the count; never freed.
    share: AtomicPtr<GroupShare>,
    /// The count and its copy where they differed at the last look.
    differed: [AtomicU64; 2],
    pub soft: SoftLimiter,
    /// Nothing is refused: the caller reports the excess and takes the bytes anyway.
    only_warns: bool,
}

/// Every thread changes it at every call, so it has two cache lines to itself: the processor fetches
/// lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Contended(AtomicU64);

impl Default for Budget {
    fn default() -> Self {
        Budget::new(false)
    }
}

impl Budget {
    pub fn new(only_warns: bool) -> Budget {
        Budget {
            limit: AtomicU64::new(u64::MAX),
            counted: Contended::default(),
            share: AtomicPtr::new(null_mut()),
            differed: Default::default(),
            soft: SoftLimiter::new(),
            only_warns,
        }
    }

    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit.store(limit.unwrap_or(u64::MAX), Relaxed);
    }

    /// Makes the budget part of a group's, also in place of the one before: with what it has counted.
    pub fn share_with(&self, share: GroupShare) {
        share.count().fetch_add(self.counted(), SeqCst);
        self.share.store(Box::into_raw(Box::new(share)), Release);
    }

    /// Makes the group's copy equal to the count, which calls that were in progress changed alone when the process joined
    /// again. Only if neither has changed since the last look: such calls have ended then.
    pub fn align(&self) {
        let Some(share) = self.share().filter(|share| share.is_held()) else { return };
        let now = [self.counted(), share.count().load(SeqCst)];
        let before = [0, 1].map(|at| self.differed[at].swap(now[at], Relaxed));
        if now[0] != now[1] && now == before {
            share.count().fetch_add(now[0].wrapping_sub(now[1]), SeqCst);
        }
    }

    pub fn share(&self) -> Option<&GroupShare> {
        // SAFETY: null, or a box that is never freed.
        unsafe { self.share.load(Acquire).as_ref() }
    }

    pub fn set_soft(&self, limit: Option<u64>) {
        self.soft.set(limit, self.counted());
    }

    /// Bytes allocated, and bytes reserved for calls in progress.
    pub fn counted(&self) -> u64 {
        self.counted.0.load(Relaxed)
    }

    /// Takes `bytes` if the count stays at or under the limit. While the count is above it, even a
    /// request of 0 bytes is refused; callers make none.
    pub fn try_take(&self, bytes: u64) -> Result<(), Refusal> {
        if reserve::is_low() {
            self.refuse_unfollowed()?;
        }
        match self.share() {
            None => self.take_own(&self.counted.0, bytes)?,
            Some(share) => {
                let add = || {
                    self.take_own(&self.counted.0, bytes)?;
                    share.count().fetch_add(bytes, SeqCst);
                    Ok(())
                };
                let take_back = || {
                    add_saturating(share.count(), -(bytes as i64), SeqCst);
                    add_saturating(&self.counted.0, -(bytes as i64), Relaxed);
                };
                share.take(bytes, add, take_back)?;
            }
        }
        self.soft.notice(self.counted());
        Ok(())
    }

    /// Refuses under a limit a request that could not be recorded for want of host memory.
    #[cold]
    fn refuse_unfollowed(&self) -> Result<(), Refusal> {
        let refusal = |limit| Refusal { counted: self.counted(), limit, of_group: false };
        self.limit().map_or(Ok(()), |limit| Err(refusal(limit)))
    }

    /// Within the process's own limit.
    fn take_own(&self, count: &AtomicU64, bytes: u64) -> Result<(), Refusal> {
        let limit = self.limit.load(Relaxed);
        take_within(count, bytes, limit).map_err(|counted| Refusal {
            counted,
            limit,
            of_group: false,
        })
    }

    /// Takes `bytes` whatever the limit.
    pub fn take_anyway(&self, bytes: u64) {
        self.charge(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Adds or subtracts bytes without a check, for what the driver has already done. False: the count
    /// would have gone below zero.
    pub fn charge(&self, delta: i64) -> bool {
        if delta == 0 {
            return true;
        }
        if let Some(share) = self.share().filter(|share| share.is_held()) {
            add_saturating(share.count(), delta, SeqCst);
        }
        let good = add_saturating(&self.counted.0, delta, Relaxed);
        self.soft.notice(self.counted());
        good
    }

    /// Takes the bytes of a request. `managed`: where they are pages of managed memory, which counts in steps.
    #[inline]
    pub fn reserve<'a>(
        &'a self,
        bytes: u64,
        managed: Option<&'a Managed>,
    ) -> Result<Reservation<'a>, Refusal> {
        self.reserve_by(bytes, managed, |bytes| self.try_take(bytes))
    }

    /// As `reserve`, whatever the limit.
    pub fn reserve_anyway<'a>(
        &'a self,
        bytes: u64,
        managed: Option<&'a Managed>,
    ) -> Reservation<'a> {
        let Ok(reservation) = self.reserve_by(bytes, managed, |bytes| {
            self.take_anyway(bytes);
            Ok::<_, std::convert::Infallible>(())
        });
        reservation
    }

    #[inline(always)]
    fn reserve_by<'a, E>(
        &'a self,
        bytes: u64,
        managed: Option<&'a Managed>,
        take: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Reservation<'a>, E> {
        match managed {
            Some(managed) => managed.add(bytes, take)?,
            None => take(bytes)?,
        }
        Ok(Reservation { budget: Some(self), bytes, taken: false, managed })
    }

    /// The driver has the bytes back, or never gave them.
    #[inline]
    pub fn give_back(&self, bytes: u64, managed: Option<&Managed>) {
        match managed {
            Some(managed) => managed.remove(bytes, |change| _ = self.charge(change)),
            None => _ = self.charge(-i64::try_from(bytes).unwrap_or(i64::MAX)),
        }
    }
}

/// Bytes reserved for a call in progress. Dropped without `commit`, they are released, unless the
/// driver has already allocated.
#[must_use]
pub struct Reservation<'a> {
    budget: Option<&'a Budget>,
    bytes: u64,
    /// The driver gave the memory.
    taken: bool,
    /// Where `bytes` are pages of managed memory.
    managed: Option<&'a Managed>,
}

impl Reservation<'_> {
    /// A reservation of nothing, for requests that are not counted.
    pub const fn none() -> Reservation<'static> {
        Reservation { budget: None, bytes: 0, taken: false, managed: None }
    }

    /// The driver has allocated. From now on, if this thread does not reach `commit` (a panic in a
    /// hook), the reservation stays charged: the count is then too high, never too low.
    #[inline]
    pub fn taken(&mut self) {
        self.taken = true;
    }

    /// Sets the reservation to the physical bytes that the driver took. More bytes than were reserved
    /// must fit like a new request; if they do not, the caller must undo the allocation. The reserved
    /// bytes stay charged until the reservation is dropped, or [`Reservation::undone`] is called: no
    /// one else may get them before the driver has them back.
    pub fn commit(&mut self, actual: i64) -> Result<(), Refusal> {
        let Some(budget) = self.budget else { return Ok(()) };
        let promised = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        if actual > promised {
            let more = (actual - promised) as u64;
            if let Err(refusal) = budget.try_take(more) {
                if !budget.only_warns {
                    self.taken = false;
                    return Err(refusal);
                }
                budget.take_anyway(more);
            }
        } else {
            budget.charge(actual - promised);
        }
        self.budget = None;
        Ok(())
    }

    /// The allocation was undone before `commit`: releases all bytes.
    pub fn withdrawn(mut self) {
        self.taken = false;
    }

    /// The allocation was undone after `commit` had refused it. `still`: bytes that the driver did not
    /// get back, since other allocations, which were charged nothing for them, use the same pages.
    pub fn undone(mut self, still: u64) {
        if still > 0
            && let Some(budget) = self.budget.take()
        {
            let still = i64::try_from(still).unwrap_or(i64::MAX);
            budget.charge(still.saturating_sub_unsigned(self.bytes));
        }
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(budget) = self.budget.filter(|_| !self.taken) {
            give_up(budget, self.bytes, self.managed);
        }
    }
}

#[cold]
#[inline(never)]
fn give_up(budget: &Budget, bytes: u64, managed: Option<&Managed>) {
    // A lock that a thread has left must not unwind out of a destructor.
    let _ = catch(|| budget.give_back(bytes, managed));
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Budget {
        pub fn capped(limit: u64) -> Budget {
            let budget = Budget::default();
            budget.set_limit(Some(limit));
            budget
        }
    }

    #[test]
    fn exactly_full_is_granted_and_one_byte_more_is_not() {
        let budget = Budget::capped(100);
        budget.reserve(60, None).unwrap().commit(60).unwrap();
        let rest = budget.reserve(40, None).unwrap();
        assert_eq!(
            budget.reserve(1, None).err(),
            Some(Refusal { counted: 100, limit: 100, of_group: false })
        );
        drop(rest);
        assert_eq!(budget.counted(), 60);
    }

    #[test]
    fn a_commit_sets_the_real_size() {
        let budget = Budget::capped(100);
        budget.reserve(80, None).unwrap().commit(10).unwrap();
        assert_eq!(budget.counted(), 10);
        budget.reserve(10, None).unwrap().commit(90).unwrap();
        assert_eq!(budget.counted(), 100);
        budget.charge(-90);
        assert!(budget.reserve(10, None).unwrap().commit(91).is_err());
        assert_eq!(budget.counted(), 10);
    }

    #[test]
    fn what_the_driver_gave_stays_charged_when_nobody_commits() {
        let budget = Budget::capped(100);
        let panicked = std::panic::catch_unwind(|| {
            let mut promise = budget.reserve(60, None).unwrap();
            promise.taken();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err());
        assert_eq!(budget.counted(), 60);
        let mut promise = budget.reserve(40, None).unwrap();
        promise.taken();
        assert!(promise.commit(41).is_err());
        assert_eq!(budget.counted(), 100, "not undone yet");
        drop(promise);
        assert_eq!(budget.counted(), 60, "undone by the caller: given back");
        let mut promise = budget.reserve(40, None).unwrap();
        assert!(promise.commit(41).is_err());
        promise.undone(30);
        assert_eq!(budget.counted(), 90, "others use a part of it");
    }

    #[test]
    fn what_shows_afterwards_may_pass_the_limit_and_then_all_is_refused() {
        let budget = Budget::capped(100);
        budget.charge(150);
        assert!(budget.try_take(1).is_err() && budget.try_take(0).is_err());
        budget.charge(-51);
        assert!(budget.try_take(1).is_ok());
    }

    #[test]
    fn huge_requests_do_not_wrap() {
        let budget = Budget::capped(100);
        budget.charge(1);
        assert!(budget.try_take(u64::MAX).is_err());
        assert!(!budget.charge(-2));
        assert_eq!(budget.counted(), 0);
        let free = Budget::default();
        assert!(free.limit().is_none() && free.try_take(1 << 60).is_ok());
    }
}
