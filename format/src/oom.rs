//! The cause of an out-of-memory. The recorder's summary and `vramtrace oom` use the same rules.

use crate::record::values::{OomEvidence, PostMortem, Refused, RefusedBy};
use crate::scalar::numbered_enum;
use crate::size::{AsGiven, Bytes};

numbered_enum! {
    /// The cause of an out-of-memory.
    pub enum OomCause {
        /// The framework's cache had enough free bytes, alone or with the bytes left below the limit, but not in one
        /// contiguous range.
        Fragmentation = 0 => "fragmentation",
        /// The request did not fit under the cap, even if the cache freed everything it could.
        Cap = 1 => "cap",
        /// The cap cannot be parsed: every request is refused.
        BadCap = 2 => "bad_cap",
        /// The request did not fit in the GPU's memory.
        Card = 3 => "card",
        /// The GPU had enough free memory; MPS limits the process (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
        Mps = 4 => "mps",
        /// The GPU had enough free memory; the device memory cgroup limits the process (`dmem.max`).
        Cgroup = 5 => "cgroup",
        /// PyTorch's own limit, for example a memory fraction: no driver call was refused.
        Torch = 6 => "torch",
        /// The trace has no refused driver call, and may lack calls; or what it has does not explain the refusal.
        Unknown = 7 => "unknown",
    }
}

impl OomCause {
    /// The first words of a message about the cause.
    pub fn words(self) -> &'static str {
        match self {
            OomCause::Fragmentation => "fragmentation",
            OomCause::BadCap => "VRAMTRACE_CAP cannot be understood",
            OomCause::Unknown => "not known",
            _ => "no room",
        }
    }
}

/// A limit that MPS or a cgroup sets for the process, below the size of the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherLimit {
    Mps,
    Cgroup,
}

/// The driver may take memory in steps of this size, and the free bytes may have been read shortly before.
const STEP: u64 = 128 << 20;

/// The environment variable that limits a client of MPS.
pub const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The file of the process's cgroup (v2) with the limit; a trace stores it as a setting of this name.
pub const CGROUP_LIMIT: &str = "dmem.max";

impl OtherLimit {
    /// Finds the limit in the settings of a trace, or of the process itself. MPS precedes the cgroup.
    pub fn of<'s>(setting: impl Fn(&str) -> Option<&'s str>) -> Option<OtherLimit> {
        let is_set = |name| setting(name).is_some_and(|value| !value.trim().is_empty());
        let all = [(MPS_LIMIT, OtherLimit::Mps), (CGROUP_LIMIT, OtherLimit::Cgroup)];
        all.into_iter().find(|(name, _)| is_set(name)).map(|(_, limit)| limit)
    }
}

/// The figures of a request that got no memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// What refused the request. `None`: no refused call is known.
    pub by: Option<RefusedBy>,
    /// The trace has every call: if none was refused, the framework reached its own limit.
    pub all_known: bool,
    /// True: a framework's cache could not serve the request. False: a driver call was refused.
    pub of_cache: bool,
    /// The refused call takes no memory of the card for the program: what it lacked is not known.
    pub other_call: bool,
    pub size: u64,
    /// Free bytes in the framework's segments.
    pub free: u64,
    /// The largest contiguous range of them. `None`: not known.
    pub largest_hole: Option<u64>,
    /// Bytes left below the limit, see [`left`]. `None`: not known.
    pub left: Option<u64>,
    /// Bytes by which the count already exceeded the limit, see [`over`].
    pub over: u64,
    /// Another limit, which may apply if the driver refused although the GPU had enough free memory.
    pub other: Option<OtherLimit>,
}

impl Figures {
    /// The figures of a refused driver call.
    pub fn of_refused(refused: &Refused, other: Option<OtherLimit>) -> Figures {
        let card_free = Some(refused.driver_free).filter(|free| *free > 0);
        let Refused { by, size, counted, limit, .. } = *refused;
        Figures { other, ..Figures::of_request(Some(by), size, counted, limit, card_free) }
    }

    /// The figures of a post-mortem. `free`: free bytes in the framework's segments. Without blocks all are in private pools:
    /// PyTorch releases its other segments before it gives up.
    pub fn of(post_mortem: &PostMortem, free: u64) -> Figures {
        let PostMortem { by, size, counted, limit, driver_free, largest_hole, .. } = *post_mortem;
        let free =
            if post_mortem.cache.is_some_and(|cache| cache.allocated == 0) { 0 } else { free };
        let of_cache = post_mortem.evidence == OomEvidence::FrameworkGaveUp;
        let of_request = Figures::of_request(by, size, counted, limit, driver_free);
        Figures { of_cache, free, largest_hole, ..of_request }
    }

    fn of_request(
        by: Option<RefusedBy>,
        size: u64,
        counted: u64,
        limit: u64,
        driver_free: Option<u64>,
    ) -> Figures {
        Figures {
            by,
            all_known: true,
            size,
            left: left(by, counted, limit, driver_free),
            over: over(by, counted, limit),
            ..Figures::default()
        }
    }

    /// Bytes that were missing to serve the request; 0 also if not known.
    pub fn missing(&self) -> u64 {
        let Some(left) = self.left else { return 0 };
        let wanted = self.size.saturating_add(self.over);
        wanted.saturating_sub(self.free).saturating_sub(left)
    }

    /// `no room: asked 1.19 GiB, 112.64 MiB left of the limit`. `left`: bytes that the limit and the GPU had left. `ever`: the most
    /// that they could ever have left.
    pub fn no_room(&self, left: Option<u64>, ever: u64) -> String {
        let words = match left {
            _ if self.size > ever => "too much",
            Some(_) => OomCause::Card.words(),
            None => self.cause().words(),
        };
        let short = match left {
            _ if self.by.is_some() && self.cause() == OomCause::Unknown => {
                ", though the card and each known limit had as much: a larger card would not help"
                    .into()
            }
            Some(_) if self.over > 0 => {
                let (over, missing) = (Bytes(self.over), Bytes(self.missing()));
                format!(", {over} over the limit already: {missing} short")
            }
            Some(left) => format!(", {} left of the limit", Bytes(left)),
            None => String::new(),
        };
        format!("{words}: asked {}{short}", Bytes(self.size))
    }

    /// `fragmentation: 2.11 GiB free in cache, largest hole 624.64 MiB; in one piece 1.19 GiB would fit`. `segments`:
    /// in which the holes are, with a comma after them.
    pub fn in_pieces(&self, segments: &str) -> String {
        let asked = Bytes(self.size);
        let holes = match self.largest_hole {
            Some(hole) => format!("{segments}largest hole {}", Bytes(hole)),
            None => "in pieces".to_string(),
        };
        let found =
            format!("{}: {} free in cache, {holes}", self.cause().words(), Bytes(self.free));
        match self.left {
            Some(left) if self.free < self.size => {
                format!("{found}, and {} left; together {asked} would fit", Bytes(left))
            }
            _ => format!("{found}; in one piece {asked} would fit"),
        }
    }

    /// More than was asked for, by so many bytes.
    fn has_left(&self, more: u64) -> bool {
        self.left.is_some_and(|left| left >= self.size.saturating_add(more))
    }

    fn is_fragmentation(&self) -> bool {
        // The limit may have had more left than requested: the framework rounds requests up.
        let left = self.left.filter(|left| *left < self.size).unwrap_or(0);
        self.of_cache
            && self.free > 0
            && self.free.saturating_add(left) >= self.size
            && self.largest_hole.is_none_or(|hole| hole < self.size)
    }

    /// The cause of the out-of-memory.
    pub fn cause(&self) -> OomCause {
        match self.by {
            Some(RefusedBy::BadCap) => OomCause::BadCap,
            _ if self.is_fragmentation() => OomCause::Fragmentation,
            // It takes little: a full GPU explains it.
            Some(RefusedBy::Driver) if self.other_call => match self.left {
                Some(left) if left < STEP => OomCause::Card,
                _ => OomCause::Unknown,
            },
            // The GPU had enough free memory, so another limit applied. A framework asks for more than its caller.
            Some(RefusedBy::Driver) if self.has_left(0) => match self.other {
                Some(OtherLimit::Mps) => OomCause::Mps,
                Some(OtherLimit::Cgroup) => OomCause::Cgroup,
                None if self.of_cache || !self.has_left(STEP) => OomCause::Card,
                None => OomCause::Unknown,
            },
            Some(RefusedBy::Driver) => OomCause::Card,
            Some(RefusedBy::Cap | RefusedBy::Group | RefusedBy::Warned) => OomCause::Cap,
            None if self.all_known && self.of_cache => OomCause::Torch,
            None => OomCause::Unknown,
        }
    }
}

/// `12.00 GiB by the cap`: which limit refused a call. `card`: the memory of the GPU.
pub fn limit(
    cause: OomCause,
    by: RefusedBy,
    counted: u64,
    limit: u64,
    card: Option<u64>,
) -> String {
    let card = || card.map_or(String::new(), |bytes| format!(": {}", Bytes(bytes)));
    match by {
        RefusedBy::BadCap => "VRAMTRACE_CAP cannot be understood: every request is refused".into(),
        RefusedBy::Group => format!(
            "{} by the group's cap; its processes together had {}",
            AsGiven(limit),
            Bytes(counted)
        ),
        RefusedBy::Cap => format!("{} by the cap", AsGiven(limit)),
        RefusedBy::Driver if cause == OomCause::Mps => {
            format!("what MPS allows this process ({MPS_LIMIT})")
        }
        RefusedBy::Driver if cause == OomCause::Cgroup => {
            format!("what the kernel's cgroup allows ({CGROUP_LIMIT})")
        }
        RefusedBy::Driver if cause == OomCause::Unknown => "not known".into(),
        RefusedBy::Driver | RefusedBy::Warned => format!("the card{}", card()),
    }
}

/// The limit of a framework that gave up though no call was refused. `least`: bytes that it would have exceeded.
pub fn own_limit(least: u64) -> String {
    format!("below {} by PyTorch's own memory fraction: no call was refused", Bytes(least))
}

/// `; the card had 126.55 GiB free: not the card`. Of a cap it says whether the card is to blame too, else who else is
/// on the card.
pub fn card_had(
    free: u64,
    size: u64,
    by: Option<RefusedBy>,
    neighbours: impl Iterator<Item = (u32, Option<u64>)>,
) -> String {
    let rest = match by {
        Some(RefusedBy::Cap | RefusedBy::Group) if free >= size => ": not the card".to_string(),
        Some(RefusedBy::Cap | RefusedBy::Group) => ": too little as well".to_string(),
        _ => others(neighbours).map_or(String::new(), |others| format!("; {others}")),
    };
    format!("; the card had {} free{rest}", Bytes(free))
}

/// Other processes on the card, the largest first. `None`: none was listed.
fn others(neighbours: impl Iterator<Item = (u32, Option<u64>)>) -> Option<String> {
    const MAX_NEIGHBOURS: usize = 3;
    let mut all: Vec<(u32, Option<u64>)> = neighbours.collect();
    all.sort_by_key(|(pid, bytes)| (std::cmp::Reverse(*bytes), *pid));
    let name = |(pid, bytes): &(u32, Option<u64>)| match bytes {
        Some(bytes) => format!("pid {pid} {}", Bytes(*bytes)),
        None => format!("pid {pid}"),
    };
    let mut names: Vec<String> = all.iter().take(MAX_NEIGHBOURS).map(name).collect();
    if all.len() > MAX_NEIGHBOURS {
        names.push(format!("{} more", all.len() - MAX_NEIGHBOURS));
    }
    (!names.is_empty()).then(|| format!("other processes: {}", names.join(", ")))
}

/// What became of refusals that did no harm.
pub fn absorbed(of_cache: bool) -> &'static str {
    match of_cache {
        true => "that PyTorch absorbed by emptying its cache (harmless)",
        false => "after which the program went on (harmless)",
    }
}

/// Bytes left below the limit that refused the request: the driver's free bytes, or the cap less the counted bytes.
/// `None`: not known.
pub fn left(
    by: Option<RefusedBy>,
    counted: u64,
    limit: u64,
    driver_free: Option<u64>,
) -> Option<u64> {
    match by? {
        RefusedBy::Driver => driver_free,
        _ => Some(limit.saturating_sub(counted)),
    }
}

/// Bytes by which the count already exceeded the cap: the cap was set below the bytes in use. 0 for other limits.
pub fn over(by: Option<RefusedBy>, counted: u64, limit: u64) -> u64 {
    match by {
        Some(RefusedBy::Cap | RefusedBy::Group | RefusedBy::Warned) => {
            counted.saturating_sub(limit)
        }
        Some(RefusedBy::Driver | RefusedBy::BadCap) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Figures = Figures {
        by: Some(RefusedBy::Cap),
        all_known: true,
        of_cache: true,
        other_call: false,
        size: 100,
        free: 120,
        largest_hole: Some(60),
        left: Some(10),
        over: 0,
        other: None,
    };

    #[test]
    fn free_bytes_without_a_large_range_are_fragmentation() {
        for by in [Some(RefusedBy::Cap), Some(RefusedBy::Driver), Some(RefusedBy::Group), None] {
            assert_eq!(Figures { by, ..KNOWN }.cause(), OomCause::Fragmentation, "{by:?}");
        }
        assert_eq!(Figures { largest_hole: None, ..KNOWN }.cause(), OomCause::Fragmentation);
        // With what is left they are enough.
        assert_eq!(Figures { free: 90, ..KNOWN }.cause(), OomCause::Fragmentation);
        assert_eq!(Figures { free: 89, ..KNOWN }.cause(), OomCause::Cap);
        assert_eq!(Figures { free: 90, left: None, ..KNOWN }.cause(), OomCause::Cap);
        // Nothing is free, or one range is large enough: not fragmentation.
        assert_eq!(Figures { free: 0, left: Some(99), ..KNOWN }.cause(), OomCause::Cap);
        assert_eq!(Figures { largest_hole: Some(100), ..KNOWN }.cause(), OomCause::Cap);
        // The driver's callers do not use the cache.
        assert_eq!(Figures { of_cache: false, ..KNOWN }.cause(), OomCause::Cap);
    }

    #[test]
    fn otherwise_the_limit_that_refused_is_the_cause() {
        let cause = |by| Figures { by, free: 0, ..KNOWN }.cause();
        assert_eq!(cause(Some(RefusedBy::Driver)), OomCause::Card);
        assert_eq!(cause(Some(RefusedBy::Group)), OomCause::Cap);
        assert_eq!(cause(None), OomCause::Torch);
        assert_eq!(
            Figures { by: None, free: 0, all_known: false, ..KNOWN }.cause(),
            OomCause::Unknown
        );
        assert_eq!(Figures { by: Some(RefusedBy::BadCap), ..KNOWN }.cause(), OomCause::BadCap);
    }

    #[test]
    fn mps_and_cgroup_limits_are_not_the_card() {
        let refused = Figures { by: Some(RefusedBy::Driver), of_cache: false, ..KNOWN };
        let cause = |left, other| Figures { left, other, ..refused }.cause();
        let setting =
            |known: &'static str| OtherLimit::of(move |name| (name == known).then_some("0=2G"));
        let (mps, cgroup) = (setting(MPS_LIMIT), setting(CGROUP_LIMIT));
        assert_eq!(
            (mps, cgroup, setting("")),
            (Some(OtherLimit::Mps), Some(OtherLimit::Cgroup), None)
        );
        assert_eq!(cause(Some(100), mps), OomCause::Mps);
        assert_eq!(cause(Some(100), cgroup), OomCause::Cgroup);
        assert_eq!(cause(Some(100), None), OomCause::Card, "nearly full");
        assert_eq!(cause(Some(99), mps), OomCause::Card, "the card had too little");
        assert_eq!(cause(None, mps), OomCause::Card, "what the card had is not known");
        let other = |left| Figures { other_call: true, left, ..refused }.cause();
        assert_eq!([None, Some(STEP)].map(other), [OomCause::Unknown; 2]);
        assert_eq!(other(Some(STEP - 1)), OomCause::Card);
        let text = Figures { left: Some(100 + STEP), ..refused }.no_room(None, 100);
        assert!(text.starts_with("not known: asked 100 B, though the card"), "{text}");
        let ours = Figures { by: Some(RefusedBy::Cap), ..refused };
        assert_eq!(Figures { left: Some(100), other: mps, ..ours }.cause(), OomCause::Cap);
    }

    #[test]
    fn missing_bytes_count_from_the_bytes_in_use() {
        let missing = |figures: Figures| figures.missing();
        assert_eq!(missing(Figures { free: 30, ..KNOWN }), 60);
        assert_eq!(missing(Figures { free: 0, left: Some(0), over: 40, ..KNOWN }), 140);
        assert_eq!(missing(Figures { left: None, ..KNOWN }), 0);
        assert_eq!(over(Some(RefusedBy::Cap), 140, 100), 40);
        assert_eq!(over(Some(RefusedBy::Group), 60, 100), 0);
        assert_eq!(over(Some(RefusedBy::Driver), 140, 0), 0);
    }

    #[test]
    fn left_bytes_are_those_of_the_refusing_limit() {
        assert_eq!(left(Some(RefusedBy::Cap), 30, 100, Some(5)), Some(70));
        assert_eq!(left(Some(RefusedBy::Group), 130, 100, None), Some(0));
        assert_eq!(left(Some(RefusedBy::Driver), 30, 100, Some(5)), Some(5));
        assert_eq!(left(None, 30, 100, Some(5)), None);
    }
}
