//! Figures, groups, orders.

use super::*;

pub(crate) fn words() -> Box<[AtomicU64; LIVE_WORDS]> {
    let words: Vec<AtomicU64> = (0..LIVE_WORDS).map(|_| AtomicU64::new(0)).collect();
    words.into_boxed_slice().try_into().unwrap()
}

#[test]
fn figures_groups_and_orders_come_back() {
    let words = words();
    assert!(LivePage::open(&words).is_none());
    let trace = "/tmp/a b.vtrace".into();
    let process = LiveProcess { pid: 7, start_ticks: 6, start_unix_ns: 5, start_mono_ns: 8, trace };
    let page = LivePage::begin(&words, &process);
    page.set_state(LiveState::Recording);
    let seen = LivePage::open(&words).unwrap();
    assert_eq!((seen.process(), seen.state()), (process, Some(LiveState::Recording)));
    page.set_trace(&"x".repeat(5000));
    assert_eq!(seen.process().trace, "");
    let device = LiveDevice {
        ordinal: 3,
        live: 1,
        cap: Some(9),
        warned: 4,
        total_bytes: 5,
        uuid: std::array::from_fn(|n| n as u8),
        only_warns: true,
        ..LiveDevice::default()
    };
    assert!(page.update(77, &[LiveDevice::default(), device]));
    assert_eq!(page.devices(), (77, vec![LiveDevice::default(), device]));
    assert_eq!(page.group(), None);
    page.set_group("two-services");
    assert_eq!(page.group().as_deref(), Some("two-services"));
    page.set_group(&"x".repeat(64));
    assert_eq!(page.group(), Some("x".repeat(64)));

    assert_eq!((page.last_order(), page.ordered(3)), (0, None));
    let give = |cap, number| {
        for (at, word) in order(3, cap, number).unwrap() {
            words[at as usize / 8].store(word, Ordering::Relaxed);
        }
    };
    give(Some(6 << 30), 55);
    assert_eq!((page.last_order(), page.ordered(3)), (55, Some((55, Some(6 << 30)))));
    page.set_applied(3, 55);
    assert_eq!((page.ordered(3), page.ordered(2), page.ordered(99)), (None, None, None));
    give(None, 56);
    assert_eq!(page.ordered(3), Some((56, None)));
    assert_eq!(order(16, None, 1), None);
}

#[test]
fn a_page_of_another_version_is_none() {
    let words = words();
    LivePage::begin(&words, &LiveProcess::default());
    assert!(LivePage::open(&words).is_some());
    for version in [0, LIVE_VERSION - 1, LIVE_VERSION + 1] {
        words[1].store(u64::from(version).to_le(), Ordering::Relaxed);
        assert!(LivePage::open(&words).is_none(), "{version}");
    }
}

#[test]
fn an_order_through_the_file_is_taken_once_and_nothing_else_is() {
    let words = words();
    let page = LivePage::begin(&words, &LiveProcess { pid: 7, ..LiveProcess::default() });
    page.set_state(LiveState::Recording);
    for garbage in [0, 1, u64::MAX, 0xA5A5_A5A5_A5A5_A5A5] {
        page.take_filed(&[garbage; FILED_WORDS]);
        assert_eq!(page.last_order(), 0);
    }
    let mut file = [0; FILED_WORDS];
    let mut give = |ordinal, cap, number| {
        let (at, words) = page.filed_order(ordinal, cap, number).unwrap();
        let at = (at as usize - LIVE_BYTES) / 8;
        file[at..at + 3].copy_from_slice(&words);
        file
    };
    page.take_filed(&give(3, Some(77), 50));
    assert_eq!((page.last_order(), page.ordered(3)), (50, Some((50, Some(77)))));
    page.set_applied(3, 50);
    page.take_filed(&give(0, None, 51));
    assert_eq!((page.ordered(3), page.ordered(0)), (None, Some((51, None))));
    page.take_filed(&give(0, Some(5), 49));
    assert_eq!(page.ordered(0), Some((51, None)), "an older one");
    assert_eq!(page.filed_order(16, None, 1), None);
    // Of another process, before this one.
    let other = self::words();
    let other = LivePage::begin(&other, &LiveProcess { pid: 8, ..LiveProcess::default() });
    other.take_filed(&give(0, Some(5), 99));
    assert_eq!(other.last_order(), 0);
}
