//! The buffers of reductions, as of the gradient of a bias: they grow with the batch until the kernel fills the card.
//!
//! A kernel of PyTorch that reduces many rows to few divides the rows among thread blocks, each of which leaves its part in
//! a buffer. There are as many as have work, and no more than the card runs at once. So the buffer is in proportion to the
//! batch first, and then stays as large as it is, which two small batches do not show.

use super::law::Bound;

/// Bytes for each multiprocessor: 2,048 threads, in blocks of 128, which leave 64 KiB each.
const OF_MULTIPROCESSOR: u64 = 1 << 20;
/// The number of thread blocks is rounded up: a buffer may be larger by this part.
const ROUNDED_UP: f64 = 0.02;

/// Multiprocessors of cards, by all words of their names. Measured: buffers of three models on an H100 and an H200 were no
/// larger than 138,412,032 B, whatever the batch.
const CARDS: [(&[&str], u64); 2] = [(&["H100", "HBM3"], 132), (&["H200"], 132)];

/// The largest buffer on a card, by the name that the driver gives it. `None`: not known.
pub(super) fn largest_on(card: &str) -> Option<u64> {
    let has = |word: &&str| card.split([' ', '-']).any(|of| of == *word);
    let row = CARDS.iter().find(|(words, _)| words.iter().all(has))?;
    Some(row.1 * OF_MULTIPROCESSOR)
}

/// The size of a buffer that would have `bytes` without a limit. `recorded`: the largest size that was seen.
pub(super) fn limited(bytes: u64, recorded: u64, largest: Option<u64>, bound: Bound) -> u64 {
    match (largest, bound) {
        (Some(largest), Bound::High) => {
            bytes.min((largest as f64 * (1.0 + ROUNDED_UP)) as u64).max(bytes.min(recorded))
        }
        (Some(largest), _) => bytes.min(largest.max(recorded)),
        // It may have stopped to grow.
        (None, Bound::Low) => bytes.min(recorded),
        (None, _) => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_buffer_grows_until_the_card_is_full() {
        let largest = largest_on("NVIDIA H100 80GB HBM3");
        assert_eq!(largest, Some(138_412_032));
        let at = |bytes, bound| limited(bytes * MIB, 60 * MIB, largest, bound) / MIB;
        assert_eq!([at(100, Bound::Expected), at(100, Bound::High)], [100, 100]);
        let bounds = [Bound::Low, Bound::Expected, Bound::High];
        assert_eq!(bounds.map(|bound| at(400, bound)), [132, 132, 134]);
        assert_eq!(limited(200 * MIB, 150 * MIB, largest, Bound::Expected), 150 * MIB);
    }

    #[test]
    fn on_another_card_it_may_have_stopped_growing() {
        let largest = largest_on("NVIDIA H100 PCIe");
        assert_eq!(largest, None);
        let at = |bound| limited(400 * MIB, 60 * MIB, largest, bound) / MIB;
        assert_eq!([Bound::Low, Bound::Expected, Bound::High].map(at), [60, 400, 400]);
        assert_eq!(limited(20 * MIB, 60 * MIB, None, Bound::Low), 20 * MIB, "a smaller batch");
    }
}
