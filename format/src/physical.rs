//! What the driver really takes for a request, as measured on an H200 (driver 580).
//! One set of rules, used by the shim's ledger and by the reader's replay, so that they agree.

use crate::kind::Kind;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// The driver's page: requests above [`SMALL`] take whole ones.
pub const PAGE: u64 = 2 * MIB;
/// Requests up to this size share pages with others.
pub const SMALL: u64 = MIB;
/// Alignment of shared allocations: an allocation's own share of its page.
pub const GRAIN: u64 = 512;
/// Pools and graph memory grow by this much.
pub const POOL_STEP: u64 = 32 * MIB;

#[inline]
pub fn round_up(bytes: u64, step: u64) -> u64 {
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX - (u64::MAX % step))
}

/// How the physical bytes of one allocation are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// These bytes, its own.
    Own(u64),
    /// It shares 2 MiB pages of addresses: each page that holds a live one counts [`PAGE`] once;
    /// the field is the allocation's own share, for "who holds it" tables.
    Shared(u64),
    /// Counted by its pool's or the device's graph reservation (`PoolState`, `GraphState`).
    Reserved,
    /// Counts nowhere in device sums (imported, host, a framework's blocks).
    None,
}

/// `size` is what was requested, with the real pitch for pitched memory and the memory
/// requirements for arrays.
#[inline]
pub fn physical(kind: Kind, size: u64) -> Physical {
    match kind {
        Kind::Device | Kind::Pitched if size <= SMALL => Physical::Shared(round_up(size, GRAIN)),
        Kind::Device | Kind::Pitched | Kind::Vmm | Kind::Managed => {
            Physical::Own(round_up(size, PAGE))
        }
        Kind::Array | Kind::Mipmapped => Physical::Own(size),
        Kind::Pool | Kind::Graph => Physical::Reserved,
        Kind::Imported | Kind::HostPinned | Kind::HostRegistered | Kind::Block => Physical::None,
    }
}

/// First and last 2 MiB page number that `[address, address + size)` touches.
#[inline]
pub fn pages(address: u64, size: u64) -> (u64, u64) {
    (address / PAGE, address.saturating_add(size.max(1) - 1) / PAGE)
}

/// An allocation's own share of physical memory, for "who holds it" tables. Slab allocations: size
/// rounded up to 512 B; pool and graph blocks: their size, inside what the pool reserved.
pub fn share(kind: Kind, size: u64) -> u64 {
    match physical(kind, size) {
        Physical::Own(bytes) | Physical::Shared(bytes) => bytes,
        Physical::Reserved | Physical::None => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_rounding() {
        assert_eq!(physical(Kind::Device, 513), Physical::Shared(1024));
        assert_eq!(physical(Kind::Device, MIB), Physical::Shared(MIB));
        assert_eq!(physical(Kind::Device, MIB + 1), Physical::Own(2 * MIB));
        assert_eq!(physical(Kind::Device, 3 * MIB), Physical::Own(4 * MIB));
        assert_eq!(physical(Kind::Array, 256 * MIB), Physical::Own(256 * MIB));
        assert_eq!(physical(Kind::Managed, 1), Physical::Own(2 * MIB));
        assert_eq!(physical(Kind::Pool, MIB), Physical::Reserved);
    }

    #[test]
    fn a_slab_allocation_can_straddle_pages() {
        assert_eq!(pages(PAGE - 512, 1024), (0, 1));
        assert_eq!(pages(PAGE, 0), (1, 1));
    }

    #[test]
    fn rounding_saturates() {
        assert!(round_up(u64::MAX, PAGE) >= u64::MAX - PAGE);
    }
}
