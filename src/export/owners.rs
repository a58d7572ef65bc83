//! The owners of physical objects that were mapped in place of unmapped memory. An allocator creates new
//! objects when it maps its memory again; their owner is the stack that allocated the memory first.

use rustc_hash::FxHashMap;
use vramtrace_format::{Space, StackId, Stamped};

use crate::replay::{Key, Live, Mapping, Observer};
use crate::trace::{Definitions, Trace};

/// A trace with reservations has a site of this function.
const RESERVE: &str = "cuMemAddressReserve";

/// The stack that first allocated the memory, and the stack that mapped it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BroughtBack {
    pub owner: StackId,
    pub by: StackId,
}

/// The owners by key and time of allocation.
#[derive(Debug, Default)]
pub(super) struct Owners(FxHashMap<(Key, u64), BroughtBack>);

impl Owners {
    /// Reads the trace once, unless it has no reservations.
    pub(super) fn of(trace: &Trace, definitions: &Definitions) -> Owners {
        let reserves = definitions.sites().any(|site| definitions.api_name(site.api) == RESERVE);
        let mut finder = OwnerFinder::default();
        if reserves {
            trace.replay(definitions, &mut finder);
        }
        finder.finish()
    }

    /// The owner of an object. `None`: the stack that created it.
    pub(super) fn get(&self, key: Key, live: &Live) -> Option<BroughtBack> {
        match key.space {
            Space::Vmm => self.0.get(&(key, live.time_ns)).copied(),
            _ => None,
        }
    }
}

/// Bytes of an object that replaced unmapped memory, by owner and caller.
type Woken = Vec<(BroughtBack, u64)>;

/// The size of each object, and the bytes that replaced unmapped memory.
#[derive(Default)]
struct OwnerFinder(FxHashMap<(Key, u64), (u64, Woken)>);

impl OwnerFinder {
    /// An object gets another owner if at least half of it replaced that owner's memory.
    fn finish(self) -> Owners {
        let owner = |(of, (size, woken)): ((Key, u64), (u64, Woken))| {
            let (largest, bytes) = woken.into_iter().max_by_key(|(_, bytes)| *bytes)?;
            (bytes >= size.div_ceil(2)).then_some((of, largest))
        };
        Owners(self.0.into_iter().filter_map(owner).collect())
    }
}

impl Observer for OwnerFinder {
    fn on_wake(&mut self, _at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let (Some(woken), Some(object)) = (mapping.woken, object) else { return };
        let key = Key::object(mapping.object);
        let (_, pieces) = self.0.entry((key, object.time_ns)).or_insert((object.size, Vec::new()));
        let of = BroughtBack { owner: woken.owner.stack, by: woken.by };
        match pieces.iter_mut().find(|(known, _)| *known == of) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(mapping.size),
            None => pieces.push((of, mapping.size)),
        }
    }
}
