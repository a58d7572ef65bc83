//! The first two words of a record, and its check.
//!
//! ```text
//!  63      48 47    40 39   32 31      16 15     0
//! | time_lo  |  kind  |  len  |  thread  | check  |   word 0
//!  63           40 39                           0
//! |   time_hi     |            small             |   word 1 (not in padding)
//! ```
//! `len` is the length in 8-byte words, word 0 included. `kind` 0: a writer has reserved the record and not finished
//! it. The time is `time_hi << 16 | time_lo`, in ticks of 64 ns, modulo 2^40 (19.5 hours).

/// Greatest length of a record, in words.
pub const MAX_WORDS: usize = 255;
/// A tick is `1 << TICK_SHIFT` ns: 64 ns.
pub const TICK_SHIFT: u32 = 6;
/// Ticks are stored modulo this number.
pub const TICKS: u64 = 1 << 40;
/// Width of the small field of word 1, in bits. The time is above it.
pub const SMALL_BITS: u32 = 40;
/// The bits of the small field.
pub const SMALL_MASK: u64 = (1 << SMALL_BITS) - 1;

/// The fields of word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub time_lo: u16,
    pub kind: u8,
    pub len: u8,
    pub thread: u16,
    pub check: u16,
}

impl Head {
    /// Whether the record is reserved and not finished.
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

/// The bits of word 0 that hold the check.
pub const CHECK_MASK: u64 = 0xFFFF;

/// The ticks of a time in ns since start, modulo 2^40.
#[inline]
pub const fn ticks(time_ns: u64) -> u64 {
    time_ns >> TICK_SHIFT & (TICKS - 1)
}

/// A time in ns, rounded down to whole ticks.
#[inline]
pub const fn whole_ticks(time_ns: u64) -> u64 {
    time_ns >> TICK_SHIFT << TICK_SHIFT
}

/// The time in ns, nearest to `near_ns`, whose ticks modulo 2^40 are `ticks`.
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

/// A checksum over words: one multiplication for each word, so that 32 bytes take a few ns. It detects accidental
/// damage, not deliberate changes.
#[derive(Clone, Copy, Debug)]
pub struct Check(u64);

impl Check {
    /// The initial value for pages and window headers.
    #[inline(always)]
    pub const fn new() -> Check {
        Check(SEED)
    }

    /// The initial value for the records of a file. `file`: its tag ([`crate::Header::file_tag`]).
    #[inline(always)]
    pub const fn of_file(file: u64) -> Check {
        Check(SEED ^ file)
    }

    /// Adds a word.
    #[inline(always)]
    pub const fn word(self, word: u64) -> Check {
        Check((self.0.rotate_left(29) ^ word).wrapping_mul(MIX))
    }

    /// The check of the words so far, in 64 bits.
    #[inline(always)]
    pub const fn sum64(self) -> u64 {
        let h = self.0;
        (h ^ h >> 32).wrapping_mul(MIX)
    }

    /// The check of a record at this file offset. It is wrong at any other offset and in any other file. The offset
    /// comes last, so that a writer can compute the rest before it has reserved the record.
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

/// The check of a record without its offset ([`Check::sum16`] adds it). `file`: [`Check::of_file`]. The check field of
/// `words[0]` counts as 0.
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
