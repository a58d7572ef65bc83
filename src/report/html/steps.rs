//! The steps of a training, as the page draws them.

use crate::analysis::steps::{Step, StepState, Steps};

/// The most steps that a page holds: the first ones of a longer run.
const MOST_STEPS: usize = 20_000;

/// A step on the page: its number, first and last ordinal, and whether it is `skipped` or `unfinished`.
pub(super) type PageStep = (usize, u64, u64, &'static str);

/// Finds the ordinals of the steps while the events are written.
#[derive(Debug, Default)]
pub(super) struct StepOrdinals<'s> {
    steps: &'s [Step],
    /// The ordinal with which the step that runs began.
    began: Option<u64>,
    pub found: Vec<PageStep>,
}

impl<'s> StepOrdinals<'s> {
    pub(super) fn new(steps: Option<&'s Steps>) -> StepOrdinals<'s> {
        let steps = steps.map_or(&[][..], Steps::steps);
        let steps = &steps[..steps.len().min(MOST_STEPS)];
        StepOrdinals { steps, began: None, found: Vec::new() }
    }

    /// The event at this offset in the trace has this ordinal.
    pub(super) fn tick(&mut self, offset: u64, ordinal: u64) {
        while let Some((step, later)) = self.steps.split_first() {
            if self.began.is_some() && offset > step.end.offset {
                self.end(step, ordinal.saturating_sub(1));
                self.steps = later;
                continue;
            }
            if self.began.is_none() && offset >= step.begin.offset {
                self.began = Some(ordinal);
                continue;
            }
            return;
        }
    }

    /// `last`: the last ordinal of the trace.
    pub(super) fn finish(mut self, last: u64) -> Vec<PageStep> {
        if let [step, ..] = self.steps {
            self.end(step, last);
        }
        self.found
    }

    fn end(&mut self, step: &Step, ordinal: u64) {
        let Some(began) = self.began.take() else { return };
        let state = match step.state {
            StepState::Whole => "",
            StepState::Skipped => "skipped",
            StepState::Unfinished => "unfinished",
        };
        self.found.push((step.number, began, ordinal.max(began), state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::steps::Place;

    #[test]
    fn a_step_has_the_ordinals_of_its_first_and_last_event() {
        let place = |offset| Place { offset, time_ns: offset };
        let step = |number, begin, end, state| Step {
            number,
            begin: place(begin),
            end: place(end),
            duration_ns: 0,
            backward_passes: 1,
            updates: 1,
            state,
            peak: place(begin),
            devices: Default::default(),
        };
        let found = vec![
            step(1, 100, 199, StepState::Whole),
            step(2, 200, 290, StepState::Skipped),
            step(3, 400, 900, StepState::Unfinished),
        ];
        let steps = Steps { found: Ok(found), apart: Vec::new() };
        let mut ordinals = StepOrdinals::new(Some(&steps));
        for (ordinal, offset) in (1u64..).zip((50..=500).step_by(50)) {
            ordinals.tick(offset, ordinal);
        }
        assert_eq!(
            ordinals.finish(10),
            [(1, 2, 3, ""), (2, 4, 5, "skipped"), (3, 8, 10, "unfinished")]
        );
        assert!(StepOrdinals::new(None).finish(7).is_empty());
    }
}
