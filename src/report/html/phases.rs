//! The phases that a program marked (NVTX ranges), as the page draws them.

use rustc_hash::FxHashMap;
use serde::Serialize;
use vramtrace_format::{Mark, ThreadId};

use crate::analysis::IgnoredRanges;
use crate::trace::Definitions;

/// The most ranges that a page holds. Of a run with more it has those that ended first.
const MOST_RANGES: usize = 20_000;
/// Ranges that are nested deeper are ignored.
const DEEPEST: u32 = 64;
/// The most ranges that may be open at a time, in all threads together. Further ones are ignored: each
/// allocation searches them.
const MOST_OPEN: usize = 1024;

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
    /// In the order in which they began.
    #[serde(skip)]
    open: Vec<Open>,
    #[serde(skip)]
    ignored: IgnoredRanges,
    /// From enclosing phase and name to the phase.
    #[serde(skip)]
    known: FxHashMap<(u32, u32), u32>,
}

/// A range that has not ended.
#[derive(Debug)]
struct Open {
    phase: u32,
    name: u32,
    /// `None`: it belongs to the whole process.
    thread: Option<ThreadId>,
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
        let of = Some(thread);
        match mark {
            Mark::Push => self.begin(definitions, ordinal, name, of),
            Mark::Start => self.begin(definitions, ordinal, name, None),
            Mark::Pop if self.ignored.end(of, name) => {}
            Mark::Pop => self.end(ordinal, |open| open.thread == of),
            Mark::End if self.ignored.end(None, name) => {}
            Mark::End => self.end(ordinal, |open| open.thread.is_none() && open.name == name),
            Mark::Moment => match self.moments.len() < MOST_RANGES {
                true => self.moments.push((text(definitions, name), ordinal)),
                false => self.more = true,
            },
        }
    }

    /// The phase of the range that a thread, or the whole process, began last and that is open; 0: none.
    pub(super) fn of(&self, thread: ThreadId) -> u32 {
        let fits = |open: &&Open| open.thread.is_none_or(|of| of == thread);
        self.open.iter().rev().find(fits).map_or(0, |open| open.phase)
    }

    /// Ends all open ranges.
    pub(super) fn close(&mut self, ordinal: u64) {
        self.ignored = IgnoredRanges::default();
        while !self.open.is_empty() {
            self.end(ordinal, |_| true);
        }
    }

    fn begin(&mut self, definitions: &Definitions, from: u64, name: u32, thread: Option<ThreadId>) {
        let around = self.open.iter().rev().find(|open| open.thread == thread);
        let (outer, depth) = around.map_or((0, 0), |open| (open.phase, open.depth + 1));
        if depth >= DEEPEST || self.open.len() >= MOST_OPEN || self.ignored.has(thread, name) {
            self.ignored.begin(thread, name);
            return;
        }
        let next = self.names.len() as u32 + 1;
        let phase = *self.known.entry((outer, name)).or_insert(next);
        if phase == next {
            self.names.push((outer, text(definitions, name)));
        }
        self.open.push(Open { phase, name, thread, from, depth });
    }

    fn end(&mut self, ordinal: u64, which: impl Fn(&Open) -> bool) {
        let Some(index) = self.open.iter().rposition(which) else { return };
        let open = self.open.remove(index);
        match self.ranges.len() < MOST_RANGES {
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
