//! The phases that a program marked (NVTX ranges), as the page draws them.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{Mark, ThreadId};

use crate::trace::Definitions;

/// Maximum number of ranges, and of moments, that a page holds. Of a run with more it has those that ended first.
const MAX_RANGES: usize = 20_000;
/// What is nested deeper belongs to the range at this depth.
const DEEPEST: u32 = 64;

/// The phases of one process.
#[derive(Debug, Default, Serialize)]
pub(super) struct PagePhases {
    /// The enclosing phase (0: none) and the name. Phase n is at index n - 1.
    pub names: Vec<(u32, String)>,
    /// Phase, first and last ordinal, depth.
    pub ranges: Vec<(u32, u64, u64, u32)>,
    /// There were more ranges or moments than the page holds.
    pub more: bool,
    /// Marks without a duration: name and ordinal.
    pub moments: Vec<(String, u64)>,
    /// Of each thread, and of the whole process (`None`), in the order in which they began.
    #[serde(skip)]
    open: BTreeMap<Option<ThreadId>, Vec<OpenPhase>>,
    /// From enclosing phase and name to the phase.
    #[serde(skip)]
    known: FxHashMap<(u32, u32), u32>,
}

/// A range that has not ended.
#[derive(Debug)]
struct OpenPhase {
    phase: u32,
    name: u32,
    from: u64,
    depth: u32,
}

impl PagePhases {
    /// The program began or ended a range, or marked a moment.
    pub(super) fn mark(
        &mut self,
        definitions: &Definitions,
        (thread, ordinal): (ThreadId, u64),
        name: u32,
        mark: Mark,
    ) {
        match mark {
            Mark::Push => self.begin(definitions, ordinal, name, Some(thread)),
            Mark::Start => self.begin(definitions, ordinal, name, None),
            Mark::Pop => {
                let open = self.open.get_mut(&Some(thread)).and_then(Vec::pop);
                self.end(open, ordinal);
            }
            Mark::End => {
                let of_process = self.open.entry(None).or_default();
                let index = of_process.iter().rposition(|open| open.name == name);
                let open = index.map(|index| of_process.remove(index));
                self.end(open, ordinal);
            }
            Mark::Moment if self.moments.len() < MAX_RANGES => {
                self.moments.push((text(definitions, name), ordinal));
            }
            Mark::Moment => self.more = true,
        }
    }

    /// The phase of the range that a thread, or the whole process, began last and that is open; 0: none.
    pub(super) fn of(&self, thread: ThreadId) -> u32 {
        let last = [Some(thread), None].into_iter().filter_map(|of| self.open.get(&of)?.last());
        last.max_by_key(|open| open.from).map_or(0, |open| open.phase)
    }

    /// Ends all open ranges.
    pub(super) fn close(&mut self, ordinal: u64) {
        let mut open: Vec<OpenPhase> =
            std::mem::take(&mut self.open).into_values().flatten().collect();
        open.sort_by_key(|open| std::cmp::Reverse(open.from));
        open.into_iter().for_each(|open| self.end(Some(open), ordinal));
    }

    fn begin(&mut self, definitions: &Definitions, from: u64, name: u32, thread: Option<ThreadId>) {
        let stack = self.open.entry(thread).or_default();
        let (outer, depth) = stack.last().map_or((0, 0), |open| (open.phase, open.depth + 1));
        let next = self.names.len() as u32 + 1;
        let phase = match depth < DEEPEST {
            true => *self.known.entry((outer, name)).or_insert(next),
            false => outer,
        };
        if phase == next {
            self.names.push((outer, text(definitions, name)));
        }
        stack.push(OpenPhase { phase, name, from, depth });
    }

    fn end(&mut self, open: Option<OpenPhase>, ordinal: u64) {
        let Some(open) = open.filter(|open| open.depth < DEEPEST) else { return };
        match self.ranges.len() < MAX_RANGES {
            true => self.ranges.push((open.phase, open.from, ordinal, open.depth)),
            false => self.more = true,
        }
    }
}

fn text(definitions: &Definitions, name: u32) -> String {
    definitions.text(name).unwrap_or("(no name)").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_ignored_range_ends_no_other() {
        let definitions = Definitions::default();
        let mut phases = PagePhases::default();
        let mut mark = |at, mark| phases.mark(&definitions, (ThreadId(7), at), 1, mark);
        let depth = u64::from(DEEPEST);
        for at in 0..depth + 2 {
            mark(at, Mark::Push);
        }
        // The two innermost ranges are ignored. The first two ends are theirs.
        for at in 0..depth + 2 {
            mark(1000 + at, Mark::Pop);
        }
        assert_eq!(phases.ranges.len() as u64, depth);
        let (_, from, to, deepest) = phases.ranges[0];
        assert_eq!((from, to, deepest), (depth - 1, 1002, DEEPEST - 1));
        let (_, from, to, _) = phases.ranges[phases.ranges.len() - 1];
        assert_eq!((from, to), (0, 1001 + depth));
    }

    #[test]
    fn open_ranges_of_many_threads_hide_no_nested_one() {
        let definitions = Definitions::default();
        let mut phases = PagePhases::default();
        for thread in 0..100 {
            phases.mark(&definitions, (ThreadId(thread), 0), 1, Mark::Push);
        }
        phases.mark(&definitions, (ThreadId(99), 5), 2, Mark::Push);
        phases.mark(&definitions, (ThreadId(99), 8), 0, Mark::Pop);
        let [(_, from, to, depth)] = phases.ranges[..] else { panic!("{:?}", phases.ranges) };
        assert_eq!((from, to, depth), (5, 8, 1));
    }
}
