//! The life of one allocation: the phases that ran between its allocation and its end.

use super::stack_class::{Phase, StackClass};

/// The progress of the program: the number of phases that have begun, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub forwards: u32,
    pub backwards: u32,
    pub optimizers: u32,
    /// Number of allocations in backward passes.
    pub in_backward: u32,
    /// The current phase.
    pub phase: Phase,
    /// The last phase that was not [`Phase::Outside`].
    pub last: Phase,
}

impl Progress {
    /// Counts an allocation of this class.
    pub(super) fn step(&mut self, class: StackClass) {
        let Some(phase) = class.phase() else { return };
        if phase != self.phase {
            match phase {
                Phase::Forward => self.forwards += 1,
                Phase::Backward => self.backwards += 1,
                Phase::Optimizer => self.optimizers += 1,
                Phase::Outside => {}
            }
            self.phase = phase;
        }
        if phase != Phase::Outside {
            self.last = phase;
        }
        self.in_backward += u32::from(phase == Phase::Backward);
    }
}

/// An allocation that outlives this many further passes counts as kept.
pub(super) const KEPT: u32 = 3;

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was freed. `same_thread`: by the thread that allocated it. `next`: the phase of the next
    /// allocation; `None`: there was none.
    Freed { same_thread: bool, next: Option<Phase> },
    /// It was live at the end of the trace, or before missing events.
    NotSeen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub class: StackClass,
    /// The progress at its allocation, itself included.
    pub born: Progress,
    /// It was allocated before the events that are in the file.
    pub older: bool,
    pub ended: Progress,
    pub end: End,
}

impl Life {
    pub(super) fn is_freed(&self) -> bool {
        self.end != End::NotSeen
    }

    pub(super) fn forwards(&self) -> u32 {
        self.ended.forwards - self.born.forwards
    }

    pub(super) fn backwards(&self) -> u32 {
        self.ended.backwards - self.born.backwards
    }

    /// Whether it counts as kept. A program that trains may run many forward passes for one backward
    /// pass, to validate: backward passes decide where there are any.
    pub(super) fn is_kept(&self) -> bool {
        match self.backwards() {
            0 => self.forwards() >= KEPT,
            backwards => backwards >= KEPT,
        }
    }

    pub(super) fn optimizers(&self) -> u32 {
        self.ended.optimizers - self.born.optimizers
    }

    /// Whether it ended in the phase of its allocation.
    pub(super) fn within_phase(&self) -> bool {
        let same = self.forwards() == 0 && self.backwards() == 0 && self.optimizers() == 0;
        same && self.ended.phase == self.born.phase
    }

    /// Whether it was freed in this phase, and the phase continued.
    pub(super) fn freed_amid(&self, phase: Phase) -> bool {
        let went_on = matches!(self.end, End::Freed { next, .. } if next == Some(phase));
        self.ended.phase == phase && went_on
    }
}
