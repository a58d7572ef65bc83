//! What the driver held for itself at the device's highest peak, for the summary at the end.
//!
//! While memory use grows, every allocation is a new peak. The peaks have numbers, the *epochs*
//! ([`vramtrace_format::summary`]): what is held is copied at its first change in a new epoch.

use super::driver_internal::Originator;
use crate::runtime::fallible::list_of;

#[derive(Debug, Default)]
pub struct AtPeak {
    epoch: u32,
    makers: Vec<(Originator, u64)>,
    /// There was no host memory for the copy.
    lost: bool,
}

impl AtPeak {
    /// Before a change in this epoch.
    pub fn keep(&mut self, epoch: u32, makers: &[(Originator, u64)]) {
        if self.epoch == epoch {
            return;
        }
        let copy = list_of(makers.len(), makers.iter().copied());
        self.lost = copy.is_err();
        (self.epoch, self.makers) = (epoch, copy.unwrap_or_default());
    }

    /// What was held at the last peak, whose number is `epoch`. `now`: what is held now. `None`: not known.
    pub fn at<'a>(
        &'a self,
        epoch: u32,
        now: &'a [(Originator, u64)],
    ) -> Option<&'a [(Originator, u64)]> {
        match self.epoch == epoch {
            true if self.lost => None,
            true => Some(&self.makers),
            false => Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::Cause;

    #[test]
    fn the_copy_is_of_the_first_change_after_the_last_peak() {
        let held = |bytes| [(Originator::unnamed(Cause::Graphs), bytes)];
        let mut at_peak = AtPeak::default();
        at_peak.keep(0, &held(1));
        assert_eq!(at_peak.at(1, &held(2)), Some(&held(2)[..]), "unchanged since the peak");
        at_peak.keep(1, &held(2));
        at_peak.keep(1, &held(3));
        assert_eq!(at_peak.at(1, &held(4)), Some(&held(2)[..]));
        at_peak.keep(7, &held(4));
        assert_eq!(at_peak.at(7, &[]), Some(&held(4)[..]));
    }
}
