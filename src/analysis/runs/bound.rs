//! A bound on the time in which the traces of a run are read: what would take longer is left out, and the result says so.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of trace that one core reads in a second, before any was measured.
const FIRST_SPEED: u64 = 32 << 20;
/// Below this many bytes a measurement says little about the speed.
const LEAST_MEASURED: u64 = 4 << 20;

/// The time that is left, and the speed so far. Several threads use it at the same time.
#[derive(Debug)]
pub struct Bound {
    /// `None`: no bound.
    until: Option<Instant>,
    bytes: AtomicU64,
    took_ns: AtomicU64,
}

impl Bound {
    pub fn none() -> Bound {
        Bound { until: None, bytes: AtomicU64::new(0), took_ns: AtomicU64::new(0) }
    }

    /// From now on.
    pub fn within(time: Duration) -> Bound {
        Bound { until: Instant::now().checked_add(time), ..Bound::none() }
    }

    /// With the same end, for work of another kind: its speed is not known yet.
    pub fn for_other_work(&self) -> Bound {
        Bound { until: self.until, ..Bound::none() }
    }

    pub fn is_none(&self) -> bool {
        self.until.is_none()
    }

    /// Whether one thread can read so many bytes in the time that is left.
    pub fn allows(&self, bytes: u64) -> bool {
        let Some(until) = self.until else { return true };
        let left = until.saturating_duration_since(Instant::now());
        self.time_for(bytes) <= left
    }

    fn time_for(&self, bytes: u64) -> Duration {
        let (read, took_ns) = (self.bytes.load(Relaxed), self.took_ns.load(Relaxed));
        let speed = match read >= LEAST_MEASURED && took_ns > 0 {
            true => read as f64 * 1e9 / took_ns as f64,
            false => FIRST_SPEED as f64,
        };
        Duration::try_from_secs_f64(bytes as f64 / speed).unwrap_or(Duration::MAX)
    }

    /// Does work that reads a trace of so many bytes, and measures it.
    pub fn measure<T>(&self, bytes: u64, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.note(bytes, began.elapsed());
        result
    }

    fn note(&self, bytes: u64, took: Duration) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.took_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_is_left_is_not_allowed() {
        let minute = Bound::within(Duration::from_secs(60));
        assert!(minute.allows(FIRST_SPEED * 30) && !minute.allows(FIRST_SPEED * 61));
        // The speed that was measured takes the place of the first guess.
        minute.note(LEAST_MEASURED, Duration::from_secs(4));
        assert!(minute.allows(50 << 20) && !minute.allows(70 << 20));
        assert!(!Bound::within(Duration::ZERO).allows(1));
        assert!(Bound::none().allows(u64::MAX) && Bound::none().is_none());
        assert!(!minute.allows(u64::MAX));
    }
}
