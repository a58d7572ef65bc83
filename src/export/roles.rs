//! The role of each allocation from its first moment on: a first reading finds them, as roles show at
//! the end of a life.

use rustc_hash::FxHashMap;
use vramtrace_format::Stamped;

use crate::analysis::roles::{Role, RoleFinder};
use crate::replay::{AllocCause, Key, Live};
use crate::symbols::Symbols;
use crate::trace::{Definitions, Trace};

/// Nine bytes an allocation.
#[derive(Default)]
pub struct KnownRoles {
    /// By the place of the event that made it, in order.
    offsets: Vec<u64>,
    roles: Vec<Role>,
    /// Made before the events that the file still has: by key and time.
    older: FxHashMap<(Key, u64), Role>,
}

impl KnownRoles {
    pub fn of(trace: &Trace, definitions: &Definitions, symbols: &Symbols) -> KnownRoles {
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

    /// `None`: it is a segment of a cache, or no memory of the device.
    pub fn get(&self, at: &Stamped, key: Key, live: &Live, how: AllocCause) -> Option<Role> {
        if how == AllocCause::Checkpoint {
            return self.older.get(&(key, live.time_ns)).copied();
        }
        let index = self.offsets.binary_search(&at.offset).ok()?;
        Some(self.roles[index])
    }
}
