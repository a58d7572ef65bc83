//! The most bytes that were in use since a read-back of the driver's figures began.
//!
//! A read-back shows what the driver had grown to when it began, or later. A request in progress at
//! that moment may still grow it afterwards, up to the bytes in use then. A block that is freed before
//! the next read-back does not undo such growth.

/// Two figures: the older one has more bytes. Where that is not exact, it is too high, never too low.
///
/// All zero bytes are an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
#[repr(C)]
pub struct MostInUse {
    /// The read-back that had begun last, and the bytes.
    most: (u64, u64),
    /// The most that came later, with the read-back that had begun at the last note.
    later: (u64, u64),
}

impl MostInUse {
    /// Notes the bytes in use now; `began`: the latest read-back that has begun.
    #[inline]
    pub fn note(&mut self, began: u64, bytes: u64) {
        if bytes >= self.most.1 {
            (self.most, self.later) = ((began, bytes), (0, 0));
        } else {
            self.later = (began, bytes.max(self.later.1));
        }
    }

    /// The figures of a read-back were applied; they include what was in use before it began.
    #[inline]
    pub fn forget_before(&mut self, began: u64) {
        if self.most.0 < began {
            self.most = if self.later.0 < began { (0, 0) } else { self.later };
            self.later = (0, 0);
        }
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.most.1
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
    fn it_is_never_too_low() {
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
        }
    }
}
