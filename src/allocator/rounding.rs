//! The sizes of blocks and segments for a requested size, in bytes, by the rules of torch 2.11.

use super::Conf;

/// The smallest block; block sizes are multiples of it.
pub const MIN_BLOCK: u64 = 512;
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
    if requested < MIN_BLOCK {
        return MIN_BLOCK;
    }
    // The exponent counts from 1 MiB; sizes below 2 MiB share the first entry.
    let index = (requested.ilog2() as usize).saturating_sub(20).min(15);
    let divisions = u64::from(conf.roundup_power2_divisions[index]);
    if divisions > 1 && requested > MIN_BLOCK * divisions {
        let floor = 1u64 << requested.ilog2();
        if requested == floor {
            return requested;
        }
        return requested.next_multiple_of(floor >> divisions.ilog2());
    }
    requested.next_multiple_of(MIN_BLOCK)
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
    fn divisions_of_a_power_of_two() {
        let by = |n: u32| Conf { roundup_power2_divisions: [n; 16], ..Conf::default() };
        assert_eq!(block_size(&by(4), 2049), 2560);
        assert_eq!(block_size(&by(4), 3 * MIB + 1), 3_670_016);
        assert_eq!(block_size(&by(8), 100 * MIB + 1), 109_051_904);
        assert_eq!(block_size(&by(4), 1200), 1536, "1,200 is not above 512 x 4");
        assert_eq!(block_size(&by(4), 4 * MIB), 4 * MIB, "a power of two stays");
    }

    #[test]
    fn without_divisions_512() {
        let conf = Conf::default();
        assert_eq!(block_size(&conf, 1), 512);
        assert_eq!(block_size(&conf, 513), 1024);
        assert_eq!(block_size(&conf, MIB + 1), 1_049_088);
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
