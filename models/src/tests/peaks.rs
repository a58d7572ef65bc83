//! A device's peaks, changed by threads that hold the locks of different shards.

use loom::sync::Arc;
use loom::thread;

use crate::model::peaks::{KeptEpoch, Peaks};
use crate::runtime::atomics::{AtomicU64, Ordering};

/// Two threads reach a peak each while a third allocates a block.
#[test]
fn each_peak_has_a_number_and_none_is_undone() {
    loom::model(|| {
        let peaks = Arc::new(Peaks::default());
        let reaching: Vec<_> = (0..2)
            .map(|_| {
                let peaks = peaks.clone();
                thread::spawn(move || {
                    let before = peaks.epoch();
                    peaks.reached();
                    assert!(peaks.epoch() > before);
                })
            })
            .collect();
        let (epoch, _) = peaks.epoch_for(true);
        assert!(peaks.epoch() >= epoch);
        reaching.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(peaks.epoch(), 2);
    });
}

/// Of two blocks that are allocated at once after a peak, one is the first.
#[test]
fn one_block_joins_a_peak() {
    loom::model(|| {
        let peaks = Arc::new(Peaks::default());
        peaks.reached();
        let other = peaks.clone();
        let thread = thread::spawn(move || other.epoch_for(true).1);
        let own = peaks.epoch_for(true).1;
        assert!(own != thread.join().unwrap());
        assert_eq!(peaks.epoch_for(true), (1, false));
    });
}

/// A thread that looked before the last peak goes on after it, while another one changes the kind.
#[test]
fn what_a_kind_held_at_a_peak_is_not_replaced_by_a_late_thread() {
    const AT_PEAK: u64 = 7;
    for kept_before in [false, true] {
        loom::model(move || {
            let peaks = Peaks::default();
            let (kept, bytes) = (AtomicU64::new(0), AtomicU64::new(5));
            let kind = Arc::new((KeptEpoch::default(), kept, bytes));
            peaks.reached();
            let late_epoch = peaks.epoch();
            if kept_before {
                kind.0.keep(late_epoch, &kind.1, &kind.2);
            }
            kind.2.store(AT_PEAK, Ordering::Relaxed);
            peaks.reached();
            let late = {
                let kind = kind.clone();
                thread::spawn(move || kind.0.keep(late_epoch, &kind.1, &kind.2))
            };
            kind.0.keep(peaks.epoch(), &kind.1, &kind.2);
            kind.2.store(99, Ordering::Relaxed);
            late.join().unwrap();
            assert!(kind.0.is_of(peaks.epoch()));
            assert_eq!(kind.1.load(Ordering::Relaxed), AT_PEAK);
        });
    }
}
