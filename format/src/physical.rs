//! The physical bytes of device memory that the driver uses for a request, as measured on an H200 (driver 580). The
//! recorder's ledger and the reader's replay use the same rules.

use crate::kind::Kind;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Page size of the driver, in bytes. A request above [`SMALL`] takes whole pages.
pub const PAGE: u64 = 2 * MIB;
/// Requests of up to this many bytes share pages.
pub const SMALL: u64 = MIB;
/// Alignment of allocations that share pages, in bytes. The size is rounded up to it.
pub const GRAIN: u64 = 512;
/// Pools and graph memory grow in steps of this many bytes.
pub const POOL_STEP: u64 = 32 * MIB;

/// `bytes` rounded up to a multiple of `step`; the greatest multiple in 64 bits if the result does not fit.
#[inline]
pub fn round_up(bytes: u64, step: u64) -> u64 {
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX - (u64::MAX % step))
}

/// How the physical bytes of one allocation are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// This many bytes, of which no other allocation has a share.
    Own(u64),
    /// It shares pages: each page with at least one live allocation counts as [`PAGE`] bytes, once. The field is the
    /// allocation's share in bytes, for tables of call sites.
    Shared(u64),
    /// Part of the reserved bytes of its pool or of the device's graph memory (`PoolState`, `GraphState`).
    Reserved,
    /// Not part of any device sum (imported memory, host memory, a framework's blocks).
    None,
}

impl Physical {
    /// See [`share`]. `size`: the requested bytes.
    #[inline]
    pub fn share(self, size: u64) -> u64 {
        match self {
            Physical::Own(bytes) | Physical::Shared(bytes) => bytes,
            Physical::Reserved | Physical::None => size,
        }
    }
}

/// How an allocation is counted. `size`: the requested bytes; for pitched memory, pitch times height; for arrays,
/// the size in the memory requirements.
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

/// Numbers of the first and last 2 MiB page that `[address, address + size)` overlaps. Size 0 counts as 1.
#[inline]
pub fn pages(address: u64, size: u64) -> (u64, u64) {
    (address / PAGE, address.saturating_add(size.max(1) - 1) / PAGE)
}

/// An allocation's share of physical memory in bytes, for tables of call sites. Allocations that share pages: the size
/// rounded up to 512 B. Blocks of pools, graphs and frameworks, imported and host memory: the size.
pub fn share(kind: Kind, size: u64) -> u64 {
    physical(kind, size).share(size)
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
    fn a_small_allocation_can_straddle_pages() {
        assert_eq!(pages(PAGE - 512, 1024), (0, 1));
        assert_eq!(pages(PAGE, 0), (1, 1));
    }

    #[test]
    fn rounding_saturates() {
        assert!(round_up(u64::MAX, PAGE) >= u64::MAX - PAGE);
    }
}
