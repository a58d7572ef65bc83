//! The phases that a program marked, for timelines.

use vramtrace_format::{Mark, ThreadId};

/// A phase that begins, ends, or is a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportedPhase<'n> {
    pub what: Edge,
    pub name: &'n str,
    /// The id of its name among the texts of the trace.
    pub id: u32,
    /// The thread of a nested phase. `None`: a range that any thread may end.
    pub tid: Option<u32>,
}

/// What a mark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Begin,
    End,
    Moment,
}

/// The open phases.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// Name and thread, in the order in which they began.
    ranges: Vec<(u32, Option<ThreadId>)>,
}

impl Open {
    /// Applies a mark. Returns the edge, the name and the thread. `None`: the end of a phase whose begin is
    /// not in the trace.
    pub(super) fn mark(
        &mut self,
        thread: ThreadId,
        name: u32,
        mark: Mark,
    ) -> Option<(Edge, u32, Option<ThreadId>)> {
        let of = matches!(mark, Mark::Push | Mark::Pop | Mark::Moment).then_some(thread);
        match mark {
            Mark::Push | Mark::Start => {
                self.ranges.push((name, of));
                Some((Edge::Begin, name, of))
            }
            Mark::Moment => Some((Edge::Moment, name, of)),
            Mark::Pop | Mark::End => {
                let fits = |range: &(u32, Option<ThreadId>)| {
                    range.1 == of && (mark == Mark::Pop || range.0 == name)
                };
                let (name, of) = self.ranges.remove(self.ranges.iter().rposition(fits)?);
                Some((Edge::End, name, of))
            }
        }
    }

    /// In the order in which they began.
    pub(super) fn ranges(&self) -> &[(u32, Option<ThreadId>)] {
        &self.ranges
    }

    /// Closes all phases and returns them, the innermost first.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u32, Option<ThreadId>)> + use<> {
        std::mem::take(&mut self.ranges).into_iter().rev()
    }
}
