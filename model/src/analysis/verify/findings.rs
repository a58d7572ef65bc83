//! What a check of a trace found: the result, and the JSON of a trace.

use std::fmt;

use serde::Serialize;
use vramtrace_format::{DeviceId, Stamped};

use crate::facts;
use crate::replay::Key;

/// Violations that are kept. More are counted.
const KEPT: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A free, or the refusal of one, names memory that is not live.
    FreeWithoutAllocation,
    /// Memory was allocated at an address that was live.
    AllocatedTwice,
    /// An event names an id that has no definition.
    Undefined,
    /// The replay's sum differs from what is live, added up.
    Sum,
    /// A sum fell below zero.
    Negative,
    /// The peak is not the highest sum.
    Peak,
    /// Allocations, mappings or blocks overlap.
    Overlap,
    /// A block or a mapping lies outside of the memory below it.
    Outside,
    /// Blocks and holes do not fill their segment.
    Segment,
    /// The recorder's totals differ from the events.
    Totals,
    /// A checkpoint differs from the events before it.
    Checkpoint,
    /// The recorder itself noted a contradiction.
    Recorder,
    /// The file ends inside a window: it was cut.
    Cut,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Violation {
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub rule: Rule,
    /// Of the event at which it showed.
    #[serde(rename = "at_s", with = "facts::Seconds")]
    pub time_ns: u64,
    /// Where that event stands in the file.
    pub offset: u64,
    pub device: Option<u8>,
    pub space: Option<String>,
    /// The address, or the number that stands for it.
    pub address: Option<u64>,
    /// What was compared.
    pub what: String,
    pub expected: String,
    pub found: String,
}

impl Violation {
    pub(super) fn new(
        at: &Stamped,
        rule: Rule,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Violation {
        let (what, expected, found) = (what.into(), expected.to_string(), found.to_string());
        let (device, space, address) = (None, None, None);
        let (time_ns, offset) = (at.time_ns, at.offset);
        Violation { rule, time_ns, offset, device, space, address, what, expected, found }
    }

    pub(super) fn on(self, device: Option<DeviceId>) -> Violation {
        Violation { device: device.map(|device| device.0), ..self }
    }

    pub(super) fn of(self, key: Option<Key>) -> Violation {
        let space = key.map(|key| format!("{:?}", key.space).to_lowercase());
        Violation { space, address: key.map(|key| key.number), ..self }
    }

    /// Of the same figure: a sum that is wrong stays wrong.
    fn repeats(&self, other: &Violation) -> bool {
        (self.address, self.rule, self.device, &self.space, &self.what)
            == (other.address, other.rule, other.device, &other.space, &other.what)
    }
}

/// What was checked, and what was wrong.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Verification {
    pub trace: String,
    /// No check found a violation.
    pub holds: bool,
    pub events: u64,
    /// Times at which all sums and places were checked.
    pub audits: u64,
    /// The recorder's totals that were compared.
    #[serde(rename = "totals_compared")]
    pub totals: u64,
    /// Checkpoints that were compared.
    #[serde(rename = "checkpoints_compared")]
    pub checkpoints: u64,
    /// Number of all violations.
    pub violated: u64,
    /// The first 1,000 of them.
    pub violations: Vec<Violation>,
    /// Sentences that say what could not be checked.
    pub unchecked: Vec<String>,
}

impl Verification {
    /// Adds a violation for each figure that is not as expected: its name, what is expected, what was found.
    pub(super) fn compare<'f>(
        &mut self,
        at: &Stamped,
        rule: Rule,
        device: Option<DeviceId>,
        figures: impl IntoIterator<Item = (&'f str, u64, u64)>,
    ) {
        for (what, expected, found) in figures.into_iter().filter(|(_, one, two)| one != two) {
            let (of, by) = match rule {
                Rule::Totals => (", as the recorder counted", " in the events"),
                Rule::Checkpoint => (" in a checkpoint", ""),
                _ => ("", ""),
            };
            let (what, found) = (format!("{what}{of}"), format!("{found}{by}"));
            self.add(Violation::new(at, rule, what, expected, found).on(device));
        }
    }

    /// Each rule, device, address and subject counts once.
    pub(super) fn add(&mut self, violation: Violation) {
        if self.violations.iter().any(|known| known.repeats(&violation)) {
            return;
        }
        self.violated += 1;
        if self.violations.len() < KEPT {
            self.violations.push(violation);
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // What is missing has no time.
        if self.rule != Rule::Cut {
            write!(f, "{:.9} s", self.time_ns as f64 / 1e9)?;
        }
        match self.device.map(DeviceId) {
            Some(DeviceId::UNKNOWN) => f.write_str(", unknown device")?,
            Some(device) => write!(f, ", device {}", device.0)?,
            None => {}
        }
        if let (Some(space), Some(address)) = (&self.space, self.address) {
            write!(f, ", {space} {address:#x}")?;
        }
        let colon = if self.rule == Rule::Cut { "" } else { ": " };
        write!(f, "{colon}{}: expected {}, found {}", self.what, self.expected, self.found)
    }
}
