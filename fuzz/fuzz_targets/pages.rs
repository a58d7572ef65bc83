//! Parses arbitrary bytes as the live page of a process and as the page of a group. Only processes of the same user
//! can write them, but these may be of another version or have a bug.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use vramtrace_format::group::{GROUP_WORDS, GroupPage, limit_order};
use vramtrace_format::live::{FILED_WORDS, LIVE_DEVICES, LIVE_WORDS};
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;
use vramtrace_format::name::PageName;
use vramtrace_format::{LivePage, LiveProcess};

/// The bytes as a page of that many words, padded with zeros.
fn page<const N: usize>(bytes: &[u8]) -> Box<[AtomicU64; N]> {
    let mut words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let words: Vec<AtomicU64> = (0..N).map(|_| AtomicU64::new(words.next().unwrap_or(0))).collect();
    words.into_boxed_slice().try_into().expect("as long")
}

fn live(bytes: &[u8]) {
    let words = page::<LIVE_WORDS>(bytes);
    // With a valid beginning, so that the rest is read.
    let fresh = page::<LIVE_WORDS>(&[]);
    LivePage::begin(&fresh, &LiveProcess::default());
    for word in 0..2 {
        words[word].store(fresh[word].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let page = LivePage::open(&words).expect("its beginning is right");
    let _ = (page.process(), page.state(), page.group(), page.last_order_word(), page.sites());
    let (owner, escapes) = (page.owner(), page.escapes());
    let (_, devices) = page.devices();
    assert!(devices.len() <= LIVE_DEVICES);
    for ordinal in 0..=u8::MAX {
        let _ = page.ordered(ordinal);
    }
    // A writer continues on this page.
    page.set_trace("/tmp/a.vtrace");
    page.set_group("group");
    assert_eq!(
        (page.process().trace.as_str(), page.group().as_deref()),
        ("/tmp/a.vtrace", Some("group"))
    );
    page.set_owner(&owner);
    page.set_locked(true);
    page.set_escapes(escapes);
    assert_eq!((page.is_locked(), page.escapes(), page.owner().rank), (true, escapes, owner.rank));
    page.update(1, &devices);
    let mut filed = [0; FILED_WORDS];
    filed.iter_mut().zip(words.iter()).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
    page.take_filed(&filed);
}

fn group(bytes: &[u8]) {
    let words = page::<GROUP_WORDS>(bytes);
    let fresh = page::<GROUP_WORDS>(&[]);
    GroupPage::make(&fresh, "a", 7);
    for word in 0..2 {
        words[word].store(fresh[word].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let page = GroupPage::look(&words).expect("its beginning is right");
    for (device, _) in page.devices() {
        let _ = (page.limit(device), page.sum(device), page.settled(0, device));
    }
    let _ = (page.members().count(), page.name(), page.turn());
    let me = Member { pid: 1, segment: 2, made: 3 };
    page.remove_dead_members(me, |_| Life::Dead);
    // No other member is alive: there is room.
    let slot = page.join(me, |_| Life::Dead).expect("room for one");
    if let Some(device) = page.device(&[1; 16], 0, 1 << 30) {
        page.set_member_limit(slot, device, Some(100));
        let (at, _) = limit_order(device, Some(50));
        assert!(at as usize / 8 < GROUP_WORDS);
        page.begin_request(slot);
        page.count(slot, device).fetch_add(5, Ordering::SeqCst);
        let _ = (page.sum(device), page.settled(slot, device));
        page.end_request(slot);
    }
}

fuzz_target!(|bytes: &[u8]| {
    live(bytes);
    group(bytes);
    if let Ok(name) = std::str::from_utf8(bytes) {
        let _ = PageName::parse(name);
    }
});
