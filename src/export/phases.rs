//! The phases that a program marked, as a timeline draws them.

use vramtrace_format::{Mark, ThreadId};

/// A phase that begins, ends, or is a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedPhase<'n> {
    pub what: Edge,
    pub name: &'n str,
    /// Of its name among the texts.
    pub id: u32,
    /// Whose it is: phases of one thread lie in each other. `None`: a range of no thread.
    pub tid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    Begin,
    End,
    Moment,
}

/// What is open.
#[derive(Debug, Default)]
pub struct Open {
    /// Name and thread, in the order in which they began.
    ranges: Vec<(u32, Option<ThreadId>)>,
}

impl Open {
    /// What a mark does: the edge, the name and whose it is. `None`: nothing, an end of something
    /// that never began here.
    pub fn mark(
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
    pub fn ranges(&self) -> &[(u32, Option<ThreadId>)] {
        &self.ranges
    }

    /// All end, the innermost first.
    pub fn take(&mut self) -> impl Iterator<Item = (u32, Option<ThreadId>)> + use<> {
        std::mem::take(&mut self.ranges).into_iter().rev()
    }
}
