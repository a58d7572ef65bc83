//! The role of a stack as a whole, for memory of which nothing but the stack is known: the recorder's samples of the time
//! whose events were erased. It is the role of most of the stack's bytes in the events that are there.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use vramtrace_format::{Space, StackId};

use super::{Role, RoleFinder};
use crate::trace::{Definitions, Trace};

/// Of a framework's blocks, or of the driver's memory.
type Level = bool;

#[derive(Clone, Debug, Default)]
pub struct RolesByStack(FxHashMap<(Level, StackId), Role>);

impl RolesByStack {
    /// Reads the trace once.
    pub fn new(finder: &RoleFinder, trace: &Trace, definitions: &Definitions) -> RolesByStack {
        let mut sums: FxHashMap<(Level, StackId), BTreeMap<Role, u64>> = FxHashMap::default();
        finder.follow(trace, definitions, &mut |of| {
            let key = (of.key.space == Space::Block, of.live.stack);
            let sum = sums.entry(key).or_default().entry(of.role).or_default();
            *sum = sum.saturating_add(of.live.weigh(of.live.size));
        });
        let most = |roles: BTreeMap<Role, u64>| {
            let most = roles.into_iter().max_by_key(|(role, bytes)| (*bytes, Reverse(*role)));
            most.map_or(Role::Unknown, |(role, _)| role)
        };
        RolesByStack(sums.into_iter().map(|(key, roles)| (key, most(roles))).collect())
    }

    /// [`Role::Unknown`]: no event of the stack is there, or it has no role.
    pub fn of(&self, of_framework: bool, stack: StackId) -> Role {
        self.0.get(&(of_framework, stack)).copied().unwrap_or(Role::Unknown)
    }
}
