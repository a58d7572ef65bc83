//! A device's live bytes at every moment of one process, small enough for a run of many.

/// Moments that are kept of one process, and of all processes together.
const MOST: usize = 65_536;
const MOST_TOGETHER: usize = 4 << 20;
const FEWEST: usize = 1_024;

/// How many moments of each of so many processes.
pub fn most_for(processes: usize) -> usize {
    (MOST_TOGETHER / processes.max(1)).clamp(FEWEST, MOST)
}

/// The value from each moment on. Where there are too many, neighbours are joined by the higher
/// value: a sum of several is never too low.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    most: usize,
    points: Vec<(u64, u64)>,
    /// Changes that one point stands for, and those that the last one has.
    stride: u32,
    taken: u32,
}

impl Steps {
    pub fn new(most: usize) -> Steps {
        Steps { most: most.max(2), points: Vec::new(), stride: 1, taken: 0 }
    }

    pub fn push(&mut self, time_ns: u64, value: u64) {
        if let Some(last) = self.points.last_mut() {
            if last.1 == value && self.stride == 1 {
                return;
            }
            if self.taken < self.stride {
                last.1 = last.1.max(value);
                self.taken += 1;
                return;
            }
        }
        if self.points.len() == self.most {
            self.points = self.points.chunks(2).map(join).collect();
            self.stride = self.stride.saturating_mul(2);
        }
        // Stamps may run back a little.
        let from = self.points.last().map_or(0, |last| last.0);
        self.points.push((time_ns.max(from), value));
        self.taken = 1;
    }

    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }
}

fn join(points: &[(u64, u64)]) -> (u64, u64) {
    (points[0].0, points.iter().map(|point| point.1).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_exact_and_many_are_never_too_low() {
        let mut steps = Steps::new(64);
        for n in 0..50u64 {
            steps.push(n * 10, n * 7 % 13);
        }
        assert_eq!(steps.points().len(), 50);
        let value = |n: u64| n * 7 % 13;
        let mut many = Steps::new(64);
        for n in 0..10_000u64 {
            many.push(n * 10, value(n));
        }
        assert!(many.points().len() <= 64);
        for n in 0..10_000u64 {
            let at = many.points().partition_point(|point| point.0 <= n * 10) - 1;
            assert!(many.points()[at].1 >= value(n), "{n}");
        }
        assert_eq!(most_for(1), MOST);
        assert_eq!(most_for(1024) * 1024, MOST_TOGETHER);
    }
}
