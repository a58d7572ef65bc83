//! What to try after an out-of-memory, the most promising first.

use serde::{Serialize, Serializer};
use vramtrace_format::Kind;

use super::{Cause, PostMortem};
use crate::analysis::Level;
use crate::analysis::whatif::{LARGEST_DEVICE, Origin};

/// A change that would have served the request, as far as the trace tells. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// VRAMTRACE_CAP cannot be understood.
    CorrectCap,
    /// A value of PYTORCH_CUDA_ALLOC_CONF that fits in the same limit, with `spare` bytes left.
    Setting { conf: String, spare: u64, origin: Origin },
    /// The lowest sufficient cap.
    Cap { bytes: u64 },
    /// A larger torch.cuda.set_per_process_memory_fraction.
    Fraction,
    /// The lowest sufficient capacity of the card, or of this process's part of it.
    Card { bytes: u64 },
    /// Empty segments of PyTorch's cache: torch.cuda.empty_cache() frees them for other libraries.
    EmptyCache { bytes: u64 },
    /// The largest request that would have been served.
    Smaller { bytes: u64 },
    /// Other processes hold this much of the card.
    Others { bytes: u64 },
}

impl Advice {
    /// The name in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Advice::CorrectCap => "correct_cap",
            Advice::Setting { .. } => "setting",
            Advice::Cap { .. } => "cap",
            Advice::Fraction => "memory_fraction",
            Advice::Card { .. } => "card",
            Advice::EmptyCache { .. } => "empty_cache",
            Advice::Smaller { .. } => "smaller_request",
            Advice::Others { .. } => "other_processes",
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AdviceFacts<'a> {
    /// `correct_cap`, `setting`, `cap`, `memory_fraction`, `card`, `empty_cache`,
    /// `smaller_request` or `other_processes`.
    what: &'static str,
    /// A PYTORCH_CUDA_ALLOC_CONF.
    #[serde(skip_serializing_if = "Option::is_none")]
    conf: Option<&'a str>,
    bytes: Option<u64>,
    /// Bytes that a setting would leave unused, `under` a `cap`, a `card` or what was `reserved` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    spare_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    under: Option<Origin>,
}

impl Serialize for Advice {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let what = self.name();
        let (conf, spare_bytes, under) = match self {
            Advice::Setting { conf, spare, origin } => (Some(&**conf), Some(*spare), Some(*origin)),
            _ => (None, None, None),
        };
        let bytes = match *self {
            Advice::CorrectCap | Advice::Fraction | Advice::Setting { .. } => None,
            Advice::Cap { bytes }
            | Advice::Card { bytes }
            | Advice::EmptyCache { bytes }
            | Advice::Smaller { bytes }
            | Advice::Others { bytes } => Some(bytes),
        };
        AdviceFacts { what, conf, bytes, spare_bytes, under }.serialize(to)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Advice {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Advice".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        AdviceFacts::json_schema(generator)
    }
}

/// PyTorch and the driver round large requests up to this.
const PAGE: u64 = 2 << 20;
/// The driver takes managed memory in steps of this size.
const MANAGED_STEP: u64 = 128 << 20;
/// A smaller request than this is not suggested.
const NOTABLE: u64 = 1 << 20;
/// The least memory of other processes that is reported: the driver itself takes some.
const OTHERS: u64 = 1 << 30;

/// The advice for one out-of-memory, the most promising first.
pub fn advice(one: &PostMortem) -> Vec<Advice> {
    if one.cause == Cause::BadCap {
        return vec![Advice::CorrectCap];
    }
    let mut all = Vec::new();
    if let Some(remedy) = &one.remedy
        && let Some((conf, spare)) = &remedy.fix
    {
        let origin = remedy.origin;
        all.push(Advice::Setting { conf: conf.clone(), spare: *spare, origin });
    }
    let missing = one.room().map(|room| one.oom.size.saturating_sub(room));
    if one.oom.level == Level::Driver && missing.is_some_and(|it| one.releasable >= it) {
        all.push(Advice::EmptyCache { bytes: one.releasable });
    }
    match enough(one) {
        _ if one.own_limit => all.push(Advice::Fraction),
        // A cap above the memory of the card is no help.
        Some(bytes) if one.card_bytes.is_some_and(|card| one.is_capped() && bytes > card) => {}
        Some(bytes) if bytes > LARGEST_DEVICE => {}
        // The limit was another than the card, and is not known.
        Some(_) if one.imported && !one.is_imported_from_full_card() => {}
        Some(bytes) if one.is_capped() => all.push(Advice::Cap { bytes }),
        Some(bytes) => all.push(Advice::Card { bytes }),
        None => {}
    }
    if let Some(bytes) = others(one) {
        all.push(Advice::Others { bytes });
    }
    let hole = if one.oom.level == Level::Tensor { one.largest_hole } else { 0 };
    let served = one.room().unwrap_or(0).max(hole) / PAGE * PAGE;
    if served >= NOTABLE && served < one.oom.size {
        all.push(Advice::Smaller { bytes: served });
    }
    all
}

/// The lowest sufficient limit with the setting in force.
fn enough(one: &PostMortem) -> Option<u64> {
    if let Some(bytes) = one.remedy.as_ref().and_then(|remedy| remedy.as_it_is) {
        return Some(bytes);
    }
    let at = one.oom.refusal?;
    let refused = at.refused;
    // The driver rounds the sum of all managed memory.
    let step = if at.kind == Some(Kind::Managed) { MANAGED_STEP } else { PAGE };
    let used = match one.is_capped() {
        true => refused.counted,
        false => one.ours(),
    };
    let size = refused.size.div_ceil(step).saturating_mul(step);
    Some(used.saturating_add(size).div_ceil(PAGE).saturating_mul(PAGE))
}

/// Bytes of other processes on the card, where these are the cause.
fn others(one: &PostMortem) -> Option<u64> {
    let listed = one.oom.neighbours.iter().filter_map(|other| other.bytes);
    let listed = listed.fold(0, u64::saturating_add);
    let rest = || one.card_bytes?.checked_sub(one.card_free()?)?.checked_sub(one.ours());
    let held = if listed > 0 { listed } else { rest()? };
    (one.cause == Cause::Card && held >= OTHERS).then_some(held)
}
