//! Bytes that no allocation call shows: contexts, lazily loaded kernels, local memory.
//!
//! They are what NVML shows beyond the accounted bytes. Both sides move during a reading: a call in
//! flight may be accounted and not yet in NVML's figure, or the other way round. So a reading gives bounds,
//! and the value moves only as far as the bounds force it: with no call under way they are equal, and
//! the value is exact.

/// What is accounted for a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountedBytes {
    /// The cap's count without hidden bytes: allocations and calls under way.
    pub held: u64,
    /// The ledger's live bytes: calls that have returned, frees under way left out.
    pub live: u64,
    /// The part of `live` that NVML leaves out.
    pub managed: u64,
}

/// Lower and upper bound of the hidden bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    low: u64,
    high: u64,
}

impl Bounds {
    /// After a reading of NVML's figure for this process, taken between `before` and `after`.
    pub fn of(figure: u64, before: AccountedBytes, after: AccountedBytes) -> Bounds {
        let held = before.held.max(after.held).max(before.live).max(after.live);
        let live = before.live.min(after.live);
        let low = figure.saturating_add(before.managed.min(after.managed)).saturating_sub(held);
        let high = figure.saturating_add(before.managed.max(after.managed)).saturating_sub(live);
        Bounds { low: low.min(high), high }
    }

    /// Whether the bounds are equal: no call was in progress, and the value is exact.
    pub fn are_equal(self) -> bool {
        self.low == self.high
    }

    /// The known value, moved into the bounds.
    pub fn narrow(self, hidden: u64) -> u64 {
        hidden.clamp(self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(hidden: u64, figure: u64, before: AccountedBytes, after: AccountedBytes) -> u64 {
        let bounds = Bounds::of(figure, before, after);
        assert_eq!(bounds.are_equal(), bounds.narrow(0) == bounds.narrow(u64::MAX));
        bounds.narrow(hidden)
    }

    const MIB: u64 = 1 << 20;

    fn at_rest(live: u64) -> AccountedBytes {
        AccountedBytes { held: live, live, managed: 0 }
    }

    #[test]
    fn at_rest_it_is_exact_both_ways() {
        let rest = at_rest(100 * MIB);
        assert_eq!(narrow(0, 618 * MIB, rest, rest), 518 * MIB);
        assert_eq!(narrow(518 * MIB, 400 * MIB, rest, rest), 300 * MIB);
        assert_eq!(narrow(518 * MIB, 90 * MIB, rest, rest), 0);
    }

    #[test]
    fn managed_memory_is_not_in_the_figure() {
        let rest = AccountedBytes { held: 300, live: 300, managed: 200 };
        assert_eq!(narrow(0, 150, rest, rest), 50);
    }

    #[test]
    fn a_call_under_way_is_not_counted_twice() {
        // 1 GiB reserved; the driver has given it, the ledger has it not yet.
        let under_way = AccountedBytes { held: 1124 * MIB, live: 100 * MIB, managed: 0 };
        assert_eq!(narrow(518 * MIB, 1642 * MIB, under_way, under_way), 518 * MIB);
        // Reserved, and the driver has not given it yet.
        assert_eq!(narrow(518 * MIB, 618 * MIB, under_way, under_way), 518 * MIB);
        // Whatever is under way, this much must be hidden.
        assert_eq!(narrow(518 * MIB, 1742 * MIB, under_way, under_way), 618 * MIB);
    }

    #[test]
    fn bounds_hold_over_calls_that_return_during_the_reading() {
        let before = AccountedBytes { held: 200, live: 100, managed: 0 };
        let after = at_rest(200);
        assert_eq!(narrow(50, 250, before, after), 50);
        assert_eq!(narrow(50, 150, before, after), 50);
        assert_eq!(narrow(500, 250, before, after), 150);
    }

    #[test]
    fn nothing_overflows() {
        let most = AccountedBytes { held: u64::MAX, live: u64::MAX, managed: u64::MAX };
        assert_eq!(narrow(u64::MAX, u64::MAX, most, most), 0);
        assert_eq!(narrow(0, u64::MAX, AccountedBytes::default(), most), 0);
    }
}
