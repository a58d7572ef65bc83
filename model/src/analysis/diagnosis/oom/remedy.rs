//! Replays the requests up to an out-of-memory under other settings of PyTorch's allocator.

use super::PostMortem;
use crate::allocator::Conf;
use crate::analysis::Level;
use crate::analysis::whatif::{Capacity, GRID, Origin, Recorded, Setting, capacities_of, predict};
use crate::replay::Until;
use crate::trace::{Definitions, Trace};

/// The result of the replays. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// Of the limit of the process: its cap, or its part of the card.
    pub origin: Origin,
    /// The best setting that fits, and the bytes that it leaves.
    pub fix: Option<(String, u64)>,
    /// All settings, best first.
    pub settings: Vec<Setting>,
    /// The lowest sufficient capacity with the setting in force.
    pub as_it_is: Option<u64>,
}

/// `None`: no limit is known, or the replay fits with the setting in force, unlike the run.
pub(super) fn of(one: &PostMortem, trace: &Trace, definitions: &Definitions) -> Option<Remedy> {
    let recorded = Recorded::read(trace, definitions, Until::Offset(one.oom.offset), false);
    let mut recorded = recorded.into_iter().find(|recorded| recorded.device == one.oom.device)?;
    if one.oom.level == Level::Driver {
        // The driver refused another library: the cache would have had to leave memory for it.
        let beside = one.ours().saturating_sub(one.cache.reserved_bytes);
        recorded.log.outside(beside.saturating_add(one.oom.size));
    }
    let capacity = capacity(one, &recorded)?;
    let conf = |name: &&str| Some((name.to_string(), Conf::parse(name).ok()?));
    let confs: Vec<(String, Conf)> = GRID.iter().filter_map(conf).collect();
    let settings = predict(&recorded, &confs, vec![capacity]).settings;
    let now = settings.iter().find(|it| it.in_force);
    if now.is_some_and(Setting::fits) {
        // The replay contradicts the run: its predictions are worthless here.
        return None;
    }
    let best = settings.iter().find(|it| it.fits() && !it.in_force && it.forbidden.is_none());
    Some(Remedy {
        origin: capacity.origin,
        fix: best.and_then(|best| Some((best.name.clone(), best.at[0].spare_bytes?))),
        as_it_is: now.and_then(|now| now.smallest),
        settings,
    })
}

/// The limit of the process, where others share the cap or the card.
fn capacity(one: &PostMortem, recorded: &Recorded) -> Option<Capacity> {
    let known = capacities_of(recorded).into_iter().next();
    if one.oom.refusal.is_none() {
        let with = |free: u64| one.ours().saturating_add(free);
        // Neither PyTorch's own limit nor that of an imported run is in the trace. It was not lower than
        // what PyTorch had reserved; a full card left what the driver said.
        let peak = one.device.cache.peak_reserved.bytes.saturating_sub(one.cache.reserved_bytes);
        let reserved = Capacity { bytes: with(peak), origin: Origin::Reserved };
        let full = one.card_free().filter(|_| one.is_imported_from_full_card());
        let card = full.map(|free| Capacity { bytes: with(free), origin: Origin::Card });
        return if one.own_limit || one.imported { card.or(Some(reserved)) } else { known };
    }
    let origin = if one.is_capped() { Origin::Cap } else { Origin::Card };
    let capacity = |bytes: u64| Capacity { bytes, origin };
    one.could_have().filter(|bytes| *bytes > 0).map(capacity).or(known)
}
