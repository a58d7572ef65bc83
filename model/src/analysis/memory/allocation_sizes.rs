//! The number of allocations by size, as an observer of a whole trace.

use vramtrace_format::Stamped;

use crate::replay::{AllocCause, Key, Live, Observer};

/// The number of allocations by the bit length of their size.
#[derive(Clone, Debug)]
pub struct AllocationSizes([u64; 65]);

impl Default for AllocationSizes {
    fn default() -> AllocationSizes {
        AllocationSizes([0; 65])
    }
}

impl AllocationSizes {
    /// The smallest power of 2 for which `most` allocations at most are of that size or larger.
    pub fn threshold(&self, most: u64) -> u64 {
        let mut kept = 0;
        for power in (0..65).rev() {
            kept += self.0[power];
            if kept > most {
                return 1u64.checked_shl(power as u32).unwrap_or(u64::MAX);
            }
        }
        0
    }
}

impl Observer for AllocationSizes {
    fn on_alloc(&mut self, _at: &Stamped, _key: Key, live: &Live, _how: AllocCause) {
        self.0[64 - live.size.leading_zeros() as usize] += 1;
    }
}
