//! Why a request got no memory: one rule, for the recorder's summary and for `vramtrace oom`.

use crate::record::values::{OomEvidence, PostMortem, Refused, RefusedBy};

/// The cause of an out-of-memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The framework's cache had enough free bytes, alone or with the rest of the limit, but not in one
    /// piece.
    Fragmentation,
    /// The request did not fit under the cap, even if the cache freed everything it could.
    Cap,
    /// The cap cannot be parsed: every request is refused.
    BadCap,
    /// The request did not fit on the card.
    Card,
    /// The card had room, and MPS allows the process less (`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`).
    Mps,
    /// The card had room, and the kernel's device memory cgroup allows less (`dmem.max`).
    Cgroup,
    /// PyTorch's own limit, as a memory fraction: no call of the driver's was refused.
    Torch,
    /// The trace shows no driver call that was refused, and may lack some.
    Unknown,
}

impl Cause {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Fragmentation => "fragmentation",
            Cause::Cap => "cap",
            Cause::BadCap => "bad_cap",
            Cause::Card => "card",
            Cause::Mps => "mps",
            Cause::Cgroup => "cgroup",
            Cause::Torch => "torch",
            Cause::Unknown => "unknown",
        }
    }

    /// The beginning of a sentence about the cause.
    pub fn words(self) -> &'static str {
        match self {
            Cause::Fragmentation => "fragmentation",
            Cause::BadCap => "VRAMTRACE_CAP cannot be understood",
            Cause::Cap
            | Cause::Card
            | Cause::Mps
            | Cause::Cgroup
            | Cause::Torch
            | Cause::Unknown => "too much",
        }
    }
}

/// A limit below the size of the card that MPS or a cgroup sets for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherLimit {
    Mps,
    Cgroup,
}

/// The variable that limits a client of MPS.
pub const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// The file of the process's cgroup (v2), and the setting that a trace keeps it as.
pub const CGROUP_LIMIT: &str = "dmem.max";

impl OtherLimit {
    /// By the settings of a trace, or of the process itself.
    pub fn of<'s>(setting: impl Fn(&str) -> Option<&'s str>) -> Option<OtherLimit> {
        let is_set = |name| setting(name).is_some_and(|value| !value.trim().is_empty());
        match (is_set(MPS_LIMIT), is_set(CGROUP_LIMIT)) {
            (true, _) => Some(OtherLimit::Mps),
            (false, true) => Some(OtherLimit::Cgroup),
            (false, false) => None,
        }
    }
}

/// The figures of such a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Who refused; `None`: no refused call is known.
    pub by: Option<RefusedBy>,
    /// The trace has every call: if none was refused, the framework met its own limit.
    pub all_known: bool,
    /// Whether a framework's cache gave up on it; if not, a driver call was refused.
    pub of_cache: bool,
    pub size: u64,
    /// Free bytes inside the framework's segments, and the longest run of them.
    pub free: u64,
    /// `None`: not known.
    pub largest_hole: Option<u64>,
    /// What the limit had left, see [`left`]; `None`: not known.
    pub left: Option<u64>,
    /// By how much the count was over the limit already, see [`over`].
    pub over: u64,
    /// Another limit that may apply if the driver refused although the card had room.
    pub other: Option<OtherLimit>,
}

impl Figures {
    /// Figures of a refusal that a library did not report.
    pub fn of_refused(refused: &Refused, other: Option<OtherLimit>) -> Figures {
        let &Refused { by, size, counted, limit, driver_free, .. } = refused;
        let card_free = Some(driver_free).filter(|free| *free > 0);
        Figures {
            by: Some(by),
            all_known: true,
            of_cache: false,
            size,
            free: 0,
            largest_hole: None,
            left: left(Some(by), counted, limit, card_free),
            over: over(Some(by), counted, limit),
            other,
        }
    }

    /// Figures of a post-mortem. `free`: bytes inside the framework's segments.
    pub fn of(post_mortem: &PostMortem, free: u64) -> Figures {
        let &PostMortem { by, size, counted, limit, driver_free, largest_hole, .. } = post_mortem;
        Figures {
            by,
            all_known: true,
            of_cache: post_mortem.evidence == OomEvidence::FrameworkGaveUp,
            size,
            free,
            largest_hole,
            left: left(by, counted, limit, driver_free),
            over: over(by, counted, limit),
            other: None,
        }
    }

    /// These figures with another limit that may apply.
    pub fn beside(self, other: Option<OtherLimit>) -> Figures {
        Figures { other, ..self }
    }

    /// Further bytes that would have had to be free; 0 if none are known to be missing.
    pub fn missing(&self) -> u64 {
        let Some(left) = self.left else { return 0 };
        let wanted = self.size.saturating_add(self.over);
        wanted.saturating_sub(self.free).saturating_sub(left)
    }

    /// Whether there were as many free bytes as requested.
    pub fn is_free_enough(&self) -> bool {
        self.free >= self.size
    }

    fn is_fragmentation(&self) -> bool {
        // More than the request can have been left if the framework rounded it up.
        let left = self.left.filter(|left| *left < self.size).unwrap_or(0);
        self.of_cache
            && self.free > 0
            && self.free.saturating_add(left) >= self.size
            && self.largest_hole.is_none_or(|hole| hole < self.size)
    }

    pub fn cause(&self) -> Cause {
        match self.by {
            Some(RefusedBy::BadCap) => Cause::BadCap,
            _ if self.is_fragmentation() => Cause::Fragmentation,
            // The card had enough, so another limit refused.
            Some(RefusedBy::Driver) if self.left.is_some_and(|left| left >= self.size) => {
                match self.other {
                    Some(OtherLimit::Mps) => Cause::Mps,
                    Some(OtherLimit::Cgroup) => Cause::Cgroup,
                    None => Cause::Card,
                }
            }
            Some(RefusedBy::Driver) => Cause::Card,
            Some(RefusedBy::Cap | RefusedBy::Group | RefusedBy::Warned) => Cause::Cap,
            None if self.all_known && self.of_cache => Cause::Torch,
            None => Cause::Unknown,
        }
    }
}

/// The bytes that were free below the limit that refused the request. `None`: not known.
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

/// By how much the count exceeded the cap already: the cap was set below the bytes in use.
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
        size: 100,
        free: 120,
        largest_hole: Some(60),
        left: Some(10),
        over: 0,
        other: None,
    };

    #[test]
    fn free_bytes_that_are_no_piece_are_fragmentation() {
        for by in [Some(RefusedBy::Cap), Some(RefusedBy::Driver), Some(RefusedBy::Group), None] {
            assert_eq!(Figures { by, ..KNOWN }.cause(), Cause::Fragmentation, "{by:?}");
        }
        assert_eq!(Figures { largest_hole: None, ..KNOWN }.cause(), Cause::Fragmentation);
        // With what is left they are enough.
        assert_eq!(Figures { free: 90, ..KNOWN }.cause(), Cause::Fragmentation);
        assert_eq!(Figures { free: 89, ..KNOWN }.cause(), Cause::Cap);
        assert_eq!(Figures { free: 90, left: None, ..KNOWN }.cause(), Cause::Cap);
        // Nothing is free, or a piece would do: that was not it.
        assert_eq!(Figures { free: 0, left: Some(99), ..KNOWN }.cause(), Cause::Cap);
        assert_eq!(Figures { largest_hole: Some(100), ..KNOWN }.cause(), Cause::Cap);
        // The driver's callers do not use the cache.
        assert_eq!(Figures { of_cache: false, ..KNOWN }.cause(), Cause::Cap);
    }

    #[test]
    fn else_it_is_the_limit_of_who_refused() {
        let cause = |by| Figures { by, free: 0, ..KNOWN }.cause();
        assert_eq!(cause(Some(RefusedBy::Driver)), Cause::Card);
        assert_eq!(cause(Some(RefusedBy::Group)), Cause::Cap);
        assert_eq!(cause(None), Cause::Torch);
        assert_eq!(
            Figures { by: None, free: 0, all_known: false, ..KNOWN }.cause(),
            Cause::Unknown
        );
        assert_eq!(Figures { by: Some(RefusedBy::BadCap), ..KNOWN }.cause(), Cause::BadCap);
    }

    #[test]
    fn a_limit_of_others_is_not_the_card() {
        let refused = Figures { by: Some(RefusedBy::Driver), of_cache: false, ..KNOWN };
        let cause = |left, other| Figures { left, other, ..refused }.cause();
        let setting =
            |known: &'static str| OtherLimit::of(move |name| (name == known).then_some("0=2G"));
        let (mps, cgroup) = (setting(MPS_LIMIT), setting(CGROUP_LIMIT));
        assert_eq!(
            (mps, cgroup, setting("")),
            (Some(OtherLimit::Mps), Some(OtherLimit::Cgroup), None)
        );
        assert_eq!(cause(Some(100), mps), Cause::Mps);
        assert_eq!(cause(Some(100), cgroup), Cause::Cgroup);
        assert_eq!(cause(Some(100), None), Cause::Card);
        assert_eq!(cause(Some(99), mps), Cause::Card, "the card had too little");
        assert_eq!(cause(None, mps), Cause::Card, "what the card had is not known");
        let ours = Figures { by: Some(RefusedBy::Cap), ..refused };
        assert_eq!(Figures { left: Some(100), other: mps, ..ours }.cause(), Cause::Cap);
    }

    #[test]
    fn what_is_missing_counts_from_where_the_use_is() {
        let missing = |figures: Figures| figures.missing();
        assert_eq!(missing(Figures { free: 30, ..KNOWN }), 60);
        assert_eq!(missing(Figures { free: 0, left: Some(0), over: 40, ..KNOWN }), 140);
        assert_eq!(missing(Figures { left: None, ..KNOWN }), 0);
        assert_eq!(over(Some(RefusedBy::Cap), 140, 100), 40);
        assert_eq!(over(Some(RefusedBy::Group), 60, 100), 0);
        assert_eq!(over(Some(RefusedBy::Driver), 140, 0), 0);
    }

    #[test]
    fn what_was_left_is_of_who_refused() {
        assert_eq!(left(Some(RefusedBy::Cap), 30, 100, Some(5)), Some(70));
        assert_eq!(left(Some(RefusedBy::Group), 130, 100, None), Some(0));
        assert_eq!(left(Some(RefusedBy::Driver), 30, 100, Some(5)), Some(5));
        assert_eq!(left(None, 30, 100, Some(5)), None);
    }
}
