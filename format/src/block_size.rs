//! The size of a block of PyTorch's cache for a requested size, in bytes, by the rules of torch 2.11.

/// The smallest block; block sizes are multiples of it. Requests below it are not rounded by divisions.
pub const MIN_BLOCK: u64 = 512;

/// Bytes of the block that serves `requested` bytes, before the cache hands out a larger one whole. `divisions`: those of a
/// power of two (`roundup_power2_divisions`) that the setting has for this size; up to 1: none.
#[inline]
pub fn rounded(requested: u64, divisions: u64) -> u64 {
    if requested < MIN_BLOCK {
        return MIN_BLOCK;
    }
    if divisions > 1 && requested > MIN_BLOCK.saturating_mul(divisions) {
        let floor = 1u64 << requested.ilog2();
        if requested == floor {
            return requested;
        }
        return up(requested, floor >> divisions.ilog2());
    }
    up(requested, MIN_BLOCK)
}

/// The next multiple of a power of two; the largest number where there is none.
fn up(bytes: u64, step: u64) -> u64 {
    bytes.checked_add(step - 1).map_or(u64::MAX, |bytes| bytes & !(step - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn divisions_of_a_power_of_two() {
        assert_eq!(rounded(2049, 4), 2560);
        assert_eq!(rounded(3 * MIB + 1, 4), 3_670_016);
        assert_eq!(rounded(100 * MIB + 1, 8), 109_051_904);
        assert_eq!(rounded(1200, 4), 1536, "1,200 is not above 512 x 4");
        assert_eq!(rounded(2048, 4), 2048);
        assert_eq!(rounded(4 * MIB, 4), 4 * MIB, "a power of two stays");
    }

    #[test]
    fn without_divisions_512() {
        for none in [0, 1] {
            assert_eq!(rounded(0, none), 512);
            assert_eq!(rounded(1, none), 512);
            assert_eq!(rounded(513, none), 1024);
            assert_eq!(rounded(MIB + 1, none), 1_049_088);
        }
    }

    #[test]
    fn no_number_overflows() {
        for divisions in [0, 1, 4, 1 << 40, u64::MAX] {
            for requested in [0, 511, 512, 1 << 63, u64::MAX - 1, u64::MAX] {
                assert!(rounded(requested, divisions) >= requested.min(u64::MAX - 511));
            }
        }
    }
}
