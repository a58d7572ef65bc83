//! What to try after an out-of-memory, the most promising first.

use serde::Serialize;
use vramtrace_format::{Kind, RefusedBy};

use super::{OomCause, PostMortem};
use crate::analysis::Level;
use crate::analysis::whatif::{LARGEST_DEVICE, Origin};

/// A change that would have served the request, as far as the trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvisedChange {
    /// The same request, after the other streams are done with so many bytes.
    Repeat,
    /// VRAMTRACE_CAP cannot be understood.
    CorrectCap,
    /// A value of PYTORCH_CUDA_ALLOC_CONF that fits in the same limit.
    Setting,
    /// The lowest sufficient cap.
    Cap,
    /// The lowest sufficient cap of the group.
    GroupCap,
    /// A larger torch.cuda.set_per_process_memory_fraction.
    MemoryFraction,
    /// The lowest sufficient part of this card.
    Card,
    /// The lowest sufficient capacity of a card: more than this one has.
    LargerCard,
    /// Empty segments of PyTorch's cache: torch.cuda.empty_cache() frees them for other libraries.
    EmptyCache,
    /// Private pools of PyTorch that keep free memory: their CUDA graphs and `torch.cuda.MemPool` objects.
    PrivatePools,
    /// An option by which the program sizes its memory, in `conf`: a lower value.
    ProgramOption,
    /// The largest request that would have been served.
    SmallerRequest,
    /// Other processes hold this much of the card.
    OtherProcesses,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Advice {
    #[cfg_attr(feature = "schemas", schemars(with = "String"))]
    pub what: AdvisedChange,
    /// A PYTORCH_CUDA_ALLOC_CONF, or an option of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    pub bytes: Option<u64>,
    /// Bytes that a setting would leave unused, `under` a `cap`, a `card` or what was `reserved` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under: Option<Origin>,
}

impl Advice {
    fn of(what: AdvisedChange, bytes: Option<u64>) -> Advice {
        Advice { what, conf: None, bytes, spare_bytes: None, under: None }
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
    if one.cause == OomCause::BadCap {
        return vec![Advice::of(AdvisedChange::CorrectCap, None)];
    }
    // What grows fills a larger limit too; and of a refusal that nothing explains it is not known what helps.
    let refused = one.oom.refusal.is_some() && one.cause == OomCause::Unknown;
    if one.leak.is_some() || refused {
        return Vec::new();
    }
    if one.may_pass_again() {
        return vec![Advice::of(AdvisedChange::Repeat, Some(one.cache.streams.waiting_bytes))];
    }
    let mut all = Vec::new();
    if let Some(remedy) = &one.remedy
        && let Some((conf, spare)) = &remedy.fix
    {
        all.push(Advice {
            conf: Some(conf.clone()),
            spare_bytes: Some(*spare),
            under: Some(remedy.origin),
            ..Advice::of(AdvisedChange::Setting, None)
        });
    }
    // What takes a part of the card fills a larger one too; llama.cpp's options are sizes.
    let sizes_itself =
        one.option.as_ref().is_some_and(|it| it.starts_with("--") || it.starts_with("XLA"));
    all.extend(one.option.iter().map(|option| Advice {
        conf: Some(option.clone()),
        ..Advice::of(AdvisedChange::ProgramOption, None)
    }));
    let mut add = |what, bytes| all.push(Advice::of(what, bytes));
    let missing = one.room().map(|room| one.oom.size.saturating_sub(room));
    if one.oom.level == Level::Driver && missing.is_some_and(|it| one.cache.releasable_bytes >= it)
    {
        add(AdvisedChange::EmptyCache, Some(one.cache.releasable_bytes));
    }
    if !sizes_itself && missing.is_some_and(|it| it > 0 && one.cache.private_bytes >= it) {
        add(AdvisedChange::PrivatePools, Some(one.cache.private_bytes));
    }
    match enough(one) {
        _ if one.own_limit => add(AdvisedChange::MemoryFraction, None),
        // A call without a size, and what is no limit of the card.
        _ if one.oom.size == 0 || matches!(one.cause, OomCause::Mps | OomCause::Cgroup) => {}
        _ if sizes_itself && !one.is_capped() => {}
        // A cap above the memory of the card is no help.
        Some(bytes) if one.card_bytes.is_some_and(|card| one.is_capped() && bytes > card) => {}
        Some(bytes) if bytes > LARGEST_DEVICE => {}
        // The limit was another than the card, and is not known.
        Some(_) if one.imported && !one.is_imported_from_full_card() => {}
        Some(bytes) if one.card_bytes.is_some_and(|card| bytes > card) => {
            add(AdvisedChange::LargerCard, Some(bytes));
        }
        Some(bytes) if one.is_capped() => {
            let by_group = one.oom.refusal.is_some_and(|at| at.refused.by == RefusedBy::Group);
            add(if by_group { AdvisedChange::GroupCap } else { AdvisedChange::Cap }, Some(bytes));
        }
        // Nobody else has a part of it that could be freed, but the driver itself.
        Some(bytes) if let (Some(card), None) = (one.card_bytes, one.others()) => {
            let used = one.card_free().map(|free| card.saturating_sub(free));
            let bytes = used.map(|used| used.saturating_sub(one.ours()).saturating_add(bytes));
            if let Some(bytes) = bytes.filter(|bytes| *bytes > card) {
                add(AdvisedChange::LargerCard, Some(bytes));
            }
        }
        Some(bytes) => add(AdvisedChange::Card, Some(bytes)),
        None => {}
    }
    if let Some(bytes) = one.others() {
        add(AdvisedChange::OtherProcesses, Some(bytes));
    }
    let hole = if one.oom.level == Level::Tensor { one.cache.largest_free_block_bytes } else { 0 };
    let served = one.room().unwrap_or(0).max(hole) / PAGE * PAGE;
    if !sizes_itself && served >= NOTABLE && served < one.oom.size {
        add(AdvisedChange::SmallerRequest, Some(served));
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
    let used = if one.is_capped() { refused.counted } else { one.ours() };
    let size = refused.size.div_ceil(step).saturating_mul(step);
    Some(used.saturating_add(size).div_ceil(PAGE).saturating_mul(PAGE))
}

impl PostMortem {
    /// Bytes of other processes on the card, where these are the cause.
    pub fn others(&self) -> Option<u64> {
        let listed = self.oom.neighbours.iter().filter_map(|other| other.bytes);
        let listed = listed.fold(0, u64::saturating_add);
        let rest = || self.card_bytes?.checked_sub(self.card_free()?)?.checked_sub(self.ours());
        let held = if listed > 0 { listed } else { rest()? };
        (self.cause == OomCause::Card && held >= OTHERS).then_some(held)
    }
}
