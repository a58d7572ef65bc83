//! Whose physical objects are that were mapped where memory had been unmapped: an allocator that wakes
//! up makes them, and what lay there before has its owner still.

use rustc_hash::FxHashMap;
use vramtrace_format::{Space, StackId, Stamped};

use crate::replay::{Key, Live, Mapping, Observer};
use crate::trace::{Definitions, Trace};

/// The call that all traces with reservations have a site of.
const RESERVE: &str = "cuMemAddressReserve";

/// Whose an object is, and who brought its memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BroughtBack {
    pub owner: StackId,
    pub by: StackId,
}

/// By key and time of birth.
#[derive(Debug, Default)]
pub struct Owners(FxHashMap<(Key, u64), BroughtBack>);

impl Owners {
    /// Reads the trace once, unless nothing was ever reserved in it.
    pub fn of(trace: &Trace, definitions: &Definitions) -> Owners {
        let reserves = definitions.sites().any(|site| definitions.api_name(site.api) == RESERVE);
        let mut finder = OwnerFinder::default();
        if reserves {
            trace.replay(definitions, &mut finder);
        }
        finder.finish()
    }

    pub fn get(&self, key: Key, live: &Live) -> Option<BroughtBack> {
        match key.space {
            Space::Vmm => self.0.get(&(key, live.time_ns)).copied(),
            _ => None,
        }
    }
}

/// What was woken by an object, by owner and caller: bytes.
type Woken = Vec<(BroughtBack, u64)>;

#[derive(Default)]
struct OwnerFinder {
    /// And the object's size.
    objects: FxHashMap<(Key, u64), (u64, Woken)>,
}

impl OwnerFinder {
    /// An object is its maker's where less than half of it was another's.
    fn finish(self) -> Owners {
        let owner = |(of, (size, woken)): ((Key, u64), (u64, Woken))| {
            let (largest, bytes) = woken.into_iter().max_by_key(|(_, bytes)| *bytes)?;
            (bytes >= size.div_ceil(2)).then_some((of, largest))
        };
        Owners(self.objects.into_iter().filter_map(owner).collect())
    }
}

impl Observer for OwnerFinder {
    fn on_wake(&mut self, _at: &Stamped, mapping: &Mapping, object: Option<&Live>) {
        let (Some(woken), Some(object)) = (mapping.woken, object) else { return };
        let key = Key { space: Space::Vmm, number: mapping.object };
        let (_, pieces) =
            self.objects.entry((key, object.time_ns)).or_insert((object.size, Vec::new()));
        let of = BroughtBack { owner: woken.owner.stack, by: woken.by };
        match pieces.iter_mut().find(|(known, _)| *known == of) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(mapping.size),
            None => pieces.push((of, mapping.size)),
        }
    }
}
