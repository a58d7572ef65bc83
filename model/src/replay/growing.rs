//! Replays a trace that is still written: each reading goes on where the last one ended.

use vramtrace_format::{Cursor, Event, StackId, Stamped, TraceReader};

use super::trace::Gaps;
use super::{Observer, Replay, State};
use crate::trace::{Definitions, Trace};

/// Events that are decoded before they are applied: the definitions that they refer to are read in between.
const AT_ONCE: usize = 1 << 14;

/// A replay of the events that were written so far.
#[derive(Clone, Debug, Default)]
pub struct GrowingReplay {
    replay: Replay,
    cursor: Cursor,
    definitions: Definitions,
    /// Bytes of the windows of the definitions.
    defined_bytes: u64,
    /// The last reading did not get to the end.
    is_behind: bool,
}

/// Follows a [`GrowingReplay`]: it gets new definitions before the events that refer to them.
pub trait Follower {
    fn on_definitions(&mut self, definitions: &Definitions);
    fn observer(&mut self) -> impl Observer;
}

impl GrowingReplay {
    pub fn state(&self) -> &State {
        &self.replay.state
    }

    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Applies the events since the last reading, so many at most. `trace` was opened for this reading. Returns whether
    /// all that there are were read. `None`: nothing was read, because the next events were erased meanwhile from a
    /// bounded trace, or the trace was cut. Then only a new replay is right.
    pub fn read(
        &mut self,
        trace: &Trace,
        most: usize,
        follower: &mut impl Follower,
    ) -> Option<bool> {
        let begins = self.cursor == Cursor::default();
        let Some(reader) = trace.reader() else { return begins.then_some(true) };
        if begins {
            trace.count_decode();
        } else if !reader.can_resume(self.cursor) {
            return None;
        }
        let mut gaps = Gaps::after(&reader, self.cursor);
        let mut events = reader.tail(self.cursor);
        let mut left = most;
        let mut decoded: Vec<(Stamped, bool)> = Vec::new();
        let goes_on = std::mem::replace(&mut self.is_behind, true);
        if !goes_on {
            self.renew_definitions(trace, &reader, follower);
        }
        while left > 0 {
            decoded.clear();
            while decoded.len() < left.min(AT_ONCE)
                && let Some(at) = events.next()
            {
                let missing = gaps.are_before(&at, events.damage().len());
                decoded.push((at, missing));
            }
            if decoded.is_empty() {
                self.is_behind = false;
                break;
            }
            left -= decoded.len();
            // A definition is written before the events that refer to it, but maybe after the definitions were read.
            if decoded.iter().any(|(at, _)| self.is_undefined(&at.event)) {
                self.renew_definitions(trace, &reader, follower);
            }
            for (at, missing) in &decoded {
                if *missing {
                    self.replay.gap();
                }
                let mut observer = follower.observer();
                self.replay.apply(&self.definitions, at, &mut observer);
                observer.on_applied(at, &self.replay.state);
            }
        }
        self.cursor = events.cursor();
        Some(!self.is_behind)
    }

    fn renew_definitions(
        &mut self,
        trace: &Trace,
        reader: &TraceReader,
        follower: &mut impl Follower,
    ) {
        self.defined_bytes = reader.definition_bytes();
        self.definitions = trace.definitions().0;
        follower.on_definitions(&self.definitions);
    }

    /// What its memory grows with: [`State::entries`], and each KiB of definitions.
    pub fn entries(&self) -> usize {
        self.replay.state.entries().saturating_add((self.defined_bytes >> 10) as usize)
    }

    /// Whether an allocation refers to a site or stack that is not among the definitions.
    fn is_undefined(&self, event: &Event) -> bool {
        let Event::Alloc(alloc) = event else { return false };
        let no_stack =
            alloc.stack != StackId(0) && self.definitions.stacks().get(alloc.stack).is_none();
        no_stack || self.definitions.site(alloc.site).is_none()
    }
}

#[cfg(test)]
mod tests {
    use vramtrace_format::SLOT;

    use super::*;
    use crate::replay::Until;
    use crate::testing::cached;

    #[derive(Default)]
    struct Counts {
        definitions: usize,
        events: u64,
    }

    impl Follower for Counts {
        fn on_definitions(&mut self, definitions: &Definitions) {
            self.definitions = definitions.stacks().ids().count();
        }

        fn observer(&mut self) -> impl Observer {
            self
        }
    }

    impl Observer for Counts {
        fn on_applied(&mut self, _at: &Stamped, _state: &State) {
            self.events += 1;
        }
    }

    fn shown(state: &State) -> String {
        format!("{:?} {:?}", state.devices, state.live)
    }

    #[test]
    fn readings_of_any_length_give_the_state_of_a_replay() {
        let trace = Trace::of(&cached());
        let definitions = trace.definitions().0;
        for step in [1, 7, 1000] {
            let (mut growing, mut counts) = (GrowingReplay::default(), Counts::default());
            let mut before = 0;
            loop {
                let read = growing.read(&trace, step, &mut counts);
                assert_eq!(read, Some(counts.events - before < step as u64));
                // One window of definitions.
                assert_eq!(growing.entries(), growing.state().entries() + (SLOT >> 10));
                if counts.events == before {
                    break;
                }
                assert!(counts.events - before <= step as u64 && counts.definitions > 5);
                before = counts.events;
                let until = Until::Time(growing.state().time_ns);
                // Of events with equal times the replay has all.
                let replayed = trace.replay_until(&definitions, until, &mut (), &mut |_, _| {});
                if replayed.state.events == before {
                    assert_eq!(shown(growing.state()), shown(&replayed.state), "{before}");
                }
            }
            assert!(before > 40, "{before}");
            let whole = trace.replay(&definitions, &mut ()).state;
            assert_eq!((shown(growing.state()), before), (shown(&whole), whole.events));
        }
    }
}
