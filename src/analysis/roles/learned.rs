//! The result of the first pass over a trace: whether the program trains, and the roles of allocations that
//! were freed, by stack and size. Memory is bounded by the number of stacks and sizes.

use rustc_hash::FxHashMap;
use vramtrace_format::StackId;

use super::Role;
use super::life::{Life, Progress};
use super::stack_class::StackClass;

/// Allocations with the same stack and size mostly have the same role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Site {
    pub stack: StackId,
    pub bytes: u64,
}

/// The most sites: in some programs, sizes vary without end.
const MOST_SITES: usize = 1 << 18;

#[derive(Clone, Debug, Default)]
struct Fate {
    /// Number of freed allocations by role, at [`Role::index`].
    roles: [u32; Role::ALL.len()],
    /// Number of different forward passes that made an allocation which is kept.
    kept_rounds: u32,
    last_kept: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    ended: Progress,
    sites: FxHashMap<Site, Fate>,
    /// Number of gradients by size.
    gradients: FxHashMap<u64, u32>,
    /// The most backward passes that began during the life of a freed gradient.
    gradient_life: Option<u32>,
}

impl Learned {
    /// Adds one allocation whose life has ended.
    pub(super) fn note(&mut self, life: &Life, site: Site, role: Role) {
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

    pub(super) fn finish(&mut self, ended: Progress) {
        self.ended = ended;
    }

    /// Whether the program runs backward passes.
    pub(super) fn trains(&self) -> bool {
        self.ended.backwards > 0
    }

    pub(super) fn forwards(&self) -> u32 {
        self.ended.forwards
    }

    pub(super) fn gradient_life(&self) -> Option<u32> {
        self.gradient_life
    }

    /// Whether the program allocates gradients of this size in backward passes.
    pub(super) fn makes_gradients_of(&self, bytes: u64) -> bool {
        self.gradients.contains_key(&bytes)
    }

    /// Whether a single forward pass made all kept allocations of this site.
    pub(super) fn is_kept_once(&self, site: Site) -> bool {
        self.sites.get(&site).is_none_or(|fate| fate.kept_rounds <= 1)
    }

    /// The most frequent role of this site's freed allocations.
    pub(super) fn usual(&self, site: Site) -> Option<Role> {
        let fate = self.sites.get(&site)?;
        let most = Role::ALL.into_iter().max_by_key(|role| fate.roles[role.index()])?;
        (fate.roles[most.index()] > 0).then_some(most)
    }
}
