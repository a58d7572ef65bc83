//! The result of the first pass over a trace: whether the program trains, and the roles of allocations that
//! were freed, by stack and size. Memory is bounded by the number of stacks and sizes.

use rustc_hash::{FxHashMap, FxHashSet};
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
    /// Number of allocations that are kept, of classes that make weights.
    kept: u32,
    class: StackClass,
}

/// The gradients of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Gradients {
    /// The backward pass that `count` is of.
    pass: u32,
    count: u32,
    /// The most of one pass.
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
    ended: Progress,
    sites: FxHashMap<Site, Fate>,
    /// By size.
    gradients: FxHashMap<u64, Gradients>,
    /// Sites of kept memory with the size of gradients, of which there are fewer.
    surplus: FxHashSet<Site>,
    /// The most backward passes that began during the life of a freed gradient.
    gradient_life: Option<u32>,
}

impl Learned {
    /// Adds one allocation whose life has ended.
    pub(super) fn note(&mut self, life: &Life, site: Site, role: Role) {
        if role == Role::Gradients && life.class == StackClass::Backward {
            self.gradients.entry(site.bytes).or_default().add(life.born.backwards);
            if life.is_freed() {
                let lived = life.backwards();
                self.gradient_life = Some(self.gradient_life.map_or(lived, |most| most.max(lived)));
            }
        }
        if self.sites.len() >= MOST_SITES && !self.sites.contains_key(&site) {
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

    pub(super) fn finish(&mut self, ended: Progress) {
        self.ended = ended;
        self.surplus = self.find_surplus();
    }

    /// Each weight has one gradient. Of kept memory with the size of gradients, what modules load counts first, then
    /// the stacks in the order in which the program came to them; what is beyond the gradients is no weight.
    fn find_surplus(&self) -> FxHashSet<Site> {
        let may_be_weights =
            |class| matches!(class, StackClass::Load | StackClass::Copy | StackClass::Outside);
        let mut kept: Vec<(Site, StackClass, u32)> = self
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

    /// Whether weights with gradients leave nothing for this site: it holds something else of their size.
    pub(super) fn is_surplus(&self, site: Site) -> bool {
        self.surplus.contains(&site)
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
