//! Replays a recorded run under settings and capacities, and ranks them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::recorded::Recorded;
use crate::allocator::{Conf, ReplayOutcome, replay, smallest_capacity};

/// The settings that are tried where none are given.
pub const GRID: [&str; 9] = [
    "default",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "max_split_size_mb:128,roundup_power2_divisions:4",
    "large_segment_size_mb:64",
];

/// The origin of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Asked,
    /// The cap in force.
    Cap,
    /// The memory of the card.
    Card,
    /// What PyTorch had reserved before. The limit is not known, and was not lower.
    Reserved,
}

/// A capacity in bytes, for PyTorch's cache and all other memory of the device in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub bytes: u64,
    pub origin: Origin,
}

/// The cap in force and the memory of the card, as far as the trace has them.
pub fn capacities_of(recorded: &Recorded) -> Vec<Capacity> {
    let cap = recorded.cap_bytes.map(|bytes| Capacity { bytes, origin: Origin::Cap });
    let card = recorded.card_bytes.map(|bytes| Capacity { bytes, origin: Origin::Card });
    cap.into_iter().chain(card).collect()
}

/// The results of one setting.
#[derive(Clone, Debug)]
pub struct Setting {
    pub name: String,
    pub conf: Conf,
    /// The run was recorded under it.
    pub in_force: bool,
    /// The replay without a limit.
    pub free: ReplayOutcome,
    /// The replays under the prediction's capacities, in their order.
    pub at: Vec<ReplayOutcome>,
    /// The lowest sufficient capacity in bytes.
    pub smallest: Option<u64>,
    /// Why recorded calls would fail with it.
    pub forbidden: Option<String>,
}

/// Every setting, best first.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub capacities: Vec<Capacity>,
    pub settings: Vec<Setting>,
    /// Bytes that the run reserved and its replay does not, where uses by other streams explain them: a setting may need
    /// as much more. 0: nothing is missing.
    pub unseen: u64,
}

impl Prediction {
    /// The best setting with an exact prediction, if it is clearly better than the one in force: it fits in more capacities, or
    /// reserves at least 1.5 % less. `None`: no setting helps.
    pub fn advice(&self) -> Option<&Setting> {
        if self.no_fit().is_some() {
            return None;
        }
        let usable = |it: &&Setting| it.forbidden.is_none() && !it.conf.driver_pool;
        let best = self.settings.iter().find(usable)?;
        let Some(now) = self.settings.iter().find(|setting| setting.in_force) else {
            return Some(best);
        };
        let fewer_fail = misses(best) < misses(now);
        let less = (best.free.peak_reserved as f64) < NOTABLY * now.free.peak_reserved as f64;
        (!best.in_force && (fewer_fail || less)).then_some(best)
    }

    /// Whether an outcome fits a capacity by less than what the replay does not see, or the capacity lies between the least
    /// and the most of the driver's pool.
    pub fn is_too_close(&self, outcome: &ReplayOutcome, capacity: u64) -> bool {
        match outcome.fits() {
            true => capacity < outcome.peak_total.saturating_add(self.unseen),
            false => outcome.least.is_some_and(|least| least.total <= capacity),
        }
    }

    /// Why no setting fits, if none does.
    pub fn no_fit(&self) -> Option<NoFit> {
        let usable = || self.settings.iter().filter(|setting| setting.forbidden.is_none());
        let on_none = |setting: &Setting| setting.smallest.is_none_or(|it| it > LARGEST_DEVICE);
        if usable().all(on_none) {
            return Some(NoFit::NoCapacity);
        }
        let capacity = *self.capacities.iter().min_by_key(|capacity| capacity.bytes)?;
        let index = self.capacities.iter().position(|other| *other == capacity)?;
        let may_fit =
            |outcome: &ReplayOutcome| outcome.fits() || self.is_too_close(outcome, capacity.bytes);
        if usable().any(|setting| may_fit(&setting.at[index])) {
            return None;
        }
        let least = usable().filter_map(|setting| Some((setting.smallest?, &setting.name))).min();
        Some(NoFit::Below { capacity, least: least.map(|(bytes, name)| (bytes, name.clone())) })
    }

    /// The setting that the run was recorded under.
    pub fn in_force(&self) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.in_force)
    }
}

/// More bytes than any device has.
pub const LARGEST_DEVICE: u64 = 1 << 42;

/// Why no setting fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFit {
    /// No device is large enough.
    NoCapacity,
    /// The smallest given capacity is too small. `least`: the lowest sufficient one, and its setting.
    Below { capacity: Capacity, least: Option<(u64, String)> },
}

/// A setting is better if it reserves less than this part of what the setting in force reserves. The
/// replay is accurate to one per cent.
const NOTABLY: f64 = 0.985;

fn misses(setting: &Setting) -> usize {
    setting.at.iter().filter(|outcome| !outcome.fits()).count()
}

/// Replays the run under each of `confs` and under the setting in force, on all cores. `progress` is called
/// after each.
pub fn predict(
    recorded: &Recorded,
    confs: &[(String, Conf)],
    capacities: Vec<Capacity>,
    progress: &(dyn Fn() + Sync),
) -> Prediction {
    let mut confs = confs.to_vec();
    if let Some(conf) = &recorded.in_force.conf
        && !confs.iter().any(|(_, other)| other == conf)
    {
        confs.push((recorded.in_force.name().to_string(), conf.clone()));
    }
    let slots: Vec<Mutex<Option<Setting>>> = confs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((slot, (name, conf))) = {
            let index = next.fetch_add(1, Relaxed);
            slots.get(index).zip(confs.get(index))
        } {
            let setting = one(recorded, name, conf, &capacities);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(setting);
            }
            progress();
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(confs.len());
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
    let mut settings: Vec<Setting> =
        slots.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect();
    settings.sort_by_key(|setting| {
        let free = &setting.free;
        (
            setting.forbidden.is_some(),
            misses(setting),
            free.peak_reserved,
            free.driver_allocations,
            !setting.in_force,
        )
    });
    let now = settings.iter().find(|setting| setting.in_force);
    let unseen = now.map_or(0, |now| recorded.unseen(now.free.peak_reserved));
    Prediction { capacities, settings, unseen }
}

impl Recorded {
    /// [`Prediction::unseen`]; `replayed`: the peak of the replay under the setting in force.
    fn unseen(&self, replayed: u64) -> u64 {
        match self.streams > 1 && !self.knows_uses && self.from_ns.is_none() {
            true => self.peak_reserved.saturating_sub(replayed),
            false => 0,
        }
    }
}

fn one(recorded: &Recorded, name: &str, conf: &Conf, capacities: &[Capacity]) -> Setting {
    let log = &recorded.log;
    let free = replay(log, conf, None);
    let at = capacities.iter().map(|capacity| match capacity.bytes >= free.peak_total {
        // The peak fits: the limit is never reached.
        true if conf.per_process_memory_fraction.is_none() => free.clone(),
        _ => replay(log, conf, Some(capacity.bytes)),
    });
    Setting {
        name: name.to_string(),
        conf: conf.clone(),
        in_force: recorded.in_force.conf.as_ref() == Some(conf),
        at: at.collect(),
        smallest: smallest_capacity(log, conf, &free),
        forbidden: recorded.forbids(name, conf),
        free,
    }
}
