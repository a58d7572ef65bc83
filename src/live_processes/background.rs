//! A value that a thread keeps up to date. What it asks may take long, or never answer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The thread ends after this is dropped; one that waits for an answer ends with the process.
pub struct Background<T> {
    latest: Arc<Mutex<T>>,
    is_left: Arc<AtomicBool>,
}

impl<T: Clone + Send + 'static> Background<T> {
    /// `next` gives the next value. Between two the thread rests as long as `rest`, and at least four times as long as
    /// the value took.
    pub fn start(
        first: T,
        rest: Duration,
        mut next: impl FnMut() -> T + Send + 'static,
    ) -> Background<T> {
        let latest = Arc::new(Mutex::new(first));
        let is_left = Arc::new(AtomicBool::new(false));
        let (into, left) = (latest.clone(), is_left.clone());
        std::thread::spawn(move || {
            while !left.load(Relaxed) {
                let began = Instant::now();
                let value = next();
                *into.lock().unwrap_or_else(PoisonError::into_inner) = value;
                let until = Instant::now() + rest.max(began.elapsed() * 4);
                while Instant::now() < until && !left.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(50).min(rest));
                }
            }
        });
        Background { latest, is_left }
    }

    /// The first value of which `is_wanted` is true, or the latest one after this time.
    pub fn wait(&self, most: Duration, is_wanted: impl Fn(&T) -> bool) -> T {
        let began = Instant::now();
        while !is_wanted(&self.latest()) && began.elapsed() < most {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.latest()
    }

    pub fn latest(&self) -> T {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        self.is_left.store(true, Relaxed);
    }
}
