//! The key `damage`: damaged ranges of the traces that a document was made from.

use serde::Serialize;

use crate::trace::{DamageFound, Trace};

/// The most ranges that are listed.
const LISTED: usize = 10;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DamageFacts {
    pub trace: String,
    #[serde(flatten)]
    pub damage: Damage,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Damage {
    pub places: u64,
    pub bytes: u64,
    /// The first ten, as text.
    pub first: Vec<String>,
}

impl Damage {
    pub fn of(found: &DamageFound) -> Damage {
        Damage {
            places: found.ranges.len() as u64,
            bytes: found.bytes(),
            first: found.ranges.iter().take(LISTED).map(|range| range.to_string()).collect(),
        }
    }
}

/// A document, with `damage` if one of its traces is damaged: events in these ranges are missing.
#[derive(Debug, Serialize)]
pub struct WithDamage<'d, D: Serialize> {
    #[serde(flatten)]
    document: &'d D,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damage: Vec<DamageFacts>,
}

impl<'d, D: Serialize> WithDamage<'d, D> {
    /// To be called after the traces were read: reading them finds the damage.
    pub fn new<'t>(document: &'d D, traces: impl IntoIterator<Item = &'t Trace>) -> Self {
        WithDamage { document, damage: traces.into_iter().filter_map(damage_facts).collect() }
    }
}

/// The damage of one trace. `None`: it is not damaged.
fn damage_facts(trace: &Trace) -> Option<DamageFacts> {
    let found = trace.damage();
    (!found.ranges.is_empty()).then(|| DamageFacts {
        trace: trace.path().display().to_string(),
        damage: Damage::of(&found),
    })
}
