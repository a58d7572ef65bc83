//! What the driver takes for managed memory beside its pages, and shows to nobody.
//!
//! Filled through managed memory, an H200's used bytes rose by 591 MiB more than the 7,616 MiB of
//! blocks: 518 MiB are the context as NVML shows it, 9 more are the context's too, and some 64 MiB
//! are the driver's bookkeeping of managed pages (a 119th part), which neither NVML's figure for
//! the process nor any allocation call has. So a cap counts a 64th part beside each managed page:
//! enough at that size, and little enough that at least 97 % of a cap can be used.
//!
//! It belongs to the cap's count alone: the ledger and the report know pages.

use vramtrace_format::Kind;

const PART: u64 = 64;

/// Bytes that count beside `bytes` of physical memory of this kind. Exact for whole pages, so
/// that what is added for one allocation after the other is what goes with all of them at once.
#[inline]
pub fn beside(kind: Kind, bytes: u64) -> u64 {
    if kind == Kind::Managed { bytes / PART } else { 0 }
}

/// All that counts for `bytes` of physical memory.
#[inline]
pub fn counted(kind: Kind, bytes: u64) -> u64 {
    bytes.saturating_add(beside(kind, bytes))
}

/// As [`counted`] for a sum that went up or down.
#[inline]
pub fn counted_change(kind: Kind, bytes: i64) -> i64 {
    let all = i64::try_from(counted(kind, bytes.unsigned_abs())).unwrap_or(i64::MAX);
    if bytes < 0 { -all } else { all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::physical::{MIB, PAGE};

    #[test]
    fn only_managed_memory_has_any() {
        assert_eq!(counted(Kind::Device, 64 * MIB), 64 * MIB);
        assert_eq!(counted(Kind::Managed, 64 * MIB), 65 * MIB);
        assert_eq!(counted_change(Kind::Managed, -(64 * MIB as i64)), -(65 * MIB as i64));
        assert_eq!(counted(Kind::Managed, u64::MAX), u64::MAX);
    }

    #[test]
    fn pages_one_by_one_come_to_the_same() {
        let one_by_one: u64 = (0..1000).map(|_| beside(Kind::Managed, PAGE)).sum();
        assert_eq!(one_by_one, beside(Kind::Managed, 1000 * PAGE));
    }

    /// As measured: blocks of 64 MiB under a cap of 8 GiB, judged by the driver's free memory.
    #[test]
    fn the_measured_card_stays_below_the_cap_and_fills_it() {
        let (cap, block) = (8192 * MIB, 64 * MIB);
        let (context_as_seen, unseen) = (518 * MIB, 591 * MIB);
        let blocks = (cap - context_as_seen) / counted(Kind::Managed, block);
        let used = blocks * block + unseen;
        assert!(used <= cap && used * 100 >= cap * 97, "{} MiB", used / MIB);
    }
}
