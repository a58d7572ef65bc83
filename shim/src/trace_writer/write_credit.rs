//! How often a trace without a tail is written: at each record, until that takes too much of the time.

/// Time for writes that can be saved up: some hundred records, one after the other.
const MOST_NS: i64 = 50_000_000;
/// One part in so many of the time is given for writes.
const SHARE: u64 = 20;

pub struct WriteCredit {
    /// Negative: more was spent than there was.
    left_ns: i64,
    /// When it was last looked at.
    seen_ns: u64,
}

impl WriteCredit {
    pub fn new(now_ns: u64) -> WriteCredit {
        WriteCredit { left_ns: MOST_NS, seen_ns: now_ns }
    }

    /// Whether records may be written now.
    pub fn may_write(&mut self, now_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.seen_ns) / SHARE;
        self.seen_ns += earned * SHARE;
        self.left_ns = self.left_ns.saturating_add_unsigned(earned).min(MOST_NS);
        self.left_ns > 0
    }

    pub fn spent(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_then_a_share_of_the_time() {
        let (mut credit, mut now_ns) = (WriteCredit::new(1000), 1000);
        let burst = (0..10_000).take_while(|_| {
            let may = credit.may_write(now_ns);
            credit.spent(100_000);
            now_ns += 100_000;
            may
        });
        assert_eq!(burst.count(), 527, "50 ms, and what is earned meanwhile");
        let from_ns = now_ns;
        let mut spent = 0;
        while now_ns < from_ns + 1_000_000_000 {
            now_ns += 10_000;
            if credit.may_write(now_ns) {
                credit.spent(100_000);
                spent += 100_000;
            }
        }
        assert!((49_000_000..=51_000_000).contains(&spent), "{spent}");
    }
}
