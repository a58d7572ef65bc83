//! Replays the requests up to an out-of-memory under other settings of PyTorch's allocator.

use serde::Serialize;
use vramtrace_format::RefusedBy;

use super::PostMortem;
use crate::allocator::Conf;
use crate::analysis::Level;
use crate::analysis::whatif::{
    Capacity, GRID, Origin, Prediction, Recorded, capacities_of, predict,
};
use crate::replay::Until;
use crate::trace::{Definitions, Trace};

/// The result of the replays. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// The limit of the process: its cap, or its part of the card.
    pub capacity: u64,
    pub origin: Origin,
    /// The best setting that fits, and the bytes that it leaves.
    pub fix: Option<(String, u64)>,
    /// All settings, best first.
    pub settings: Vec<Tried>,
    /// The lowest sufficient capacity with the setting in force.
    pub as_it_is: Option<u64>,
}

/// One setting that was replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tried {
    pub conf: String,
    pub in_force: bool,
    pub capacity_bytes: u64,
    pub fits: bool,
    /// The lowest sufficient capacity.
    #[serde(rename = "smallest_capacity_bytes")]
    pub smallest: Option<u64>,
    pub compatible: bool,
    /// Why the recorded calls would fail with it.
    #[serde(skip)]
    pub forbidden: Option<String>,
}

/// `None`: no limit is known, or the replay fits with the setting in force, unlike the run.
pub(super) fn of(one: &PostMortem, trace: &Trace, definitions: &Definitions) -> Option<Remedy> {
    let recorded = Recorded::until(trace, definitions, Until::Offset(one.oom.offset));
    let mut recorded = recorded.into_iter().find(|recorded| recorded.device == one.oom.device)?;
    if one.oom.level == Level::Driver {
        // The driver refused another library: the cache would have had to leave memory for it.
        let beside = one.ours().saturating_sub(one.reserved);
        recorded.log.outside(beside.saturating_add(one.oom.size));
    }
    let capacity = capacity(one, &recorded)?;
    let conf = |name: &&str| Some((name.to_string(), Conf::parse(name).ok()?));
    let confs: Vec<(String, Conf)> = GRID.iter().filter_map(conf).collect();
    let Prediction { settings, .. } = predict(&recorded, &confs, vec![capacity]);
    let fits = |at: usize| settings[at].at.first().is_some_and(|at| at.fits);
    let best = (0..settings.len())
        .find(|at| fits(*at) && !settings[*at].in_force && settings[*at].forbidden.is_none());
    let in_force = (0..settings.len()).find(|at| settings[*at].in_force);
    if in_force.is_some_and(fits) {
        // The replay contradicts the run: its predictions are worthless here.
        return None;
    }
    let spare = |at: usize| settings[at].at.first()?.spare_bytes;
    Some(Remedy {
        capacity: capacity.bytes,
        origin: capacity.origin,
        fix: best.and_then(|at| Some((settings[at].name.clone(), spare(at)?))),
        as_it_is: in_force.and_then(|at| settings[at].smallest),
        settings: settings
            .iter()
            .enumerate()
            .map(|(at, setting)| Tried {
                conf: setting.name.clone(),
                in_force: setting.in_force,
                capacity_bytes: capacity.bytes,
                fits: fits(at),
                smallest: setting.smallest,
                compatible: setting.forbidden.is_none(),
                forbidden: setting.forbidden.clone(),
            })
            .collect(),
    })
}

/// The limit of the process, where others share the cap or the card.
fn capacity(one: &PostMortem, recorded: &Recorded) -> Option<Capacity> {
    let known = capacities_of(recorded).into_iter().next();
    let with = |free: u64| one.ours().saturating_add(free);
    let Some(refused) = one.oom.refusal.map(|at| at.refused) else {
        // Neither PyTorch's own limit nor that of an imported run is in the trace. It was not lower than
        // what PyTorch had reserved; a full card left what the driver said.
        let peak = one.device.cache.peak_reserved.bytes.saturating_sub(one.reserved);
        let reserved = Capacity { bytes: with(peak), origin: Origin::Reserved };
        let full = one.card_free().filter(|_| one.is_imported_from_full_card());
        let card = full.map(|free| Capacity { bytes: with(free), origin: Origin::Card });
        return match one.own_limit || one.imported {
            true => card.or(Some(reserved)),
            false => known,
        };
    };
    let (bytes, origin) = match refused.by {
        RefusedBy::Cap => (Some(refused.limit), Origin::Cap),
        RefusedBy::Group => {
            (Some(with(refused.limit.saturating_sub(refused.counted))), Origin::Cap)
        }
        RefusedBy::Driver if refused.driver_free > 0 => {
            (Some(with(refused.driver_free)), Origin::Card)
        }
        RefusedBy::Driver | RefusedBy::BadCap | RefusedBy::Warned => (None, Origin::Card),
    };
    let capacity = |bytes: u64| Capacity { bytes, origin };
    bytes.filter(|bytes| *bytes > 0).map(capacity).or(known)
}
