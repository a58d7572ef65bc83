//! Replays a recorded run under settings and capacities, and ranks them.

use serde::Serialize;
use vramtrace_format::DeviceId;

use super::caveats::caveats;
use super::recorded::Recorded;
use crate::allocator::{Conf, ReplayOutcome, replay, smallest_capacity};
use crate::facts::{self, ProcessId};
use crate::replay::CacheOomAt;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Setting {
    #[serde(rename = "conf")]
    pub name: String,
    #[serde(skip)]
    pub conf: Conf,
    /// The run was recorded under it.
    pub in_force: bool,
    /// The replay without a limit.
    #[serde(flatten)]
    pub free: ReplayOutcome,
    #[serde(rename = "at_capacity")]
    pub at: Vec<AtCapacity>,
    /// The lowest sufficient capacity.
    #[serde(rename = "smallest_capacity_bytes")]
    pub smallest: Option<u64>,
    /// Why recorded calls would fail with it.
    pub forbidden: Option<String>,
}

impl Setting {
    /// In the first capacity.
    pub fn fits(&self) -> bool {
        self.at.first().is_some_and(|at| at.fits)
    }
}

/// The replay under a capacity.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct AtCapacity {
    pub capacity_bytes: u64,
    pub origin: Origin,
    pub fits: bool,
    /// It fits by less than what uses by other streams may need, which the trace does not show.
    pub too_close: bool,
    pub peak_reserved_bytes: u64,
    pub retries: u64,
    /// Unused bytes of the capacity at the peak; null where it does not fit.
    pub spare_bytes: Option<u64>,
    /// It does not fit although all requests of PyTorch were served: others take too much.
    #[serde(skip)]
    pub for_others: bool,
}

impl AtCapacity {
    fn of(capacity: Capacity, outcome: &ReplayOutcome) -> AtCapacity {
        let Capacity { bytes, origin } = capacity;
        AtCapacity {
            capacity_bytes: bytes,
            origin,
            fits: outcome.fits(),
            too_close: false,
            peak_reserved_bytes: outcome.peak_reserved,
            retries: outcome.retries,
            spare_bytes: outcome.fits().then(|| bytes.saturating_sub(outcome.peak_total)),
            for_others: outcome.failure.is_some_and(|failure| failure.outside),
        }
    }
}

/// A device of a process under every setting.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Prediction {
    #[serde(flatten)]
    pub process: ProcessId,
    #[serde(serialize_with = "facts::number")]
    #[cfg_attr(feature = "schemas", schemars(with = "u8"))]
    pub device: DeviceId,
    /// The setting that the run was recorded under; null: the trace does not contain it.
    pub in_force: Option<String>,
    /// As recorded.
    pub peak_reserved_bytes: u64,
    pub peak_allocated_bytes: u64,
    /// Earlier events are not in the file.
    #[serde(rename = "history_from_s", with = "facts::Seconds")]
    pub history_from_ns: u64,
    /// The last request, if it failed and the run allocated nothing after it.
    pub out_of_memory: Option<CacheOomAt>,
    /// Best first.
    pub settings: Vec<Setting>,
    /// What limits the prediction.
    pub caveats: Vec<String>,
    #[serde(skip)]
    pub capacities: Vec<Capacity>,
    /// Number of recorded allocations.
    #[serde(skip)]
    pub allocations: u64,
    /// Bytes that the run reserved and its replay does not, where uses by other streams explain them: a setting may need
    /// as much more. 0: nothing is missing.
    #[serde(skip)]
    pub unseen: u64,
}

impl Prediction {
    /// The best setting, if it is clearly better than the one in force: it fits in more capacities, or
    /// reserves at least 1.5 % less. `None`: no setting helps.
    pub fn advice(&self) -> Option<&Setting> {
        if self.no_fit().is_some() {
            return None;
        }
        let best = self.settings.iter().find(|setting| setting.forbidden.is_none())?;
        let Some(now) = self.settings.iter().find(|setting| setting.in_force) else {
            return Some(best);
        };
        let fewer_fail = misses(best) < misses(now);
        let less = (best.free.peak_reserved as f64) < NOTABLY * now.free.peak_reserved as f64;
        (!best.in_force && (fewer_fail || less)).then_some(best)
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
        if usable().any(|setting| setting.at[index].fits) {
            return None;
        }
        let least = usable().filter_map(|setting| Some((setting.smallest?, &setting.name))).min();
        Some(NoFit::Below { capacity, least: least.map(|(bytes, name)| (bytes, name.clone())) })
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
    setting.at.iter().filter(|at| !at.fits).count()
}

/// Replays the run under each of `confs` and under the setting in force, on all cores.
pub fn predict(
    recorded: &Recorded,
    confs: &[(String, Conf)],
    capacities: Vec<Capacity>,
) -> Prediction {
    let mut confs = confs.to_vec();
    if let Some(conf) = &recorded.in_force.conf
        && !confs.iter().any(|(_, other)| other == conf)
    {
        confs.push((recorded.in_force.name().to_string(), conf.clone()));
    }
    let one = |(name, conf): (String, Conf)| setting(recorded, name, conf, &capacities);
    let mut settings: Vec<Setting> = std::thread::scope(|scope| {
        let one = &one;
        let spawn = |conf| scope.spawn(move || one(conf));
        let all: Vec<_> = confs.into_iter().map(spawn).collect();
        all.into_iter().filter_map(|one| one.join().ok()).collect()
    });
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
    for at in settings.iter_mut().flat_map(|setting| &mut setting.at) {
        at.too_close = at.spare_bytes.is_some_and(|spare| spare < unseen);
    }
    Prediction {
        process: recorded.process,
        device: recorded.device,
        in_force: recorded.in_force.set.as_ref().map(|_| recorded.in_force.name().to_string()),
        peak_reserved_bytes: recorded.peak_reserved,
        peak_allocated_bytes: recorded.peak_allocated,
        history_from_ns: recorded.from_ns.unwrap_or(0),
        out_of_memory: recorded.out_of_memory,
        caveats: caveats(recorded, &settings),
        settings,
        capacities,
        allocations: recorded.log.allocations(),
        unseen,
    }
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

fn setting(recorded: &Recorded, name: String, conf: Conf, capacities: &[Capacity]) -> Setting {
    let log = &recorded.log;
    let free = replay(log, &conf, None);
    let at = |capacity: &Capacity| match capacity.bytes >= free.peak_total {
        // The peak fits: the limit is never reached.
        true if conf.per_process_memory_fraction.is_none() => AtCapacity::of(*capacity, &free),
        _ => AtCapacity::of(*capacity, &replay(log, &conf, Some(capacity.bytes))),
    };
    let at: Vec<AtCapacity> = capacities.iter().map(at).collect();
    let forbidden = recorded.forbids(&name, &conf);
    Setting {
        name,
        in_force: recorded.in_force.conf.as_ref() == Some(&conf),
        at,
        smallest: smallest_capacity(log, &conf, &free),
        forbidden,
        free,
        conf,
    }
}
