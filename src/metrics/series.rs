//! Series: a metric, its labels and its value.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::families::{Family, Merge};

/// The labels that a process has. Processes with the same labels are one series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    pub job: String,
    pub rank: String,
    pub pod: String,
    pub container: String,
    pub executable: String,
}

/// What stands for several values of a label.
pub const OTHER: &str = "other";
pub const ALL_DEVICES: &str = "all";

impl Group {
    /// The processes that the limit of series leaves no series of their own.
    pub fn other() -> Group {
        let other = || OTHER.to_string();
        Group { job: other(), rank: other(), pod: other(), container: other(), executable: other() }
    }

    pub fn labels(&self) -> [(&'static str, &str); 5] {
        [
            ("job", &self.job),
            ("rank", &self.rank),
            ("pod", &self.pod),
            ("container", &self.container),
            ("executable", &self.executable),
        ]
    }
}

/// A series of a group: the metric, the device (empty: none), the value of the metric's own label (empty: none).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub family: Family,
    pub device: Arc<str>,
    pub label: Arc<str>,
}

/// The series of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(pub BTreeMap<Name, f64>);

impl Series {
    /// Adds a value; one that is there is merged.
    pub fn add(&mut self, name: Name, value: f64) {
        let merge = name.family.about().merge;
        let entry = self.0.entry(name);
        entry
            .and_modify(|there| {
                *there = match merge {
                    Merge::Sum => *there + value,
                    Merge::Most => there.max(value),
                    Merge::Least => there.min(value),
                }
            })
            .or_insert(value);
    }

    pub fn put(&mut self, family: Family, device: &str, label: &str, value: f64) {
        self.add(Name { family, device: device.into(), label: label.into() }, value);
    }

    pub fn merge(&mut self, other: Series) {
        for (name, value) in other.0 {
            self.add(name, value);
        }
    }

    /// With other names; series that get the same name are merged.
    pub fn renamed(self, rename: impl Fn(Name) -> Name) -> Series {
        let mut renamed = Series::default();
        for (name, value) in self.0 {
            renamed.add(rename(name), value);
        }
        renamed
    }

    /// The sum of a metric over all of its series.
    pub fn total(&self, family: Family) -> f64 {
        self.0.iter().filter(|(name, _)| name.family == family).map(|(_, value)| value).sum()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
