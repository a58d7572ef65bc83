//! What other settings of PyTorch's allocator would have done up to the failed request.

use vramtrace_format::RefusedBy;

use super::PostMortem;
use crate::allocator::Conf;
use crate::analysis::Level;
use crate::analysis::whatif::{
    Capacity, GRID, Origin, Prediction, Recorded, capacities_of, predict,
};
use crate::replay::Until;
use crate::trace::{Definitions, Trace};

/// What other settings would have done up to the failed request.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// Bytes that the process could have: its cap, or its part of the card.
    pub capacity: u64,
    pub origin: Origin,
    /// The best setting that would have fitted, and what it would have left.
    pub fix: Option<(String, u64)>,
    /// Settings, best first, with the least capacity that would have done.
    pub settings: Vec<Tried>,
    /// The least capacity that would do with the setting in force.
    pub as_it_is: Option<u64>,
    /// The setting in force, as people write it.
    pub in_force: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub conf: String,
    pub in_force: bool,
    pub fits: bool,
    /// The least capacity that would have done.
    pub smallest: Option<u64>,
    /// Why the recorded calls forbid it.
    pub forbidden: Option<String>,
}

/// `None` where the replay cannot tell: no limit is known, or it says that it fitted.
pub(super) fn of(one: &PostMortem, trace: &Trace, definitions: &Definitions) -> Option<Remedy> {
    let recorded = Recorded::until(trace, definitions, Until::Offset(one.oom.offset));
    let mut recorded = recorded.into_iter().find(|recorded| recorded.device == one.oom.device)?;
    if one.oom.level == Level::Driver {
        // The request was not the cache's: the cache would have had to leave room for it.
        let beside = one.ours().saturating_sub(one.reserved);
        recorded.log.outside(beside.saturating_add(one.oom.size));
    }
    let capacity = capacity(one, &recorded)?;
    let conf = |name: &&str| Some((name.to_string(), Conf::parse(name).ok()?));
    let confs: Vec<(String, Conf)> = GRID.iter().filter_map(conf).collect();
    let Prediction { settings, .. } = predict(&recorded, &confs, vec![capacity], &|| {});
    let fits = |at: usize| settings[at].at.first().is_some_and(|outcome| outcome.fits());
    let best = (0..settings.len())
        .find(|at| fits(*at) && !settings[*at].in_force && settings[*at].forbidden.is_none());
    let in_force = (0..settings.len()).find(|at| settings[*at].in_force);
    if in_force.is_some_and(fits) {
        // The replay and the run disagree: it has nothing to say.
        return None;
    }
    let spare = |at: usize| {
        let outcome = settings[at].at.first()?;
        Some(capacity.bytes.saturating_sub(outcome.peak_total))
    };
    Some(Remedy {
        capacity: capacity.bytes,
        origin: capacity.origin,
        fix: best.and_then(|at| Some((settings[at].name.clone(), spare(at)?))),
        as_it_is: in_force.and_then(|at| settings[at].smallest),
        in_force: recorded.in_force.name().to_string(),
        settings: settings
            .iter()
            .enumerate()
            .map(|(at, setting)| Tried {
                conf: setting.name.clone(),
                in_force: setting.in_force,
                fits: fits(at),
                smallest: setting.smallest,
                forbidden: setting.forbidden.clone(),
            })
            .collect(),
    })
}

/// What the process could have of the device: others may share the limit, or the card.
fn capacity(one: &PostMortem, recorded: &Recorded) -> Option<Capacity> {
    let known = capacities_of(recorded).into_iter().next();
    let with = |free: u64| Some(one.ours().saturating_add(free));
    let Some(refused) = one.oom.refusal.map(|at| at.refused) else {
        // Its own limit is not known: it allowed what it had at most.
        let peak = one.device.cache.peak_reserved.bytes.saturating_sub(one.reserved);
        let allowed = with(peak).map(|bytes| Capacity { bytes, origin: Origin::Asked });
        return if one.own_limit { allowed } else { known };
    };
    let (bytes, origin) = match refused.by {
        RefusedBy::Cap => (Some(refused.limit), Origin::Cap),
        RefusedBy::Group => (with(refused.limit.saturating_sub(refused.counted)), Origin::Cap),
        RefusedBy::Driver if refused.driver_free > 0 => (with(refused.driver_free), Origin::Card),
        RefusedBy::Driver | RefusedBy::BadCap | RefusedBy::Warned => (None, Origin::Card),
    };
    let capacity = |bytes: u64| Capacity { bytes, origin };
    bytes.filter(|bytes| *bytes > 0).map(capacity).or(known)
}
