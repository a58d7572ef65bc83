//! Reads the bytes of all stacks in slices, for the history: no slice takes long, and no lock is held while the sums are
//! used. The sums of a walk are not of one moment: calls go on between its slices.

use super::{Ledger, SHARDS};
use vramtrace_format::{DeviceId, Kind, StackId, SummaryMoment};

/// Slots of a table that one slice looks at, and sums that it reads, at most.
pub const SLICE: usize = 128;
const SLOTS: usize = 4 * SLICE;

/// The progress of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldCursor {
    shard: usize,
    index: usize,
    /// Slots of the shard's table when the walk came to it.
    capacity: usize,
}

/// What one call site holds by one stack. There may be several of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub device: DeviceId,
    pub of_framework: bool,
    pub stack: StackId,
    pub bytes: u64,
    /// Allocations and frees since the start.
    pub calls: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    More,
    Done,
    /// A table has grown, and its sums are elsewhere: the walk must begin again.
    Void,
}

impl Ledger {
    /// Reads on from the cursor. `visit` may not be called while a shard is locked, so the sums are copied first.
    pub fn held_slice(&self, cursor: &mut HeldCursor, visit: &mut dyn FnMut(&Held)) -> Walked {
        const NONE: Held = Held {
            device: DeviceId(0),
            of_framework: false,
            stack: StackId(0),
            bytes: 0,
            calls: [0; 2],
        };
        let mut found = [NONE; SLICE];
        let (mut count, mut looked) = (0, 0);
        while cursor.shard < SHARDS && count < SLICE && looked < SLOTS {
            let inner = self.shards[cursor.shard].lock();
            let capacity = inner.sites.slots.capacity();
            if cursor.index == 0 {
                cursor.capacity = capacity;
            } else if cursor.capacity != capacity {
                return Walked::Void;
            }
            looked += 1;
            while cursor.index < capacity && count < SLICE && looked < SLOTS {
                looked += 1;
                let slot = inner.sites.slots.at(cursor.index);
                cursor.index += 1;
                let Some(slot) = slot else { continue };
                let maker = slot.maker();
                let epoch = self.totals(maker.device).epoch();
                let [bytes, _] = slot.held().at(SummaryMoment::End, epoch);
                // As of a checkpoint that has not begun: now.
                let totals = slot.at(u32::MAX);
                found[count] = Held {
                    device: maker.device,
                    of_framework: maker.kind == Kind::Block,
                    stack: maker.stack,
                    bytes,
                    calls: [totals.allocations, totals.frees],
                };
                count += 1;
            }
            if cursor.index >= capacity {
                (cursor.shard, cursor.index) = (cursor.shard + 1, 0);
            }
        }
        found[..count].iter().for_each(visit);
        if cursor.shard < SHARDS { Walked::More } else { Walked::Done }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Sink};
    use super::*;
    use std::collections::BTreeMap;
    use vramtrace_format::{Event, SiteId};

    struct Nowhere;
    impl Sink for Nowhere {
        fn emit(&self, _: &Event) {}
    }

    fn put(ledger: &Ledger, number: u64, stacks: u64) {
        let stack = StackId((number % stacks) as u32 + 1);
        let entry = Entry::new(Kind::Device, number << 21, 2 << 20, DeviceId(0));
        ledger.insert(&Nowhere, &Entry { stack, site: SiteId(1), ..entry });
    }

    #[test]
    fn slices_are_short_and_together_have_everything_once() {
        let ledger = Box::new(Ledger::new());
        (1..=3000).for_each(|number| put(&ledger, number, 700));
        let mut cursor = HeldCursor::default();
        let (mut sums, mut slices) = (BTreeMap::<u32, u64>::new(), 0);
        loop {
            let mut visited = 0;
            let walked = ledger.held_slice(&mut cursor, &mut |held| {
                visited += 1;
                *sums.entry(held.stack.0).or_default() += held.bytes;
            });
            assert!(visited <= SLICE);
            slices += 1;
            match walked {
                Walked::More => {}
                Walked::Done => break,
                Walked::Void => panic!("nothing was allocated"),
            }
        }
        assert!(slices >= 700 / SLICE, "{slices}");
        assert_eq!((sums.len(), sums.values().sum::<u64>()), (700, 3000 * (2 << 20)));
    }

    #[test]
    fn a_table_that_grows_meanwhile_voids_the_walk() {
        let ledger = Box::new(Ledger::new());
        (1..=3000).for_each(|number| put(&ledger, number, 700));
        let mut cursor = HeldCursor::default();
        assert_eq!(ledger.held_slice(&mut cursor, &mut |_| ()), Walked::More);
        (3001..=40_000).for_each(|number| put(&ledger, number, 30_000));
        let mut walked = Walked::More;
        while walked == Walked::More {
            walked = ledger.held_slice(&mut cursor, &mut |_| ());
        }
        assert_eq!(walked, Walked::Void);
    }
}
