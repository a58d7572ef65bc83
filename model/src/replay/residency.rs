//! Which bytes of a framework's blocks are backed by memory: blocks by address, for traces in which
//! memory is unmapped below them.

use std::collections::BTreeMap;

use super::live::LiveSet;

/// Blocks by address. Built at the first use and kept from then on, so that traces in which nothing is
/// unmapped do not need it.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockOrder(Option<BTreeMap<u64, u64>>);

impl BlockOrder {
    pub(super) fn make(&mut self, live: &LiveSet) {
        if self.0.is_none() {
            self.0 = Some(live.blocks().map(|(address, block)| (address, block.size)).collect());
        }
    }

    #[inline]
    pub(super) fn add(&mut self, address: u64, size: u64) {
        if let Some(blocks) = &mut self.0 {
            blocks.insert(address, size);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, address: u64) {
        if let Some(blocks) = &mut self.0 {
            blocks.remove(&address);
        }
    }

    /// Blocks that reach into `[start, end)`: address, and bytes there.
    pub(super) fn over(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let Some(blocks) = &self.0 else { return Vec::new() };
        let before = blocks.range(..start).next_back();
        let inside = blocks.range(start..end.max(start));
        let part = |(address, size): (&u64, &u64)| {
            let to = address.saturating_add(*size).min(end);
            let bytes = to.saturating_sub((*address).max(start));
            (bytes > 0).then_some((*address, bytes))
        };
        before.into_iter().chain(inside).filter_map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_blocks_that_reach_into_a_range() {
        let blocks = [(10, 10), (20, 5), (40, 20)].into_iter().collect();
        let order = BlockOrder(Some(blocks));
        assert_eq!(order.over(15, 45), [(10, 5), (20, 5), (40, 5)]);
        assert_eq!(order.over(25, 40), []);
        assert_eq!(order.over(45, 50), [(40, 5)]);
    }
}
