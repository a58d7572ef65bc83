//! The holders of a device's memory at a refusal, kept for a report at exit, when the memory is already
//! freed.

use super::held::Held;

/// Walks may take 1 / ONE_OF of the time.
const ONE_OF: u64 = 100;

/// The time budget of walks: the duration of a walk grows with the number of live allocations.
#[derive(Debug, Default)]
pub struct Budget {
    /// Time that was spent beyond the budget, at `since_ns`.
    debt_ns: u64,
    since_ns: u64,
    /// The duration of the last walk.
    duration_ns: u64,
}

impl Budget {
    fn debt(&self, now_ns: u64) -> u64 {
        self.debt_ns.saturating_sub(now_ns.saturating_sub(self.since_ns) / ONE_OF)
    }

    /// Two walks in a row are permitted: a library empties its cache after a first refusal, and the
    /// second refusal is the one that matters.
    pub fn allows(&self, now_ns: u64) -> bool {
        self.debt(now_ns) <= self.duration_ns
    }

    pub fn spend(&mut self, now_ns: u64, duration_ns: u64) {
        self.debt_ns = self.debt(now_ns).saturating_add(duration_ns);
        (self.since_ns, self.duration_ns) = (now_ns, duration_ns);
    }
}

/// Who held it.
#[derive(Debug)]
pub struct Kept {
    /// The live bytes then. With as many, nothing was given or freed since.
    pub live: u64,
    pub held: Held,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn two_looks_in_a_row_and_then_a_hundredth_of_the_time() {
        let mut budget = Budget::default();
        let (mut now, mut looks) = (5 * MS, Vec::new());
        let start = now;
        while now < start + 10_000 * MS {
            if budget.allows(now) {
                looks.push(now - start);
                now += 10 * MS;
                budget.spend(now, 10 * MS);
            }
            now += MS / 2;
        }
        assert!(looks[1] < 11 * MS, "{looks:?}");
        assert!(looks[2] > 1000 * MS, "{looks:?}");
        assert!((10..=11).contains(&looks.len()), "{looks:?}");
    }

    #[test]
    fn a_long_look_is_paid_for_before_the_next_but_one() {
        let mut budget = Budget::default();
        budget.spend(100 * MS, 90 * MS);
        assert!(budget.allows(100 * MS));
        budget.spend(100 * MS, MS);
        assert!(!budget.allows(8_000 * MS));
        assert!(budget.allows(9_100 * MS));
    }
}
