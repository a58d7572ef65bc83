//! The life of one allocation, the phases that ran between its allocation and its end, and what the lives of all
//! allocations of a trace tell: whether the program trains, and the roles of those that were freed, by stack and size.
//! Memory is bounded by the number of stacks and sizes.

use rustc_hash::{FxHashMap, FxHashSet};
use vramtrace_format::StackId;

use super::Role;
use super::class::{StackClass, StepPart};

/// The progress of the program: the number of phases that have begun, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrainingProgress {
    pub forwards: u32,
    pub backwards: u32,
    pub optimizers: u32,
    /// Number of allocations in backward passes.
    pub in_backward: u32,
    /// The current phase.
    pub phase: StepPart,
    /// The last phase that was not [`StepPart::Outside`].
    pub last: StepPart,
}

impl TrainingProgress {
    /// Counts an allocation of this class.
    pub(super) fn step(&mut self, class: StackClass) {
        let Some(phase) = class.phase() else { return };
        if phase != self.phase {
            match phase {
                StepPart::Forward => self.forwards += 1,
                StepPart::Backward => self.backwards += 1,
                StepPart::Optimizer => self.optimizers += 1,
                StepPart::Outside => {}
            }
            self.phase = phase;
        }
        if phase != StepPart::Outside {
            self.last = phase;
        }
        self.in_backward += u32::from(phase == StepPart::Backward);
    }
}

/// An allocation that outlives this many further passes counts as kept.
pub(super) const KEPT: u32 = 3;

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was freed. `same_thread`: by the thread that allocated it. `next`: the phase of the next
    /// allocation; `None`: there was none.
    Freed { same_thread: bool, next: Option<StepPart> },
    /// It was live at the end of the trace, or before missing events.
    NotSeen,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub class: StackClass,
    /// The progress at its allocation, itself included.
    pub born: TrainingProgress,
    /// It was allocated before the events that are in the file.
    pub older: bool,
    pub ended: TrainingProgress,
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
    pub(super) fn freed_amid(&self, phase: StepPart) -> bool {
        let went_on = matches!(self.end, End::Freed { next, .. } if next == Some(phase));
        self.ended.phase == phase && went_on
    }
}

/// Allocations with the same stack and size mostly have the same role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StackAndSize {
    pub stack: StackId,
    pub bytes: u64,
}

/// Maximum number of sites: in some programs, sizes vary without end.
const MAX_SITES: usize = 1 << 18;

#[derive(Clone, Debug, Default)]
pub(super) struct Fate {
    /// Number of freed allocations by role, at [`Role::index`].
    roles: [u32; Role::ALL.len()],
    /// Number of different forward passes that made an allocation which is kept.
    pub(super) kept_rounds: u32,
    last_kept: u32,
    /// Number of allocations that are kept, of classes that make weights.
    kept: u32,
    class: StackClass,
}

/// The gradients of one size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gradients {
    /// The backward pass that `count` is of.
    pass: u32,
    count: u32,
    /// The highest number in one pass.
    most: u32,
}

impl Gradients {
    fn add(&mut self, pass: u32) {
        if self.pass != pass {
            (self.pass, self.count) = (pass, 0);
        }
        self.count += 1;
        self.most = self.most.max(self.count);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    ended: TrainingProgress,
    pub(super) sites: FxHashMap<StackAndSize, Fate>,
    /// By size.
    pub(super) gradients: FxHashMap<u64, Gradients>,
    /// Sites of kept memory with the size of gradients, of which there are fewer.
    pub(super) surplus: FxHashSet<StackAndSize>,
    /// The highest number of backward passes that began during the life of a freed gradient.
    pub(super) gradient_life: Option<u32>,
}

impl Learned {
    /// Adds one allocation whose life has ended.
    pub(super) fn note(&mut self, life: &Life, site: StackAndSize, role: Role) {
        if role == Role::Gradients && life.class == StackClass::Backward {
            self.gradients.entry(site.bytes).or_default().add(life.born.backwards);
            if life.is_freed() {
                let lived = life.backwards();
                self.gradient_life = Some(self.gradient_life.map_or(lived, |most| most.max(lived)));
            }
        }
        if self.sites.len() >= MAX_SITES && !self.sites.contains_key(&site) {
            return;
        }
        let fate = self.sites.entry(site).or_default();
        fate.class = life.class;
        if life.older || life.is_kept() {
            fate.kept += 1;
        }
        if life.is_freed() {
            fate.roles[role.index()] += 1;
        } else if life.is_kept() && (fate.kept_rounds == 0 || fate.last_kept != life.born.forwards)
        {
            fate.kept_rounds += 1;
            fate.last_kept = life.born.forwards;
        }
    }

    pub(super) fn finish(&mut self, ended: TrainingProgress) {
        self.ended = ended;
        self.surplus = self.find_surplus();
    }

    /// Each weight has one gradient. Of kept memory with the size of gradients, what modules load counts first, then
    /// the stacks in the order in which the program came to them; what is beyond the gradients is no weight.
    fn find_surplus(&self) -> FxHashSet<StackAndSize> {
        let may_be_weights =
            |class| matches!(class, StackClass::Load | StackClass::Copy | StackClass::Outside);
        let mut kept: Vec<(StackAndSize, StackClass, u32)> = self
            .sites
            .iter()
            .filter(|(_, fate)| fate.kept > 0 && may_be_weights(fate.class))
            .map(|(site, fate)| (*site, fate.class, fate.kept))
            .collect();
        kept.sort_by_key(|(site, class, _)| (site.bytes, *class != StackClass::Load, site.stack.0));
        let mut surplus = FxHashSet::default();
        for of_size in kept.chunk_by(|(one, ..), (other, ..)| one.bytes == other.bytes) {
            let Some(gradients) = self.gradients.get(&of_size[0].0.bytes) else { continue };
            let mut weights = 0;
            for (site, class, count) in of_size {
                if *class != StackClass::Load && weights >= gradients.most {
                    surplus.insert(*site);
                }
                weights += count;
            }
        }
        surplus
    }

    /// Whether the program runs backward passes.
    pub(super) fn trains(&self) -> bool {
        self.ended.backwards > 0
    }

    pub(super) fn forwards(&self) -> u32 {
        self.ended.forwards
    }

    /// The most frequent role of this site's freed allocations.
    pub(super) fn usual(&self, site: StackAndSize) -> Option<Role> {
        let fate = self.sites.get(&site)?;
        let most = Role::ALL.into_iter().max_by_key(|role| fate.roles[role.index()])?;
        (fate.roles[most.index()] > 0).then_some(most)
    }
}
