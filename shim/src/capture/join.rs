//! Finds which native frame runs which Python frames, by addresses on the C stack.

use super::native;
use super::python::walk::Group;
use std::ops::Range;
use vramtrace_format::Join;

/// From CPython 3.11 on: the address of a group's entry lies in the stack frame of the interpreter
/// loop. `high`: the end of the last native frame. Returns the number of joins.
pub fn by_address(
    native: &[native::Frame],
    high: usize,
    groups: &[Group],
    joins: &mut [Join],
) -> usize {
    let mut at = 0;
    for (group, join) in groups.iter().zip(joins.iter_mut()) {
        let end = |at: usize| native.get(at + 1).map_or(high, |next| next.low);
        while at < native.len() && end(at) <= group.entry {
            at += 1;
        }
        let native = if at < native.len() { at as u32 } else { Join::BEYOND };
        *join = Join { python: group.first as u32, native };
    }
    groups.len().min(joins.len())
}

/// Up to CPython 3.10: each Python frame runs in its own interpreter loop. `cut`: whether outer frames
/// are missing, of the native ones and of Python's.
pub fn by_loop(
    native: &[native::Frame],
    loops: &Range<usize>,
    python: usize,
    cut: (bool, bool),
    joins: &mut [Join],
) -> usize {
    let runs = |frame: &&native::Frame| loops.contains(&(frame.address - 1));
    let found = native.iter().filter(runs).count();
    let matches = found == python || (cut.0 && found < python) || (cut.1 && found > python);
    if !matches {
        // A loop was not recognised: no join is better than a wrong one.
        return 0;
    }
    let mut count = 0;
    let indices = native.iter().enumerate().filter(|(_, frame)| runs(frame)).map(|(at, _)| at);
    for (at, join) in indices.take(python).zip(joins.iter_mut()) {
        *join = Join { python: count as u32, native: at as u32 };
        count += 1;
    }
    if count < python
        && let Some(join) = joins.get_mut(count)
    {
        *join = Join { python: count as u32, native: Join::BEYOND };
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(of: &[(usize, usize)]) -> Vec<native::Frame> {
        of.iter().map(|&(address, low)| native::Frame { address, low }).collect()
    }

    #[test]
    fn entries_lie_in_their_frames() {
        let native = frames(&[(1, 100), (2, 200), (3, 300)]);
        let group = |first, entry| Group { first, entry };
        let mut joins = [Join { python: 0, native: 0 }; 4];
        let groups = [group(0, 250), group(2, 399), group(5, 400)];
        assert_eq!(by_address(&native, 400, &groups, &mut joins), 3);
        let places: Vec<_> = joins[..3].iter().map(|join| (join.python, join.native)).collect();
        assert_eq!(places, [(0, 1), (2, 2), (5, Join::BEYOND)]);
        assert_eq!(by_address(&[], 400, &groups[..1], &mut joins), 1);
        assert_eq!(joins[0].native, Join::BEYOND);
    }

    #[test]
    fn loops_pair_with_frames() {
        let native = frames(&[(50, 1), (11, 2), (60, 3), (20, 4)]);
        let mut joins = [Join { python: 9, native: 9 }; 4];
        let places =
            |joins: &[Join]| joins.iter().map(|j| (j.python, j.native)).collect::<Vec<_>>();
        let whole = (false, false);
        assert_eq!(by_loop(&native, &(10..30), 2, whole, &mut joins), 2);
        assert_eq!(places(&joins[..2]), [(0, 1), (1, 3)]);
        assert_eq!(by_loop(&native, &(10..30), 3, whole, &mut joins), 0);
        assert_eq!(by_loop(&native, &(10..30), 1, whole, &mut joins), 0);
        assert_eq!(by_loop(&native, &(10..30), 3, (true, false), &mut joins), 3);
        assert_eq!(places(&joins[..3]), [(0, 1), (1, 3), (2, Join::BEYOND)]);
        assert_eq!(by_loop(&native, &(10..30), 1, (false, true), &mut joins), 1);
    }
}
