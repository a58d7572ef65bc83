//! The first word of a record, and the check that covers it.
//!
//! ```text
//!  63      48 47    40 39   32 31      16 15     0
//! | time_lo  |  kind  |  len  |  thread  | check  |   word 0
//!  63           40 39                           0
//! |   time_hi     |            small             |   word 1 (not in padding)
//! ```
//! `len` counts 8-byte words, word 0 included. `kind` 0: reserved by a writer that has not
//! finished. Time is `time_hi << 16 | time_lo`, in ticks of 64 ns, modulo 2^40 (19.5 hours).

/// Longest record, in words.
pub const MAX_WORDS: usize = 255;
/// Bits of a nanosecond count that a tick drops.
pub const TICK_SHIFT: u32 = 6;
/// Ticks are kept modulo this.
pub const TICKS: u64 = 1 << 40;
/// Bits of word 1 below the time.
pub const SMALL_BITS: u32 = 40;
pub const SMALL_MASK: u64 = (1 << SMALL_BITS) - 1;

/// Word 0, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub time_lo: u16,
    pub kind: u8,
    pub len: u8,
    pub thread: u16,
    pub check: u16,
}

impl Head {
    /// Of a record whose place is taken and whose words are not all stored.
    #[inline]
    pub const fn is_unfinished(self) -> bool {
        self.kind == 0 && self.check == 0 && self.len > 0
    }

    #[inline]
    pub const fn pack(self) -> u64 {
        (self.time_lo as u64) << 48
            | (self.kind as u64) << 40
            | (self.len as u64) << 32
            | (self.thread as u64) << 16
            | self.check as u64
    }

    #[inline]
    pub const fn unpack(word: u64) -> Head {
        Head {
            time_lo: (word >> 48) as u16,
            kind: (word >> 40) as u8,
            len: (word >> 32) as u8,
            thread: (word >> 16) as u16,
            check: word as u16,
        }
    }
}

/// Bits of word 0 that hold the kind, and those that hold the check.
pub const KIND_MASK: u64 = 0xFF << 40;
pub const CHECK_MASK: u64 = 0xFFFF;

/// Ticks of a time since start.
#[inline]
pub const fn ticks(time_ns: u64) -> u64 {
    time_ns >> TICK_SHIFT & (TICKS - 1)
}

/// A time as a record can hold it: whole ticks.
#[inline]
pub const fn whole_ticks(time_ns: u64) -> u64 {
    time_ns >> TICK_SHIFT << TICK_SHIFT
}

/// The full time whose ticks are `ticks`, nearest to `near_ns`.
#[inline]
pub const fn unwrap_ticks(ticks: u64, near_ns: u64) -> u64 {
    let near = near_ns >> TICK_SHIFT;
    // Difference modulo 2^40, as a signed number.
    let shift = 64 - 40;
    let ahead = ((ticks.wrapping_sub(near) << shift) as i64) >> shift;
    let full = near as i64 + ahead;
    let full = if full < 0 { full + TICKS as i64 } else { full };
    (full as u64) << TICK_SHIFT
}

const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
const SEED: u64 = 0x7672_616D_7472_6163;

/// Running check over words: one multiplication a word, so that 32 bytes cost a few ns. It finds
/// damage, not malice.
#[derive(Clone, Copy, Debug)]
pub struct Check(u64);

impl Check {
    #[inline(always)]
    pub const fn new() -> Check {
        Check(SEED)
    }

    /// The start value of the checks of a file's records. `file`: its tag ([`crate::Header::file_tag`]).
    #[inline(always)]
    pub const fn of_file(file: u64) -> Check {
        Check(SEED ^ file)
    }

    #[inline(always)]
    pub const fn word(self, word: u64) -> Check {
        Check((self.0.rotate_left(29) ^ word).wrapping_mul(MIX))
    }

    #[inline(always)]
    pub const fn sum64(self) -> u64 {
        let h = self.0;
        (h ^ h >> 32).wrapping_mul(MIX)
    }

    /// The check of a record that stands at this byte of the file: moved elsewhere, or into
    /// another file, it does not check. The place comes last, so that a writer can do the rest
    /// before it has one.
    #[inline(always)]
    pub const fn sum16(self, offset: u64) -> u16 {
        (Check(self.0 ^ offset.rotate_left(40)).sum64() >> 48) as u16
    }
}

impl Default for Check {
    fn default() -> Check {
        Check::new()
    }
}

/// The running check of a whole record, from its file's [`Check::of_file`]; the check field of
/// `words[0]` is taken as 0.
#[inline(always)]
pub fn check(file: Check, words: &[u64]) -> Check {
    let mut sum = file.word(words[0] & !CHECK_MASK);
    for word in &words[1..] {
        sum = sum.word(*word);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_round_trip() {
        let head = Head { time_lo: 0xABCD, kind: 0x12, len: 0x34, thread: 0x5678, check: 0x9ABC };
        assert_eq!(head.pack(), 0xABCD_1234_5678_9ABC);
        assert_eq!(Head::unpack(head.pack()), head);
    }

    #[test]
    fn time_unwraps_to_the_nearest() {
        let hour = 3_600_000_000_000u64;
        for near in [0, hour, 30 * hour, 1000 * hour] {
            for step in [0, 64, hour, 9 * hour] {
                let later = whole_ticks(near + step);
                assert_eq!(unwrap_ticks(ticks(later), near), later, "{near} + {step}");
                if near >= step {
                    let before = whole_ticks(near - step);
                    assert_eq!(unwrap_ticks(ticks(before), near), before, "{near} - {step}");
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_shows() {
        let mut words = [0x0000_1004_0001_0000, 0x7F00_0000_0001, 4096, 0x1_0000_0001];
        let at = |offset, words: &[u64]| check(Check::of_file(77), words).sum16(offset);
        let good = at(4160, &words);
        assert_ne!(at(4168, &words), good);
        assert_ne!(at(4160 + (1 << 18), &words), good);
        assert_ne!(check(Check::of_file(78), &words).sum16(4160), good);
        for word in 0..4 {
            for bit in 0..64 {
                if word == 0 && bit < 16 {
                    continue;
                }
                words[word] ^= 1 << bit;
                assert_ne!(at(4160, &words), good, "word {word} bit {bit}");
                words[word] ^= 1 << bit;
            }
        }
    }
}
