//! The calls whose growth one reading shows: the originators that they are charged to, and the nodes of their graphs.

use super::driver_internal::{Followed, Originator};

/// Originators that are told apart.
const MOST: usize = 4;

/// The calls of one originator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calls {
    of: Originator,
    count: u32,
    /// The sum over the calls.
    nodes: u64,
    /// Calls for graphs whose nodes are not known.
    without_nodes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Originators {
    known: [Option<Calls>; MOST],
    /// Calls without a known originator, and those that have no place in `known`.
    unknown: u32,
}

impl Originators {
    pub fn of(call: Followed) -> Originators {
        let Some(of) = call.originator else { return Originators::unknown() };
        let (nodes, without_nodes) = (call.nodes.into(), u32::from(call.nodes == 0));
        let calls = Calls { of, count: 1, nodes, without_nodes };
        Originators { known: [Some(calls), None, None, None], unknown: 0 }
    }

    pub fn unknown() -> Originators {
        Originators { unknown: 1, ..Originators::default() }
    }

    fn place(&mut self, of: &Originator) -> Option<&mut Option<Calls>> {
        let known = |place: &Option<Calls>| place.is_some_and(|calls| calls.of == *of);
        let at = self
            .known
            .iter()
            .position(known)
            .or_else(|| self.known.iter().position(Option::is_none));
        at.map(|at| &mut self.known[at])
    }

    pub fn add(&mut self, call: Followed) {
        *self = self.and(Originators::of(call));
    }

    /// A call that was [added](Originators::add) has ended.
    pub fn remove(&mut self, call: Followed) {
        let is_its = |calls: &&mut Calls| Some(calls.of) == call.originator;
        let Some(calls) = self.known.iter_mut().flatten().find(is_its) else {
            self.unknown = self.unknown.saturating_sub(1);
            return;
        };
        calls.count = calls.count.saturating_sub(1);
        calls.nodes = calls.nodes.saturating_sub(call.nodes.into());
        calls.without_nodes = calls.without_nodes.saturating_sub(u32::from(call.nodes == 0));
        for place in &mut self.known {
            *place = place.filter(|calls| calls.count > 0);
        }
    }

    pub fn and(mut self, other: Originators) -> Originators {
        self.unknown = self.unknown.saturating_add(other.unknown);
        for more in other.known.into_iter().flatten() {
            match self.place(&more.of) {
                Some(Some(calls)) => {
                    calls.count = calls.count.saturating_add(more.count);
                    calls.nodes = calls.nodes.saturating_add(more.nodes);
                    calls.without_nodes = calls.without_nodes.saturating_add(more.without_nodes);
                }
                Some(place) => *place = Some(more),
                None => self.unknown = self.unknown.saturating_add(more.count),
            }
        }
        self
    }

    /// The originator of all calls, if it is one.
    pub fn only(&self) -> Option<Originator> {
        let mut known = self.known.iter().flatten();
        let first = known.next()?;
        (self.unknown == 0 && known.next().is_none()).then_some(first.of)
    }

    /// Divides bytes among the originators by the nodes of their graphs: what the driver takes for an executable graph is
    /// in proportion to them. `None`: some are not known.
    pub fn divide(&self, bytes: u64) -> Option<impl Iterator<Item = (Originator, u64)>> {
        let known = self.known.into_iter().flatten();
        let nodes = known.clone().fold(0u64, |sum, calls| sum.saturating_add(calls.nodes));
        let all_known = self.unknown == 0 && known.clone().all(|calls| calls.without_nodes == 0);
        let mut passed = 0u64;
        let upto = move |nodes_so_far: u64| {
            (u128::from(bytes) * u128::from(nodes_so_far) / u128::from(nodes.max(1))) as u64
        };
        // Each gets what lies between two marks, so that the parts add up.
        (all_known && nodes > 0).then(|| {
            known.map(move |calls| {
                let from = upto(passed);
                passed = passed.saturating_add(calls.nodes).min(nodes);
                (calls.of, upto(passed) - from)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attribution::driver_internal::DriverActivity;
    use vramtrace_format::{Cause, StackId};

    fn line(stack: u32) -> Originator {
        Originator { stack: StackId(stack), ..Originator::unnamed(Cause::Graphs) }
    }

    fn call(stack: u32, nodes: u32) -> Followed {
        Followed { doing: DriverActivity::Graphs, originator: Some(line(stack)), nodes }
    }

    fn of(calls: &[(u32, u32)]) -> Originators {
        let all = calls.iter().map(|(stack, nodes)| Originators::of(call(*stack, *nodes)));
        all.fold(Originators::default(), Originators::and)
    }

    fn parts(all: &Originators, bytes: u64) -> Option<Vec<(u32, u64)>> {
        let parts = all.divide(bytes)?;
        Some(parts.map(|(of, bytes)| (of.stack.0, bytes)).collect())
    }

    #[test]
    fn bytes_are_divided_by_nodes_and_add_up() {
        assert_eq!(parts(&of(&[(1, 2000), (2, 1000), (1, 1000)]), 10), Some(vec![(1, 7), (2, 3)]));
        assert_eq!(parts(&of(&[(1, 0), (2, 1000)]), 10), None, "the nodes of one are not known");
        assert_eq!(parts(&of(&[(1, 5)]).and(Originators::unknown()), 10), None);
        assert_eq!(parts(&of(&[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]), 10), None, "too many");
        assert_eq!(parts(&of(&[(1, u32::MAX), (2, 1)]), u64::MAX).unwrap().len(), 2);
    }

    #[test]
    fn calls_that_ended_are_not_counted() {
        let mut all = of(&[(1, 10), (2, 30), (1, 20)]);
        assert_eq!(all.only(), None);
        all.remove(call(1, 10));
        assert_eq!(parts(&all, 50), Some(vec![(1, 20), (2, 30)]));
        all.remove(call(1, 20));
        assert_eq!(all.only(), Some(line(2)));
        all.remove(call(2, 30));
        assert_eq!(all, Originators::default());
    }
}
