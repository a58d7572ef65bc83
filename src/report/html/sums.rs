//! The sums of a device that the columns of a page contain.

use vramtrace_format::Kind;

use crate::replay::DeviceState;

/// What a sum counts. `web/` uses the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Physical bytes of allocations.
    Live = 0,
    /// The bytes that nvidia-smi shows for the process; 0: not known.
    Process = 1,
    Contexts = 2,
    Managed = 3,
    /// The cap plus 1; 0: no cap.
    Cap = 4,
    /// Mapped bytes of the segments of PyTorch's cache.
    Reserved = 5,
    /// Bytes of PyTorch's blocks outside of all known memory.
    Outside = 6,
    /// Bytes of blocks that are not listed one by one.
    Lumped = 7,
    /// The number of these blocks.
    LumpedCount = 8,
    /// Bytes of segments that are unmapped during a sleep.
    Asleep = 9,
}

pub(super) const FIELDS: usize = 10;
pub(super) type Values = [(Field, u64); FIELDS];

/// The sums of one device while it is recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// The values that were written last, by [`Field`].
    pub written: [u64; FIELDS],
    /// Bytes of live blocks that are not listed one by one.
    pub lumped: u64,
    /// The number of these blocks.
    pub lumped_count: u64,
    /// The ordinal of the highest peak.
    pub peak: Option<u64>,
    /// The highest value so far of [`Field::Live`] and [`Field::Lumped`].
    pub highest: u64,
}

impl Sums {
    /// The current value of each field.
    pub(super) fn values(&self, state: &DeviceState) -> Values {
        [
            (Field::Live, state.live_bytes),
            (Field::Process, state.process_bytes().unwrap_or(0)),
            (Field::Contexts, state.context_bytes),
            (Field::Managed, state.kind(Kind::Managed).live_bytes),
            (Field::Cap, state.cap_bytes.map_or(0, |cap| cap.saturating_add(1))),
            // The page shows only memory that is mapped on the card.
            (Field::Reserved, state.cache.reserved_resident()),
            (Field::Outside, state.cache.outside),
            (Field::Lumped, self.lumped),
            (Field::LumpedCount, self.lumped_count),
            (Field::Asleep, state.cache.reserved_paused),
        ]
    }
}
