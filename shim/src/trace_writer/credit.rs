//! How often work is done: at once for a while, and then within a share of the time.

/// Credit is spent by the work, and earned over time.
pub struct Credit {
    /// Negative: more was spent than there was.
    left: i64,
    most: i64,
    seen_ns: u64,
}

impl Credit {
    pub fn new(most: i64, now_ns: u64) -> Credit {
        Credit { left: most, most, seen_ns: now_ns }
    }

    /// Adds what was earned since the last call, 1 in each `every_ns`. Whether there is any.
    pub fn has_any(&mut self, now_ns: u64, every_ns: u64) -> bool {
        let earned = now_ns.saturating_sub(self.seen_ns) / every_ns;
        self.seen_ns += earned * every_ns;
        self.left = self.left.saturating_add_unsigned(earned).min(self.most);
        self.left > 0
    }

    pub fn spend(&mut self, much: u64) {
        self.left = self.left.saturating_sub_unsigned(much);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_then_a_share_of_the_time() {
        const SHARE: u64 = 20;
        let (mut credit, mut now_ns) = (Credit::new(50_000_000, 1000), 1000);
        let burst = (0..10_000).take_while(|_| {
            let may = credit.has_any(now_ns, SHARE);
            credit.spend(100_000);
            now_ns += 100_000;
            may
        });
        assert_eq!(burst.count(), 527, "50 ms, and what is earned meanwhile");
        let from_ns = now_ns;
        let mut spent = 0;
        while now_ns < from_ns + 1_000_000_000 {
            now_ns += 10_000;
            if credit.has_any(now_ns, SHARE) {
                credit.spend(100_000);
                spent += 100_000;
            }
        }
        assert!((49_000_000..=51_000_000).contains(&spent), "{spent}");
    }
}
