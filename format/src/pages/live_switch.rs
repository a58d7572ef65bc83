//! The switch of the recording in a live page: orders of `vramtrace record`, and who has switched it off.
//!
//! ```text
//! word 720  number of the last order; 0 = no order yet        721  1: on, 2: off
//!      722  number of the last applied order
//!      723  who has switched the recording off: a bit, 1 << number, for each [`SwitchedBy`]; 0 = it is on
//! ```
//!
//! In the page's file such an order follows those for devices: number, 1 or 2, check, 0.

use super::live::{LivePage, RECORDING, SWITCH_AT, order_words};
use crate::record::values::SwitchedBy;

const OFF_BY: usize = 723;
const ON: u64 = 1;
const OFF: u64 = 2;

impl LivePage<'_> {
    /// The last order for the recording: its number, and whether the recording is to be on. `None`: there is none.
    pub fn switch_order(&self) -> Option<(u64, bool)> {
        match self.last_order_for(RECORDING)? {
            [number, ON, _] if number != 0 => Some((number, true)),
            [number, OFF, _] if number != 0 => Some((number, false)),
            _ => None,
        }
    }

    /// Marks the order with this number as applied.
    pub fn set_switch_applied(&self, number: u64) {
        self.set_applied(RECORDING, number);
    }

    pub fn is_switch_applied(&self) -> bool {
        self.last_order_for(RECORDING).is_some_and(|[number, _, applied]| number == applied)
    }

    /// Says who has switched the recording off; nobody: it is on.
    pub fn set_off_by(&self, by: &[SwitchedBy]) {
        self.set(OFF_BY, by.iter().fold(0, |bits, by| bits | 1 << *by as u64));
    }

    /// Who has switched the recording off; empty: nobody.
    pub fn off_by(&self) -> Vec<SwitchedBy> {
        let bits = self.get(OFF_BY);
        SwitchedBy::ALL.into_iter().filter(|by| bits >> *by as u64 & 1 == 1).collect()
    }

    /// As [`switch_order`], for a process that cannot attach the page: the byte offset in the page's file, and the
    /// words to store there.
    pub fn filed_switch(&self, on: bool, number: u64) -> (u64, [u64; 3]) {
        self.filed(RECORDING, value(on), number)
    }
}

fn value(on: bool) -> u64 {
    if on { ON } else { OFF }
}

/// An order that switches the recording: byte offsets in the page with the words to store there, in this order.
/// `number` must not be 0 and must be greater than that of any earlier order, for example the time.
pub fn switch_order(on: bool, number: u64) -> [(u64, u64); 3] {
    order_words(SWITCH_AT, value(on), number)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::pages::live::tests::words;
    use crate::pages::live::{FILED_WORDS, LIVE_BYTES, LiveDevice, LiveProcess};

    #[test]
    fn an_order_arrives_is_applied_and_touches_nothing_else() {
        let words = words();
        let process = LiveProcess { pid: 7, start_ticks: 3, ..LiveProcess::default() };
        let page = LivePage::begin(&words, &process);
        assert_eq!((page.switch_order(), page.is_switch_applied()), (None, true));
        assert!(page.off_by().is_empty());
        page.update(1, &[LiveDevice { live: 5, ..LiveDevice::default() }; 16]);
        page.set_group("g");
        for (number, on) in [(10, false), (20, true)] {
            for (at, word) in switch_order(on, number) {
                words[at as usize / 8].store(word.to_le(), Ordering::Relaxed);
            }
            assert_eq!((page.last_order(), page.switch_order()), (number, Some((number, on))));
            assert!(!page.is_switch_applied());
            page.set_switch_applied(number);
            assert!(page.is_switch_applied());
        }
        page.set_off_by(&[SwitchedBy::HostFile, SwitchedBy::Order]);
        assert_eq!(page.off_by(), [SwitchedBy::Order, SwitchedBy::HostFile]);
        page.set_off_by(&[]);
        assert!(page.off_by().is_empty());
        assert_eq!((page.group(), page.process()), (Some("g".into()), process));
        assert_eq!((page.ordered(15), page.devices().1.len()), (None, 16));
    }

    #[test]
    fn an_order_by_the_file_counts_once_and_with_its_check_only() {
        let words = words();
        let page = LivePage::begin(&words, &LiveProcess { pid: 7, ..LiveProcess::default() });
        let (at, order) = page.filed_switch(false, 9);
        let first = (at as usize - LIVE_BYTES) / 8;
        let mut filed = [0; FILED_WORDS];
        filed[first..first + 3].copy_from_slice(&order);
        filed[first + 1] = ON;
        page.take_filed(&filed);
        assert_eq!(page.switch_order(), None, "another value than the check's");
        filed[first + 1] = OFF;
        page.take_filed(&filed);
        assert_eq!((page.switch_order(), page.last_order()), (Some((9, false)), 9));
        page.set_switch_applied(9);
        page.take_filed(&filed);
        assert!(page.is_switch_applied());
    }
}
