//! What a first reading of the trace shows of the program: does it train, and what became of what
//! each stack made. Memory is bounded by stacks and sizes, not by events.

use rustc_hash::FxHashMap;
use vramtrace_format::StackId;

use super::Role;
use super::life::{Life, Progress};
use super::stack_class::StackClass;

/// Allocations of one stack and size mostly meet the same fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Site {
    pub stack: StackId,
    pub bytes: u64,
}

/// More sites are not distinguished: programs whose sizes vary without end.
const MOST_SITES: usize = 1 << 18;

#[derive(Clone, Debug, Default)]
struct Fate {
    /// Allocations whose life was seen to its end, by role.
    roles: [u32; Role::ALL.len()],
    /// In how many different forwards something was made that is kept.
    kept_rounds: u32,
    last_kept: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    ended: Progress,
    sites: FxHashMap<Site, Fate>,
    /// By size: gradients.
    gradients: FxHashMap<u64, u32>,
    /// Most rounds of backward that a gradient lived which was freed.
    gradient_life: Option<u32>,
}

impl Learned {
    pub fn note(&mut self, life: &Life, site: Site, role: Role) {
        if role == Role::Gradients && life.class == StackClass::Backward {
            *self.gradients.entry(site.bytes).or_default() += 1;
            if life.is_freed() {
                let lived = life.backwards();
                self.gradient_life = Some(self.gradient_life.map_or(lived, |most| most.max(lived)));
            }
        }
        if self.sites.len() >= MOST_SITES && !self.sites.contains_key(&site) {
            return;
        }
        let fate = self.sites.entry(site).or_default();
        if life.is_freed() {
            fate.roles[role.index()] += 1;
        } else if life.is_kept() && (fate.kept_rounds == 0 || fate.last_kept != life.born.forwards)
        {
            fate.kept_rounds += 1;
            fate.last_kept = life.born.forwards;
        }
    }

    pub fn finish(&mut self, ended: Progress) {
        self.ended = ended;
    }

    /// Does the program run backward?
    pub fn trains(&self) -> bool {
        self.ended.backwards > 0
    }

    pub fn forwards(&self) -> u32 {
        self.ended.forwards
    }

    pub fn gradient_life(&self) -> Option<u32> {
        self.gradient_life
    }

    pub fn makes_gradients_of(&self, bytes: u64) -> bool {
        self.gradients.contains_key(&bytes)
    }

    /// Was what is kept of this site made in one forward alone?
    pub fn is_kept_once(&self, site: Site) -> bool {
        self.sites.get(&site).is_none_or(|fate| fate.kept_rounds <= 1)
    }

    /// What mostly became of this site's allocations.
    pub fn usual(&self, site: Site) -> Option<Role> {
        let fate = self.sites.get(&site)?;
        let most = Role::ALL.into_iter().max_by_key(|role| fate.roles[role.index()])?;
        (fate.roles[most.index()] > 0).then_some(most)
    }
}
