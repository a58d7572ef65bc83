//! Bytes that the driver holds for itself on one device, by cause and by the call after which they
//! appeared.

use rustc_hash::FxHashMap;
use vramtrace_format::{DriverCause, SiteId, StackId, Took};

/// Bytes by cause, at `DriverCause as usize`.
pub type BytesByCause = [u64; DriverCause::COUNT];

/// The bytes of all causes.
pub(super) fn sum(of: &BytesByCause) -> u64 {
    of.iter().copied().fold(0, u64::saturating_add)
}

/// The call that made the driver take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Originator {
    pub cause: DriverCause,
    pub site: SiteId,
    pub stack: StackId,
    /// A text of the definitions: kernel, variable or file; 0 = not known.
    pub name: u32,
}

impl Originator {
    pub fn of(took: &Took) -> Originator {
        let Took { cause, site, stack, name, .. } = *took;
        Originator { cause, site, stack, name }
    }
}

#[derive(Clone, Debug, Default)]
pub struct DriverOwn {
    pub by_cause: BytesByCause,
    makers: FxHashMap<Originator, u64>,
    /// The trace has causes; older recorders wrote none.
    pub has_causes: bool,
}

impl DriverOwn {
    pub fn of(&self, cause: DriverCause) -> u64 {
        self.by_cause[cause as usize]
    }

    /// Bytes by originator, largest first.
    pub fn makers(&self) -> Vec<(Originator, u64)> {
        let held = self.makers.iter().filter(|(_, bytes)| **bytes > 0);
        let mut makers: Vec<(Originator, u64)> =
            held.map(|(maker, bytes)| (*maker, *bytes)).collect();
        makers.sort_unstable_by_key(|(maker, bytes)| (std::cmp::Reverse(*bytes), *maker));
        makers
    }

    pub(super) fn apply(&mut self, took: &Took) {
        let Took { cause, delta, .. } = *took;
        self.has_causes = true;
        let sum = &mut self.by_cause[cause as usize];
        *sum = sum.saturating_add_signed(delta);
        let maker = self.makers.entry(Originator::of(took)).or_default();
        *maker = maker.saturating_add_signed(delta);
    }

    /// Clears all, since a checkpoint lists it again.
    pub(super) fn forget(&mut self) {
        self.by_cause = BytesByCause::default();
        self.makers.clear();
    }
}
