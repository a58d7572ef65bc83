//! Which windows stay when the trace reaches its limit.
//!
//! Kept: definitions; from the last checkpoint but one to the end; and for each device the windows from
//! the checkpoint before its highest peak up to that peak; and the last copy of the history. The oldest others are
//! erased and their slots reused, so the file does not grow beyond the limit.

use super::failure::Failure;
use crate::runtime::fallible::{MakeRoom, TryPush};
use crate::runtime::hash_table::NoMemory;
use std::ops::RangeInclusive;
use vramtrace_format::{DeviceId, HEADER_BYTES, SLOT, StopReason, WindowKind};

/// An event window that has not been erased.
#[derive(Clone, Copy, Debug)]
struct Placed {
    sequence: u64,
    slot: u32,
    slots: u16,
    /// No thread writes to it any more.
    complete: bool,
}

/// A checkpoint: the windows in which it begins and ends.
#[derive(Clone, Copy, Debug)]
struct Mark {
    begin: u64,
    end: Option<u64>,
}

/// The windows from which a device's peak can be replayed.
#[derive(Clone, Copy, Debug)]
struct Peak {
    device: DeviceId,
    bytes: u64,
    /// The window at the last reading: the peak is in it or later.
    looked: u64,
    from: u64,
    to: u64,
    /// Given up: its windows took too much of the limit.
    dropped: bool,
}

pub struct Retention {
    limit: Option<u64>,
    /// Only checkpoints follow, in place of older events: the windows that must be kept exceed the limit.
    pub totals_only: bool,
    /// Bytes of blocks in the file.
    used: u64,
    windows: Vec<Placed>,
    /// Complete checkpoints and the running one, oldest first. The first is the start of the file,
    /// where nothing was live.
    marks: Vec<Mark>,
    peaks: Vec<Peak>,
    /// Devices whose peak was given up since the last query.
    lost: Vec<DeviceId>,
    /// The windows with the last copy of the history.
    history: Option<RangeInclusive<u64>>,
    has_erased: bool,
}

impl Retention {
    pub fn new(limit: Option<u64>) -> Retention {
        Retention {
            limit,
            totals_only: false,
            used: HEADER_BYTES as u64,
            windows: Vec::new(),
            marks: vec![Mark { begin: 0, end: Some(0) }],
            peaks: Vec::new(),
            lost: Vec::new(),
            history: None,
            has_erased: false,
        }
    }

    /// Makes room for one more window, mark and peak.
    pub fn make_list_room(&mut self) -> Result<(), NoMemory> {
        self.windows.make_room()?;
        self.marks.make_room()?;
        self.peaks.make_room()?;
        self.lost.make_room()
    }

    /// A window was put into the file.
    pub fn placed(&mut self, kind: WindowKind, sequence: u64, slot: u32, slots: u16) {
        self.used += u64::from(slots) * SLOT as u64;
        if kind == WindowKind::Events && self.limit.is_some() {
            // There is room (see `make_list_room`); otherwise the window would never be erased.
            let placed = Placed { sequence, slot, slots, complete: false };
            let _ = self.windows.try_push(placed);
        }
    }

    /// All appends to the window have ended, and it is in the file.
    pub fn complete(&mut self, kind: WindowKind, sequence: u64) {
        if kind == WindowKind::Events
            && let Some(window) = self.windows.iter_mut().rfind(|w| w.sequence == sequence)
        {
            window.complete = true;
        }
    }

    /// Makes room below the limit for a window of this size; `erase` frees a range of slots. The
    /// failure has an errno if there is not even room for totals.
    pub fn make_room(
        &mut self,
        bytes: u64,
        mut erase: impl FnMut(u32, u16) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        let errno = if self.totals_only { libc::EFBIG } else { 0 };
        let full = Failure { reason: StopReason::CannotPunch, errno };
        // Peaks may take half of the limit; beyond that the lowest peaks are given up first.
        while self.held_by(|sequence| self.holds_a_peak(sequence)) > limit / 2 && self.drop_a_peak()
        {
        }
        if self.held_by(|sequence| self.has_history(sequence)) > limit / 4 {
            // Another copy follows.
            self.history = None;
        }
        while self.used + bytes > limit {
            let Some(at) = self.oldest_free() else {
                if self.drop_a_peak() || self.history.take().is_some() {
                    continue;
                }
                return Err(full);
            };
            let window = self.windows.remove(at);
            self.has_erased = true;
            erase(window.slot, window.slots)?;
            self.used -= u64::from(window.slots) * SLOT as u64;
        }
        Ok(())
    }

    fn oldest_free(&self) -> Option<usize> {
        let tail = self.tail();
        self.windows.iter().position(|window| {
            let sequence = window.sequence;
            let kept =
                sequence >= tail || self.holds_a_peak(sequence) || self.has_history(sequence);
            window.complete && (self.totals_only || !kept)
        })
    }

    fn holds_a_peak(&self, sequence: u64) -> bool {
        self.peaks.iter().any(|peak| peak.holds(sequence))
    }

    /// The window of the last complete checkpoint but one: from here on everything stays.
    fn tail(&self) -> u64 {
        let mut complete = self.marks.iter().rev().filter(|mark| mark.end.is_some());
        let last = complete.next();
        complete.next().or(last).map_or(0, |mark| mark.begin)
    }

    /// Bytes of windows before the tail for which `keeps` is true.
    fn held_by(&self, keeps: impl Fn(u64) -> bool) -> u64 {
        let tail = self.tail();
        let held = self.windows.iter().filter(|one| one.sequence < tail && keeps(one.sequence));
        held.map(|window| u64::from(window.slots) * SLOT as u64).sum()
    }

    fn has_history(&self, sequence: u64) -> bool {
        self.history.as_ref().is_some_and(|windows| windows.contains(&sequence))
    }

    /// A copy of the history is in these windows, which are behind the last checkpoint.
    pub fn set_history(&mut self, windows: RangeInclusive<u64>) {
        self.history = Some(windows);
    }

    /// Whether any events were erased, or none are written any more.
    pub fn has_erased(&self) -> bool {
        self.has_erased || self.totals_only
    }

    fn drop_a_peak(&mut self) -> bool {
        let kept = self.peaks.iter_mut().filter(|peak| !peak.dropped);
        let Some(lowest) = kept.min_by_key(|peak| peak.bytes) else { return false };
        lowest.dropped = true;
        let _ = self.lost.try_push(lowest.device);
        true
    }

    /// Devices whose peak had to be given up, each reported once a peak.
    pub fn take_lost(&mut self) -> Vec<DeviceId> {
        std::mem::take(&mut self.lost)
    }

    /// A checkpoint begins in this window (or later).
    pub fn checkpoint_begins(&mut self, sequence: u64) {
        let _ = self.marks.try_push(Mark { begin: sequence, end: None });
    }

    /// It is complete with this window (or earlier).
    pub fn checkpoint_ends(&mut self, sequence: u64) {
        if let Some(mark) = self.marks.last_mut() {
            mark.end = Some(sequence);
        }
        // Older ones are not needed: a new peak begins at one of the latest.
        let surplus = self.marks.len().saturating_sub(8);
        self.marks.drain(..surplus);
    }

    /// The device's highest peak so far, as read while this window was being filled.
    pub fn peak(&mut self, device: DeviceId, bytes: u64, sequence: u64) {
        let known = self.peaks.iter().position(|peak| peak.device == device);
        let fresh = Peak { device, bytes: 0, looked: 0, from: 0, to: 0, dropped: false };
        let at = match known {
            Some(at) => at,
            None if self.peaks.try_push(fresh).is_ok() => self.peaks.len() - 1,
            None => return,
        };
        let looked = self.peaks[at].looked;
        self.peaks[at].looked = sequence;
        if bytes <= self.peaks[at].bytes {
            return;
        }
        // The peak was reached after the last reading, so replay begins at a checkpoint that was
        // complete before that. One window more on both sides, for threads between ledger and file.
        let from = self
            .marks
            .iter()
            .rev()
            .find(|mark| mark.end.is_some_and(|end| end < looked))
            .or(self.marks.first())
            .map_or(0, |mark| mark.begin);
        let peak = &mut self.peaks[at];
        (peak.bytes, peak.from, peak.to, peak.dropped) = (bytes, from, sequence + 1, false);
    }
}

impl Peak {
    fn holds(&self, sequence: u64) -> bool {
        !self.dropped && (self.from..=self.to).contains(&sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = SLOT as u64;

    /// Windows of one slot; those that were erased, by sequence.
    struct File {
        retention: Retention,
        next: u64,
        erased: Vec<u64>,
    }

    impl File {
        fn new(windows: u64) -> File {
            let limit = HEADER_BYTES as u64 + windows * WINDOW;
            File { retention: Retention::new(Some(limit)), next: 0, erased: Vec::new() }
        }

        /// One more window; the ones before are complete.
        fn roll(&mut self) -> Result<(), Failure> {
            let erased = &mut self.erased;
            self.retention.make_room(WINDOW, |slot, _| {
                erased.push(u64::from(slot));
                Ok(())
            })?;
            self.retention.placed(WindowKind::Events, self.next, self.next as u32, 1);
            if self.next > 0 {
                self.retention.complete(WindowKind::Events, self.next - 1);
            }
            self.next += 1;
            assert!(self.retention.used <= self.retention.limit.unwrap());
            Ok(())
        }

        fn checkpoint(&mut self) {
            self.retention.checkpoint_begins(self.next - 1);
            self.retention.checkpoint_ends(self.next - 1);
        }

        fn is_whole(&self, mut range: RangeInclusive<u64>) -> bool {
            !range.any(|sequence| self.erased.contains(&sequence))
        }
    }

    #[test]
    fn the_way_to_each_devices_peak_stays_and_so_does_the_tail() {
        let mut file = File::new(24);
        for step in 0..400u64 {
            file.roll().unwrap();
            let now = file.next - 1;
            if step % 4 == 0 {
                file.checkpoint();
            }
            // Device 0 peaks in window 50, device 1 in window 90.
            file.retention.peak(DeviceId(0), step.min(50), now);
            file.retention.peak(DeviceId(1), 1000 + step.min(90), now);
        }
        // The checkpoint before window 49, where it was looked at last, is in 44 or 48.
        assert!(file.is_whole(48..=51) && file.is_whole(88..=91), "{:?}", file.erased);
        assert!(file.is_whole(392..=399));
        assert!(file.erased.len() > 370);
        assert_eq!(file.retention.take_lost(), []);
    }

    #[test]
    fn peaks_that_take_too_much_are_given_up_from_the_lowest_on() {
        let mut file = File::new(24);
        for step in 0..200u64 {
            file.roll().unwrap();
            let now = file.next - 1;
            if step % 4 == 0 {
                file.checkpoint();
            }
            for device in 0..8u8 {
                let top = 10 + 10 * u64::from(device);
                file.retention.peak(
                    DeviceId(device),
                    u64::from(device) * 1000 + step.min(top),
                    now,
                );
            }
        }
        assert!(file.is_whole(77..=80), "the highest stays: {:?}", file.erased);
        let lost = file.retention.take_lost();
        assert!(!lost.is_empty() && !lost.contains(&DeviceId(7)), "{lost:?}");
        assert_eq!(file.retention.take_lost(), []);
    }

    #[test]
    fn the_last_copy_of_the_history_stays() {
        // The copies take less than a quarter of it.
        let mut file = File::new(64);
        for step in 0..200u64 {
            file.roll().unwrap();
            let now = file.next - 1;
            if step % 4 == 0 {
                file.checkpoint();
            }
            match now {
                52 => file.retention.set_history(50..=52),
                // Until there is another one.
                129 => assert!(file.is_whole(50..=52)),
                130 => file.retention.set_history(128..=130),
                _ => {}
            }
        }
        assert!(file.is_whole(128..=130) && !file.is_whole(50..=50), "{:?}", file.erased);
        assert!(file.retention.has_erased());
    }

    #[test]
    fn without_checkpoints_nothing_may_go_and_totals_take_over() {
        let mut file = File::new(24);
        let failure = (0..100).find_map(|_| file.roll().err()).unwrap();
        assert_eq!(failure, Failure { reason: StopReason::CannotPunch, errno: 0 });
        assert!(file.erased.is_empty());
        file.retention.totals_only = true;
        for _ in 0..100 {
            file.roll().unwrap();
        }
    }
}
