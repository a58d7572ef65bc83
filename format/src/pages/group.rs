//! The page of a group: the limit that its processes share on each device, and the bytes of each
//! process. It is a segment of shared memory that all of them attach; it has no lock and no common
//! total.
//!
//! ```text
//! word     0  magic "vtgroup2"           1  pid namespace, whose pids these are
//!          2  member slots ever used     3  when it was made: no other page has this number
//!   16..1040  128 devices of 8 words: key (made from the UUID; 0 = free), limit by command
//!             (0 = none given), total bytes, UUID (2), ordinal as its first member saw it
//! 1040..1552  256 members of 2 words: who (see below; 0 = free), its program
//! 1552..1808  for each member: requests that it began (high half), and that it makes now (low half)
//! 2048..67584 for each device, for each member: bytes counted, limit it came with (0 = none)
//! ```
//!
//! The segment is found by a directory, `group.NAME`, with an empty file in it whose name is
//! `<ipc namespace>.<segment>.<word 3>`. Version 1 was a file of this name, with 16 devices; its
//! processes cannot open a directory, so that both versions never share a name.
//!
//! A member adds to its own count, then sums all counts; if the sum is over the limit it subtracts its
//! bytes again. Of requests that race, the last one to add sees all others, so the granted bytes never
//! exceed the limit. The sum may include a request that is subtracted again later: so a member tries
//! again, unless members without a request in flight already have too much. A killed member leaves its
//! counts. A member that is refused first removes members whose process has exited: it stores its own
//! id with bit 63 in the slot, empties the slot, and frees it. If it is killed meanwhile, it is removed
//! in the same way. A free slot is all zeros.

use super::group_layout::{ASKS_AT, COUNTS_AT, DEVICE_WORDS, DEVICES_AT, MEMBERS_AT};
pub use super::group_layout::{GROUP_DEVICES, GROUP_MEMBERS, GROUP_WORDS};
use super::member::Member;
use crate::atomics::{AtomicU64, Ordering::SeqCst};
use crate::uuid;

/// Length of the page's segment.
pub const GROUP_BYTES: usize = GROUP_WORDS * 8;
const MAGIC: u64 = u64::from_le_bytes(*b"vtgroup2");
/// Added to a member's word of requests: one more begun, and one more in flight.
const ASK: u64 = 1 << 32 | 1;
const UNDER_WAY: u64 = (1 << 32) - 1;
/// A bit in a member's first word: the process in the word is emptying the slot.
const EMPTIES: u64 = 1 << 63;
/// Value of a limit by command: no limit, regardless of the members' own.
const NO_LIMIT: u64 = u64::MAX;

/// Why a file cannot be the page of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is something else, or of another version.
    NotAGroup,
    /// Its pids are of another pid namespace (a container): whether they are alive cannot be
    /// determined.
    OtherNamespace,
}

/// A mapped page; the same from every process.
#[derive(Clone, Copy, Debug)]
pub struct GroupPage<'m> {
    words: &'m [AtomicU64; GROUP_WORDS],
}

/// A device of the group, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDevice {
    pub uuid: [u8; 16],
    pub ordinal: u8,
    pub total_bytes: u64,
    pub limit: Option<u64>,
    /// Of all members.
    pub counted: u64,
}

impl<'m> GroupPage<'m> {
    /// Opens a page for the processes of a pid namespace. A fresh page (all zeros) gets the magic number and
    /// this namespace.
    pub fn open(
        words: &'m [AtomicU64; GROUP_WORDS],
        namespace: u64,
    ) -> Result<GroupPage<'m>, Unusable> {
        if first(&words[0], MAGIC) != MAGIC {
            return Err(Unusable::NotAGroup);
        }
        match first(&words[1], namespace) == namespace {
            true => Ok(GroupPage { words }),
            false => Err(Unusable::OtherNamespace),
        }
    }

    /// The time of its creation by the first member's clock; set once.
    pub fn made(&self, now: u64) -> u64 {
        first(&self.words[3], now)
    }

    /// Opens a copy of a page, for reading.
    pub fn look(words: &'m [AtomicU64; GROUP_WORDS]) -> Option<GroupPage<'m>> {
        (words[0].load(SeqCst) == MAGIC).then_some(GroupPage { words })
    }

    fn who(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[MEMBERS_AT + 2 * slot]
    }

    fn image(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[MEMBERS_AT + 2 * slot + 1]
    }

    /// The bytes that a member counts on a device.
    pub fn count(&self, slot: usize, device: usize) -> &'m AtomicU64 {
        &self.words[COUNTS_AT + 2 * (device * GROUP_MEMBERS + slot)]
    }

    fn asks(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[ASKS_AT + slot]
    }

    /// Called before a request, whose bytes may be added to the member's count and subtracted again.
    pub fn begin_ask(&self, slot: usize) {
        self.asks(slot).fetch_add(ASK, SeqCst);
    }

    pub fn end_ask(&self, slot: usize) {
        self.asks(slot).fetch_sub(1, SeqCst);
    }

    /// The sum of the counts of members without a request in flight, which is certain. The caller, in
    /// `slot`, has one request and has subtracted its bytes. `None`: counts changed meanwhile.
    pub fn settled(&self, slot: usize, device: usize) -> Option<u64> {
        let pass = || {
            let members = self.slots().map(|member| {
                let asks = self.asks(member).load(SeqCst);
                let count = self.count(member, device).load(SeqCst);
                let own = u64::from(member == slot);
                // The requests of all: one that begins between the two passes must show.
                if asks & UNDER_WAY == own { (asks, count) } else { (asks, 0) }
            });
            members.fold((0u64, 0u64), |(asks, sum), (more, count)| {
                (asks.wrapping_add(more), sum.saturating_add(count))
            })
        };
        let (before, sum) = pass();
        let (after, _) = pass();
        (before == after).then_some(sum)
    }

    fn brought(&self, slot: usize, device: usize) -> &'m AtomicU64 {
        &self.words[COUNTS_AT + 2 * (device * GROUP_MEMBERS + slot) + 1]
    }

    fn device_word(&self, device: usize, word: usize) -> &'m AtomicU64 {
        &self.words[DEVICES_AT + DEVICE_WORDS * device + word]
    }

    /// Devices that members have used: entries are taken in order.
    fn known(&self) -> impl Iterator<Item = usize> {
        (0..GROUP_DEVICES).take_while(|device| self.device_word(*device, 0).load(SeqCst) != 0)
    }

    fn slots(&self) -> std::ops::Range<usize> {
        0..(self.words[2].load(SeqCst) as usize).min(GROUP_MEMBERS)
    }

    /// Takes a slot for this process. `None`: all are taken by living ones.
    pub fn join(&self, me: Member, alive: impl Fn(Member) -> bool) -> Option<usize> {
        // A slot that the program before an exec of this process left, possibly half emptied.
        let mine = |slot: &usize| self.who(*slot).load(SeqCst) & !EMPTIES == me.to_word();
        self.slots().filter(mine).for_each(|slot| self.empty(slot));
        self.take_out_dead(me, &alive);
        self.forget_last_run();
        let slot = self.free_slot(me).or_else(|| {
            self.take_out_dead(me, &alive);
            self.free_slot(me)
        })?;
        self.image(slot).store(me.image, SeqCst);
        self.words[2].fetch_max(slot as u64 + 1, SeqCst);
        Some(slot)
    }

    /// Clears limits that were set by command in an earlier run whose members have all ended. It runs before this
    /// member is visible, so that later orders stay. An order that arrives meanwhile changed the word, and the
    /// compare-and-swap keeps it.
    fn forget_last_run(&self) {
        for device in self.known() {
            let order = self.device_word(device, 1);
            let old = order.load(SeqCst);
            if old != 0 && self.members().next().is_none() {
                let _ = order.compare_exchange(old, 0, SeqCst, SeqCst);
            }
        }
    }

    fn free_slot(&self, me: Member) -> Option<usize> {
        (0..GROUP_MEMBERS)
            .find(|slot| self.who(*slot).compare_exchange(0, me.to_word(), SeqCst, SeqCst).is_ok())
    }

    fn empty(&self, slot: usize) {
        self.image(slot).store(0, SeqCst);
        self.asks(slot).store(0, SeqCst);
        // A device without a key has no counts yet.
        for device in self.known() {
            self.count(slot, device).store(0, SeqCst);
            self.brought(slot, device).store(0, SeqCst);
        }
        self.who(slot).store(0, SeqCst);
    }

    /// Removes members whose process has exited. True: there was one.
    pub fn take_out_dead(&self, me: Member, alive: impl Fn(Member) -> bool) -> bool {
        let mut any = false;
        for slot in self.slots() {
            let who = self.who(slot).load(SeqCst);
            // A process that is emptying a slot has no program stored in it.
            let image = if who & EMPTIES == 0 { self.image(slot).load(SeqCst) } else { 0 };
            let member = Member::from_words(who & !EMPTIES, image);
            if who == 0 || who & !EMPTIES == me.to_word() || alive(member) {
                continue;
            }
            let marked = me.to_word() | EMPTIES;
            if self.who(slot).compare_exchange(who, marked, SeqCst, SeqCst).is_ok() {
                self.empty(slot);
                any = true;
            }
        }
        any
    }

    /// The members, including those that have exited and were not removed yet.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.slots().filter_map(move |slot| {
            let who = self.who(slot).load(SeqCst);
            let member = Member::from_words(who, self.image(slot).load(SeqCst));
            (who != 0 && who & EMPTIES == 0).then_some(member)
        })
    }

    /// The number of a device in this group. `None`: there are 128 others.
    pub fn device(&self, uuid: &[u8; 16], ordinal: u8, total_bytes: u64) -> Option<usize> {
        let [low, high] = uuid::to_words(uuid);
        let key = (low ^ high.rotate_left(29)).max(1);
        let device =
            (0..GROUP_DEVICES).find(|device| first(self.device_word(*device, 0), key) == key)?;
        for (word, value) in [(2, total_bytes), (3, low), (4, high)] {
            self.device_word(device, word).store(value, SeqCst);
        }
        first(self.device_word(device, 5), u64::from(ordinal) + 1);
        Some(device)
    }

    /// Stores the group's limit for the device that this member was started with.
    pub fn bring_limit(&self, slot: usize, device: usize, limit: Option<u64>) {
        self.brought(slot, device).store(limit.unwrap_or(0), SeqCst);
    }

    /// The group's limit: the one set by command, else the lowest that a member was started with.
    pub fn limit(&self, device: usize) -> Option<u64> {
        match self.device_word(device, 1).load(SeqCst) {
            NO_LIMIT => None,
            0 => {
                let brought = self.slots().map(|slot| self.brought(slot, device).load(SeqCst));
                brought.filter(|limit| *limit != 0).min()
            }
            limit => Some(limit),
        }
    }

    /// The sum of all members' counts on the device.
    pub fn sum(&self, device: usize) -> u64 {
        let counts = self.slots().map(|slot| self.count(slot, device).load(SeqCst));
        counts.fold(0, u64::saturating_add)
    }

    /// The devices, with their numbers in this group.
    pub fn devices(&self) -> impl Iterator<Item = (usize, GroupDevice)> {
        self.known().map(move |device| {
            let word = |at| self.device_word(device, at).load(SeqCst);
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&word(3).to_le_bytes());
            uuid[8..].copy_from_slice(&word(4).to_le_bytes());
            let found = GroupDevice {
                uuid,
                ordinal: word(5).saturating_sub(1) as u8,
                total_bytes: word(2),
                limit: self.limit(device),
                counted: self.sum(device),
            };
            (device, found)
        })
    }
}

/// Whether these are the first words of the page of the group created at `made`, in the layout of
/// another version. The last digit of word 0 differs between versions; word 3 has one meaning in all.
pub fn is_of_other_version(first: [u64; 4], made: u64) -> bool {
    let [magic, own] = [first[0], MAGIC].map(u64::to_le_bytes);
    magic[..7] == own[..7] && magic != own && first[3] == made
}

/// Words of a group's file in version 1.
pub const EARLIER_WORDS: usize = 9216;

/// Converts such a file to a page of this version, for reading. Limits by command are at the same
/// offsets.
pub fn from_earlier(words: &[AtomicU64; EARLIER_WORDS]) -> Option<Box<[AtomicU64; GROUP_WORDS]>> {
    let fresh: Vec<AtomicU64> = (0..GROUP_WORDS).map(|_| AtomicU64::new(0)).collect();
    let page: Box<[AtomicU64; GROUP_WORDS]> = fresh.into_boxed_slice().try_into().ok()?;
    let copy = |from: usize, to: usize, count: usize| {
        for (to, from) in page[to..to + count].iter().zip(&words[from..from + count]) {
            to.store(from.load(SeqCst), SeqCst);
        }
    };
    copy(0, 0, 144);
    copy(256, MEMBERS_AT, 512);
    copy(768, ASKS_AT, 256);
    copy(1024, COUNTS_AT, 8192);
    let earlier = u64::from_le_bytes(*b"vtgroup1");
    page[0].compare_exchange(earlier, MAGIC, SeqCst, SeqCst).ok().map(|_| page)
}

/// The offset of a limit by command in the page, and the word to write there.
pub fn limit_order(device: usize, limit: Option<u64>) -> (u64, u64) {
    let at = DEVICES_AT + DEVICE_WORDS * device + 1;
    (at as u64 * 8, limit.unwrap_or(NO_LIMIT).max(1))
}

/// Sets the word if it is 0. Returns its value.
fn first(word: &AtomicU64, value: u64) -> u64 {
    word.compare_exchange(0, value, SeqCst, SeqCst).map_or_else(|seen| seen, |_| value)
}

#[cfg(all(test, not(loom)))]
mod tests;
