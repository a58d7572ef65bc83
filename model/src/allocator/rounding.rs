//! The sizes of blocks and segments for a requested size, in bytes, by the rules of torch 2.11.

use super::Conf;
use vramtrace_format::block_size;
pub use vramtrace_format::block_size::MIN_BLOCK;

/// Requests up to this size are "small".
pub const SMALL: u64 = 1 << 20;
/// The size of a segment for small blocks.
pub const SMALL_SEGMENT: u64 = 2 << 20;
/// A request of this size or more gets a separate segment.
pub const OWN_SEGMENT: u64 = 10 << 20;
/// The size of a separate segment is a multiple of this.
pub const OWN_SEGMENT_STEP: u64 = 2 << 20;

/// Bytes of the block that serves `requested` bytes.
pub fn block_size(conf: &Conf, requested: u64) -> u64 {
    // The exponent counts from 1 MiB; sizes below 2 MiB share the first entry.
    let exponent = requested.max(1).ilog2() as usize;
    let index = exponent.saturating_sub(20).min(15);
    block_size::rounded(requested, conf.roundup_power2_divisions[index].into())
}

/// Bytes of the segment that is requested from the driver when no free block fits a block of `size`.
pub fn segment_size(conf: &Conf, size: u64) -> u64 {
    if size <= SMALL {
        SMALL_SEGMENT
    } else if size < OWN_SEGMENT {
        conf.large_segment_size
    } else {
        size.next_multiple_of(OWN_SEGMENT_STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn divisions_by_size() {
        let mut conf = Conf::default();
        conf.roundup_power2_divisions[0] = 8;
        conf.roundup_power2_divisions[1] = 4;
        conf.roundup_power2_divisions[15] = 2;
        assert_eq!(block_size(&conf, 0), 512);
        assert_eq!(block_size(&conf, 2 * MIB - 1), 2 * MIB);
        assert_eq!(block_size(&conf, MIB + 1), MIB + MIB / 8);
        assert_eq!(block_size(&conf, 2 * MIB + 1), 2 * MIB + MIB / 2);
        assert_eq!(block_size(&conf, 5 * MIB + 1), 5 * MIB + 512, "none from 4 MiB on");
        assert_eq!(block_size(&conf, (64 << 30) + 1), 96 << 30, "the last one is for all above");
    }

    #[test]
    fn segments() {
        let conf = Conf::default();
        assert_eq!(segment_size(&conf, MIB), 2 * MIB);
        assert_eq!(segment_size(&conf, MIB + 512), 20 * MIB);
        assert_eq!(segment_size(&conf, 10 * MIB - 512), 20 * MIB);
        assert_eq!(segment_size(&conf, 10 * MIB), 10 * MIB);
        assert_eq!(segment_size(&conf, 21 * MIB + 512), 22 * MIB);
    }
}
