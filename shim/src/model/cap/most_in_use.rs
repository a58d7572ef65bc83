//! The most bytes that were in use since a read-back of the driver's figures began.
//!
//! A read-back shows what the driver had grown to when it began, or later. A request in progress at
//! that moment may still grow it afterwards, up to the bytes in use then. A block that is freed before
//! the next read-back does not undo such growth.

const KEPT: usize = 4;

/// All zero bytes are an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[repr(C)]
pub struct MostInUse {
    len: usize,
    /// The read-back that had begun last, and the bytes: oldest first, each with more than those
    /// after it.
    noted: [(u64, u64); KEPT],
}

impl MostInUse {
    /// Notes the bytes in use now; `began`: the latest read-back that has begun.
    #[inline]
    pub fn note(&mut self, began: u64, bytes: u64) {
        // As where one thread allocates and frees.
        if self.len == 1 && self.noted[0].1 <= bytes {
            self.noted[0] = (began, bytes);
            return;
        }
        self.note_among(began, bytes);
    }

    #[cold]
    #[inline(never)]
    fn note_among(&mut self, began: u64, bytes: u64) {
        while self.len > 0 && self.noted[self.len - 1].1 <= bytes {
            self.len -= 1;
        }
        if self.len == KEPT {
            // Kept longer than necessary: the reserved bytes are then too high, never too low.
            self.noted[1].1 = self.noted[0].1;
            self.drop_first(1);
        }
        self.noted[self.len] = (began, bytes);
        self.len += 1;
    }

    /// The figures of a read-back were applied; they include what was in use before it began.
    #[inline]
    pub fn forget_before(&mut self, began: u64) {
        if self.noted[0].0 < began {
            self.forget_some(began);
        }
    }

    #[cold]
    #[inline(never)]
    fn forget_some(&mut self, began: u64) {
        let old = (0..self.len).take_while(|at| self.noted[*at].0 < began).count();
        self.drop_first(old);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        if self.len == 0 { 0 } else { self.noted[0].1 }
    }

    #[inline]
    fn drop_first(&mut self, count: usize) {
        for at in count..self.len {
            self.noted[at - count] = self.noted[at];
        }
        self.len -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_a_read_back_is_forgotten_with_it() {
        let mut most = MostInUse::default();
        for (began, bytes) in [(1, 10), (1, 90), (2, 40), (3, 60), (3, 20)] {
            most.note(began, bytes);
        }
        assert_eq!(most.get(), 90);
        most.forget_before(1);
        assert_eq!(most.get(), 90);
        most.forget_before(2);
        assert_eq!(most.get(), 60);
        most.forget_before(3);
        assert_eq!(most.get(), 60);
        most.forget_before(4);
        assert_eq!(most.get(), 0);
    }

    #[test]
    fn where_there_is_no_room_it_is_never_too_low() {
        let (mut most, mut all) = (MostInUse::default(), Vec::new());
        for began in 0..50u64 {
            let bytes = 1000 - began * 10 + began % 3;
            most.note(began, bytes);
            all.push((began, bytes));
            let mut seen = most;
            for from in 0..=began {
                seen.forget_before(from);
                let exact = all.iter().filter(|(at, _)| *at >= from).map(|(_, bytes)| *bytes).max();
                assert!(Some(seen.get()) >= exact, "{began} {from}");
            }
            assert_eq!(seen.get(), bytes);
        }
    }
}
