//! Threads that read a pool's figures, and the destruction of the pool.

use loom::sync::Arc;
use loom::thread;

use crate::model::pool_readers::Readers;
use crate::runtime::atomics::{AtomicU64, Ordering};

struct Pool {
    readers: Readers,
    is_destroying: AtomicU64,
    /// The driver is asked for its figures, or has destroyed it.
    driver: AtomicU64,
}

const GONE: u64 = 1 << 32;

/// The thread that destroys it does not wait here: it gives up where it sees a reader.
#[test]
fn a_reader_is_seen_or_sees_the_destruction() {
    loom::model(|| {
        let zero = || AtomicU64::new(0);
        let (is_destroying, driver) = (zero(), zero());
        let pool = Arc::new(Pool { readers: Readers::default(), is_destroying, driver });
        let reads = {
            let pool = pool.clone();
            thread::spawn(move || {
                let _reading = pool.readers.begin();
                if pool.is_destroying.load(Ordering::SeqCst) == 0 {
                    let before = pool.driver.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(before, 0, "it is gone and read");
                    pool.driver.fetch_sub(1, Ordering::Relaxed);
                }
            })
        };
        pool.is_destroying.store(1, Ordering::SeqCst);
        if !pool.readers.any() {
            let before = pool.driver.fetch_add(GONE, Ordering::Relaxed);
            assert_eq!(before, 0, "it is destroyed and being read");
        }
        reads.join().unwrap();
    });
}
