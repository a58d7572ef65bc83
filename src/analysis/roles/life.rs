//! What is known of one allocation's life when it has ended.

use super::stack_class::{Phase, StackClass};

/// How far the program had come, in phases that began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub forwards: u32,
    pub backwards: u32,
    pub optimizers: u32,
    /// Allocations in backward.
    pub in_backward: u32,
    /// The one that runs.
    pub phase: Phase,
    /// The last one that was not [`Phase::Outside`].
    pub last: Phase,
}

impl Progress {
    /// An allocation of this class is made.
    pub fn step(&mut self, class: StackClass) {
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

/// What outlives this many further rounds is kept for good.
pub(super) const KEPT: u32 = 3;

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By its free. `same_thread`: on the thread that had allocated it. `next`: in which phase the
    /// next allocation was made; `None`: there was none.
    Freed { same_thread: bool, next: Option<Phase> },
    /// The trace ends first, or what came next is missing in it.
    NotSeen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub class: StackClass,
    /// When it was made, itself included.
    pub born: Progress,
    /// It was there before the events that the file still has.
    pub older: bool,
    pub ended: Progress,
    pub end: End,
}

impl Life {
    pub fn is_freed(&self) -> bool {
        self.end != End::NotSeen
    }

    pub fn forwards(&self) -> u32 {
        self.ended.forwards - self.born.forwards
    }

    pub fn backwards(&self) -> u32 {
        self.ended.backwards - self.born.backwards
    }

    /// A program that trains may run many forwards for one backward: to validate.
    pub fn is_kept(&self) -> bool {
        match self.backwards() {
            0 => self.forwards() >= KEPT,
            backwards => backwards >= KEPT,
        }
    }

    pub fn optimizers(&self) -> u32 {
        self.ended.optimizers - self.born.optimizers
    }

    /// It ended in the phase in which it was made, as far as allocations show.
    pub fn within_phase(&self) -> bool {
        let same = self.forwards() == 0 && self.backwards() == 0 && self.optimizers() == 0;
        same && self.ended.phase == self.born.phase
    }

    /// The phase in which it was freed went on after that.
    pub fn freed_amid(&self, phase: Phase) -> bool {
        let went_on = matches!(self.end, End::Freed { next, .. } if next == Some(phase));
        self.ended.phase == phase && went_on
    }
}
