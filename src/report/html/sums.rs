//! A device's sums, as the columns tell them.

use vramtrace_format::Kind;

use crate::replay::DeviceState;

/// What a sum is of. The page has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Physical bytes of allocations.
    Live = 0,
    /// What nvidia-smi shows; 0: not known.
    Process = 1,
    Contexts = 2,
    Managed = 3,
    /// The cap and 1; 0: none.
    Cap = 4,
    Reserved = 5,
    /// Bytes of blocks in no known memory.
    Outside = 6,
    /// Of blocks that are not listed one by one.
    Lumped = 7,
    /// How many they are.
    LumpedCount = 8,
    /// Bytes of segments that are asleep.
    Asleep = 9,
}

pub const FIELDS: usize = 10;
pub type Values = [(Field, u64); FIELDS];

/// Of one device, as they were written last.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub written: [u64; FIELDS],
    pub lumped: u64,
    pub lumped_count: u64,
    /// The ordinal of the highest peak.
    pub peak: Option<u64>,
    pub highest: u64,
}

impl Sums {
    pub fn values(&self, state: &DeviceState) -> Values {
        [
            (Field::Live, state.live_bytes),
            (Field::Process, state.process_bytes().unwrap_or(0)),
            (Field::Contexts, state.context_bytes),
            (Field::Managed, state.kind(Kind::Managed).live_bytes),
            (Field::Cap, state.cap_bytes.map_or(0, |cap| cap.saturating_add(1))),
            // What is on the card, as all that the page shows.
            (Field::Reserved, state.cache.reserved_resident()),
            (Field::Outside, state.cache.outside),
            (Field::Lumped, self.lumped),
            (Field::LumpedCount, self.lumped_count),
            (Field::Asleep, state.cache.reserved_paused),
        ]
    }
}
