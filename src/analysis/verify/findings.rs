//! What a check of a trace found: the result, and the JSON of a trace.

use std::fmt;

use rustc_hash::FxHashSet;
use serde::{Serialize, Serializer};
use vramtrace_format::{DeviceId, Stamped};

use crate::replay::Key;

/// Violations that are kept. More are counted.
const KEPT: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Violation {
    #[cfg_attr(test, schemars(with = "String"))]
    pub rule: Rule,
    /// Of the event at which it showed, ns since the start.
    pub time_ns: u64,
    /// Where that event stands in the file.
    pub offset: u64,
    #[serde(serialize_with = "number")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: Option<DeviceId>,
    /// The address, or the number that stands for it.
    #[serde(flatten, serialize_with = "place")]
    #[cfg_attr(test, schemars(with = "Place"))]
    pub key: Option<Key>,
    /// What was compared.
    pub what: String,
    pub expected: String,
    pub found: String,
}

impl Violation {
    pub(super) fn new(
        rule: Rule,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Violation {
        let (expected, found) = (expected.to_string(), found.to_string());
        let (time_ns, offset, device, key, what) = (0, 0, None, None, what.into());
        Violation { rule, time_ns, offset, device, key, what, expected, found }
    }

    pub(super) fn on(self, device: DeviceId) -> Violation {
        Violation { device: Some(device), ..self }
    }

    pub(super) fn of(self, key: Key) -> Violation {
        Violation { key: Some(key), ..self }
    }

    pub(super) fn at(self, at: &Stamped) -> Violation {
        Violation { time_ns: at.time_ns, offset: at.offset, ..self }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Place {
    space: Option<String>,
    address: Option<u64>,
}

fn place<S: Serializer>(key: &Option<Key>, to: S) -> Result<S::Ok, S::Error> {
    let space = key.map(|key| format!("{:?}", key.space).to_lowercase());
    Place { space, address: key.map(|key| key.number) }.serialize(to)
}

fn number<S: Serializer>(device: &Option<DeviceId>, to: S) -> Result<S::Ok, S::Error> {
    device.map(|device| device.0).serialize(to)
}

/// What was checked, and what was wrong.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Differences that were reported: a sum that is wrong stays wrong.
    #[serde(skip)]
    reported: FxHashSet<(Rule, Option<DeviceId>, Option<Key>, String)>,
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
            let (what, found) = match rule {
                Rule::Totals => {
                    (format!("{what}, as the recorder counted"), format!("{found} in the events"))
                }
                Rule::Checkpoint => (format!("{what} in a checkpoint"), found.to_string()),
                _ => (what.to_string(), found.to_string()),
            };
            let violation = Violation::new(rule, what, expected, found).at(at);
            self.add(Violation { device, ..violation });
        }
    }

    /// Each rule, device, address and subject counts once.
    pub(super) fn add(&mut self, violation: Violation) {
        let Violation { rule, device, key, what, .. } = &violation;
        let subject = (*rule, *device, *key, what.clone());
        if self.reported.contains(&subject) {
            return;
        }
        if self.reported.len() < KEPT {
            self.reported.insert(subject);
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
        if self.rule == Rule::Cut {
            return write!(f, "{}: expected {}, found {}", self.what, self.expected, self.found);
        }
        write!(f, "{:.9} s", self.time_ns as f64 / 1e9)?;
        match self.device {
            Some(DeviceId::UNKNOWN) => f.write_str(", unknown device")?,
            Some(device) => write!(f, ", device {}", device.0)?,
            None => {}
        }
        if let Some(key) = self.key {
            write!(f, ", {:?} {:#x}", key.space, key.number)?;
        }
        write!(f, ": {}: expected {}, found {}", self.what, self.expected, self.found)
    }
}
