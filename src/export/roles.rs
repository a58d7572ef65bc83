//! The role of each allocation at its begin. A role is known at the end of an allocation's life only, so a
//! first pass over the trace finds all roles.

use rustc_hash::FxHashMap;
use vramtrace_format::Stamped;

use crate::analysis::roles::{Role, RoleFinder};
use crate::replay::{AllocCause, Key, Live};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// The roles of all allocations, at nine bytes each.
#[derive(Default)]
pub(super) struct KnownRoles {
    /// File offsets of the allocations' events, ascending.
    offsets: Vec<u64>,
    roles: Vec<Role>,
    /// Allocations without an event in the file, by key and time of allocation.
    older: FxHashMap<(Key, u64), Role>,
}

impl KnownRoles {
    /// Reads the trace twice.
    pub(super) fn of(trace: &Trace, definitions: &Definitions, symbols: &Symbols) -> KnownRoles {
        let finder = RoleFinder::new(trace, definitions, symbols);
        let mut all: Vec<(u64, Role)> = Vec::new();
        let mut older = FxHashMap::default();
        finder.follow(trace, definitions, &mut |of| match of.made_offset {
            0 => {
                older.insert((of.key, of.live.time_ns), of.role);
            }
            offset => all.push((offset, of.role)),
        });
        all.sort_unstable_by_key(|(offset, _)| *offset);
        let offsets = all.iter().map(|(offset, _)| *offset).collect();
        KnownRoles { offsets, roles: all.into_iter().map(|(_, role)| role).collect(), older }
    }

    /// The role of an allocation that begins. `None`: a segment of a cache, or no memory of the device.
    pub(super) fn get(&self, at: &Stamped, key: Key, live: &Live, how: AllocCause) -> Option<Role> {
        if how == AllocCause::Checkpoint {
            return self.older.get(&(key, live.time_ns)).copied();
        }
        let index = self.offsets.binary_search(&at.offset).ok()?;
        Some(self.roles[index])
    }
}
