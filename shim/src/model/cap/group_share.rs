//! One device's part in the budget of a group: a copy of this process's count lies in the group's page, and
//! a request must fit with what all members have.
//!
//! A request adds to this member's count and then sums all counts; over the limit it takes back. Of
//! requests that race the last one to add sees all others, so what is granted never exceeds the limit,
//! and there is no common total that a kill could leave wrong. The sum may include a request that is
//! taken back too: so a request tries again a few times, unless the members without a request in
//! flight have too much already.

use super::counting::Refusal;
use crate::runtime::atomics::{AtomicU64, Ordering::Relaxed, spin_loop};
use vramtrace_format::group::GroupPage;
use vramtrace_format::member::Member;

pub struct GroupShare {
    page: GroupPage<'static>,
    slot: usize,
    me: Member,
    device: usize,
    /// The limit that was reported last: `u64::MAX` = none.
    reported_limit: AtomicU64,
}

/// Two concurrent requests may each see the other's bytes and both take theirs back. So a request is
/// tried again if it failed only because of other requests in flight.
const TRIES: u32 = if cfg!(loom) { 1 } else { 6 };

impl GroupShare {
    pub fn new(page: GroupPage<'static>, slot: usize, me: Member, device: usize) -> GroupShare {
        let reported_limit = AtomicU64::new(page.limit(device).unwrap_or(u64::MAX));
        GroupShare { page, slot, me, device, reported_limit }
    }

    /// Whether this process is still a member: the slot may be another's, whose count must not be touched.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.page.is_member(self.slot, self.me)
    }

    /// This process's count, as the group sees it.
    pub fn count(&self) -> &'static AtomicU64 {
        self.page.count(self.slot, self.device)
    }

    pub fn limit(&self) -> Option<u64> {
        self.page.limit(self.device)
    }

    /// The sum of all members' counts.
    pub fn sum(&self) -> u64 {
        self.page.sum(self.device)
    }

    /// `add` adds to this process's count, within its own limit; `take_back` undoes that. After `add`
    /// all members' counts are summed: the member that adds last sees all others.
    pub fn take(
        &self,
        bytes: u64,
        add: impl Fn() -> Result<(), Refusal>,
        take_back: impl Fn(),
    ) -> Result<(), Refusal> {
        if !self.is_held() {
            // It joins again before it is refused.
            let limit = self.limit().unwrap_or(0);
            return Err(Refusal { counted: self.sum(), limit, of_group: true });
        }
        let _asks = Asks::begin(self);
        for attempt in 0.. {
            // Of requests that race, the last one to add sees all others, so the granted bytes never exceed the limit.
            add()?;
            let Some(limit) = self.limit() else { return Ok(()) };
            let sum = self.sum();
            if sum <= limit {
                return Ok(());
            }
            take_back();
            if attempt == TRIES || self.never_fits(bytes, limit) {
                let counted = sum.saturating_sub(bytes);
                return Err(Refusal { counted, limit, of_group: true });
            }
            // The pause differs between processes, so that they do not collide again.
            let pause =
                if cfg!(loom) { 1 } else { (20u32 << attempt) + (self.slot as u32 * 7) % 32 };
            (0..pause).for_each(|_| spin_loop());
        }
        Ok(())
    }

    /// Whether the request cannot fit, even if all requests in flight of others are taken back.
    fn never_fits(&self, bytes: u64, limit: u64) -> bool {
        let settled = self.page.settled(self.slot, self.device);
        settled.is_some_and(|settled| settled.saturating_add(bytes) > limit)
    }

    /// Whether the limit differs from the one reported last, which it is from now on.
    pub fn take_change(&self) -> bool {
        let word = self.limit().unwrap_or(u64::MAX);
        self.reported_limit.swap(word, Relaxed) != word
    }
}

/// Marks that a request of this process is in flight and may be taken back.
struct Asks<'s>(&'s GroupShare);

impl<'s> Asks<'s> {
    fn begin(share: &'s GroupShare) -> Asks<'s> {
        share.page.begin_request(share.slot);
        Asks(share)
    }
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.0.page.end_request(self.0.slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::budget::Budget;
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;
    use vramtrace_format::group::{GROUP_WORDS, limit_order};
    use vramtrace_format::proc::Life;

    fn page() -> (GroupPage<'static>, &'static [AtomicU64; GROUP_WORDS]) {
        let words: Vec<AtomicU64> = (0..GROUP_WORDS).map(|_| AtomicU64::new(0)).collect();
        let words: Box<[AtomicU64; GROUP_WORDS]> = words.into_boxed_slice().try_into().unwrap();
        let words = Box::leak(words);
        (GroupPage::make(words, "a", 1), words)
    }

    fn budget(page: GroupPage<'static>, pid: u32, limit: u64) -> Budget {
        let me = Member { pid, segment: 1, made: 0 };
        let slot = page.join(me, |_| Life::Alive).unwrap();
        let device = page.device(&[1; 16], 0, 1 << 30).unwrap();
        page.set_member_limit(slot, device, Some(limit));
        let budget = Budget::default();
        budget.share_with(GroupShare::new(page, slot, me, device));
        budget
    }

    #[test]
    fn what_one_has_the_other_has_not() {
        let (page, words) = page();
        let (a, b) = (budget(page, 1, 100), budget(page, 2, 100));
        a.reserve(60, None).unwrap().commit(60).unwrap();
        b.reserve(40, None).unwrap().commit(40).unwrap();
        let refusal = Refusal { counted: 100, limit: 100, of_group: true };
        assert_eq!(b.reserve(1, None).err(), Some(refusal));
        assert_eq!((a.counted(), b.counted()), (60, 40));
        a.charge(-10);
        assert!(b.reserve(10, None).is_ok());
        // Its own limit holds beside the group's.
        b.set_limit(Some(45));
        assert_eq!(b.reserve(6, None).err().map(|refusal| refusal.of_group), Some(false));
        let (at, word) = limit_order(0, Some(90));
        words[at as usize / 8].store(word, SeqCst);
        assert!(b.reserve(1, None).is_err(), "lowered to what is live");
        a.charge(-10);
        assert!(b.reserve(5, None).is_ok());
    }

    #[test]
    fn who_is_removed_is_refused_until_it_has_joined_again_with_what_it_holds() {
        let (page, _) = page();
        let (a, b) = (budget(page, 1, 100), budget(page, 2, 100));
        a.reserve(60, None).unwrap().commit(60).unwrap();
        let me = Member { pid: 1, segment: 1, made: 0 };
        page.remove_dead_members(Member { pid: 2, ..me }, |_| Life::Dead);
        // The place is another's by now, whose count stays as it is.
        let other = budget(page, 3, 100);
        other.reserve(7, None).unwrap().commit(7).unwrap();
        assert!(a.reserve(1, None).is_err());
        a.charge(-20);
        assert_eq!((a.counted(), page.sum(0)), (40, 7));
        let slot = page.join(me, |_| Life::Alive).unwrap();
        a.share_with(GroupShare::new(page, slot, me, 0));
        assert_eq!(page.sum(0), 47);
        assert!(b.reserve(54, None).is_err() && b.reserve(53, None).is_ok());
        // What was counted while it moved is put right once nothing moves any more.
        page.count(slot, 0).fetch_add(5, SeqCst);
        a.align();
        assert_eq!(page.sum(0), 52);
        a.align();
        assert_eq!(page.sum(0), 47);
    }
}
