//! The page of a group: the limit that its processes share on each device, and the bytes that each
//! process has allocated. It is a System V shared memory segment that all members attach. It has no lock and
//! stores no total.
//!
//! ```text
//! word     0  magic "vtgroup4"           1  inode of the pid namespace of all pids in the page
//!          2  member slots ever used     3  turn among the pages of one name (0 = not drawn yet)
//!          4  hash of the group's name   5..13  the name
//!   16..1040  128 devices of 8 words: key (made from the UUID; 0 = free), limit by command
//!             (0 = none given), total bytes, UUID (2), ordinal as its first member saw it
//! 1040..1552  256 members of 2 words: pid and segment (0 = free slot), when the segment was made
//! 1552..1808  for each member: requests begun (high half), requests in flight (low half)
//! 2048..67584 for each device, for each member: bytes counted, limit it was started with (0 = none)
//! ```
//!
//! Processes find the page among the attached segments of their user, by its length and its name. Who finds none makes
//! one, and then draws a turn: one more than the highest that it sees. Of pages that are made at once the one with the
//! lowest turn holds, and of equal turns the one with the lowest segment id, once all pages of the name have a turn. So
//! there is one page (as in Lamport's bakery algorithm), with no lock and no file.
//!
//! A member adds to its own count, then sums all counts; if the sum is over the limit it subtracts its
//! bytes again. Of concurrent requests, the last one to add sees all others, so the granted bytes never
//! exceed the limit. The sum may include a request that is subtracted later. The member therefore retries,
//! unless the counts of the members without a request in flight already leave too little. A killed member leaves its
//! counts behind. A refused member first removes members that are dead for certain ([`Life`]): it stores its own
//! id with bit 63 in the slot, empties the slot, and frees it. If it is killed meanwhile, it is removed
//! in the same way. A free slot is all zeros.
//!
//! Length, words 0 and 4 have one meaning in all versions: a group of another version is recognised.

use super::group_layout::{COUNTS_AT, DEVICE_WORDS, DEVICES_AT, MEMBERS_AT, NAME, REQUESTS_AT};
pub use super::group_layout::{GROUP_DEVICES, GROUP_MEMBERS, GROUP_WORDS};
use super::member::Member;
use crate::atomics::{AtomicU64, Ordering::SeqCst};
use crate::proc::Life;
use crate::uuid;

/// Length of the page's segment in bytes.
pub const GROUP_BYTES: usize = GROUP_WORDS * 8;
const MAGIC: u64 = u64::from_le_bytes(*b"vtgroup4");
/// Added to a member's request word when a request begins: one more begun, and one more in flight.
const REQUEST: u64 = 1 << 32 | 1;
/// The bits of a request word that count the requests in flight.
const IN_FLIGHT: u64 = (1 << 32) - 1;
/// A bit in a member's first word: the process whose id is in the word is emptying the slot.
const EMPTYING: u64 = 1 << 63;
/// Value of a limit by command: no limit, whatever limits the members were started with.
const NO_LIMIT: u64 = u64::MAX;

/// An attached page. All members share the same memory.
#[derive(Clone, Copy, Debug)]
pub struct GroupPage<'m> {
    words: &'m [AtomicU64; GROUP_WORDS],
}

/// The figures of one device of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDevice {
    pub uuid: [u8; 16],
    /// CUDA ordinal, as the first member that used the device sees it.
    pub ordinal: u8,
    pub total_bytes: u64,
    /// Bytes that the members may allocate together. `None`: no limit.
    pub limit: Option<u64>,
    /// Bytes that all members have counted.
    pub counted: u64,
}

impl<'m> GroupPage<'m> {
    /// Makes a page, of words that are all zeros, for the group of this name. `namespace`: its processes' pid namespace
    /// (0: not known).
    pub fn make(words: &'m [AtomicU64; GROUP_WORDS], name: &str, namespace: u64) -> GroupPage<'m> {
        words[1].store(namespace, SeqCst);
        words[4].store(hash(name), SeqCst);
        for (word, bytes) in words[NAME].iter().zip(name.as_bytes().chunks(8)) {
            let mut text = [0; 8];
            text[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(text), SeqCst);
        }
        // Last: from here on others see it.
        words[0].store(MAGIC, SeqCst);
        GroupPage { words }
    }

    /// Whether the page's pids are those of this namespace (0: not known).
    pub fn is_of_namespace(&self, namespace: u64) -> bool {
        namespace == 0 || set_once(&self.words[1], namespace) == namespace
    }

    /// The name of the group.
    pub fn name(&self) -> String {
        let words = self.words[NAME].iter();
        let bytes: Vec<u8> = words.flat_map(|word| word.load(SeqCst).to_le_bytes()).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').into()
    }

    /// Its turn among the pages of its name; 0 = not drawn yet.
    pub fn turn(&self) -> u64 {
        self.words[3].load(SeqCst)
    }

    /// Draws its turn after this one.
    pub fn draw_turn(&self, after: u64) {
        self.words[3].store(after.saturating_add(1), SeqCst);
    }

    /// Opens a page that exists. `None`: not a group page of this version.
    pub fn look(words: &'m [AtomicU64; GROUP_WORDS]) -> Option<GroupPage<'m>> {
        (words[0].load(SeqCst) == MAGIC).then_some(GroupPage { words })
    }

    /// Pid and segment of the member in this slot ([`Member::to_word`]), perhaps with [`EMPTYING`]. 0 = free.
    fn who(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[MEMBERS_AT + 2 * slot]
    }

    /// [`Member::made`] of the member in this slot.
    fn segment_made(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[MEMBERS_AT + 2 * slot + 1]
    }

    /// The word with the bytes that a member counts on a device.
    pub fn count(&self, slot: usize, device: usize) -> &'m AtomicU64 {
        &self.words[COUNTS_AT + 2 * (device * GROUP_MEMBERS + slot)]
    }

    /// Requests begun (high half) and in flight (low half) of the member in this slot.
    fn requests(&self, slot: usize) -> &'m AtomicU64 {
        &self.words[REQUESTS_AT + slot]
    }

    /// Called before a request adds its bytes to the member's count: they may be subtracted again.
    pub fn begin_request(&self, slot: usize) {
        self.requests(slot).fetch_add(REQUEST, SeqCst);
    }

    /// Called when the member's count has its final value for the request.
    pub fn end_request(&self, slot: usize) {
        self.requests(slot).fetch_sub(1, SeqCst);
    }

    /// The sum of the counts of members without a request in flight: bytes that are allocated for certain. The
    /// caller is the member in `slot`; it has one request in flight, whose bytes it has subtracted. `None`: a
    /// request began or ended during the call.
    pub fn settled(&self, slot: usize, device: usize) -> Option<u64> {
        let pass = || {
            let members = self.slots().map(|member| {
                let requests = self.requests(member).load(SeqCst);
                let count = self.count(member, device).load(SeqCst);
                let own = u64::from(member == slot);
                // Includes the begun requests of every member: one that begins between the passes changes the sum.
                if requests & IN_FLIGHT == own { (requests, count) } else { (requests, 0) }
            });
            members.fold((0u64, 0u64), |(requests, sum), (more, count)| {
                (requests.wrapping_add(more), sum.saturating_add(count))
            })
        };
        let (before, sum) = pass();
        let (after, _) = pass();
        (before == after).then_some(sum)
    }

    /// The limit that the member in this slot was started with, in bytes. 0 = none.
    fn member_limit(&self, slot: usize, device: usize) -> &'m AtomicU64 {
        &self.words[COUNTS_AT + 2 * (device * GROUP_MEMBERS + slot) + 1]
    }

    fn device_word(&self, device: usize, word: usize) -> &'m AtomicU64 {
        &self.words[DEVICES_AT + DEVICE_WORDS * device + word]
    }

    /// Numbers of the devices that members have used. They are assigned in order.
    fn known(&self) -> impl Iterator<Item = usize> {
        (0..GROUP_DEVICES).take_while(|device| self.device_word(*device, 0).load(SeqCst) != 0)
    }

    /// The member slots that were ever used.
    fn slots(&self) -> std::ops::Range<usize> {
        0..(self.words[2].load(SeqCst) as usize).min(GROUP_MEMBERS)
    }

    /// Takes a slot for this process. `None`: there is no free one.
    pub fn join(&self, me: Member, life: impl Fn(Member) -> Life) -> Option<usize> {
        self.remove_dead_members(me, &life);
        self.clear_old_orders();
        let slot = self.free_slot(me).or_else(|| {
            self.remove_dead_members(me, &life);
            self.free_slot(me)
        })?;
        self.segment_made(slot).store(me.made, SeqCst);
        self.words[2].fetch_max(slot as u64 + 1, SeqCst);
        Some(slot)
    }

    /// Clears limits that were set by command in an earlier run whose members have all ended. It runs before this
    /// member is visible, so that later orders stay. An order that arrives meanwhile changed the word, and the
    /// compare-and-swap keeps it.
    fn clear_old_orders(&self) {
        for device in self.known() {
            let order = self.device_word(device, 1);
            let old = order.load(SeqCst);
            if old != 0 && self.members().next().is_none() {
                let _ = order.compare_exchange(old, 0, SeqCst, SeqCst);
            }
        }
    }

    /// Takes the first free slot. `None`: there is none.
    fn free_slot(&self, me: Member) -> Option<usize> {
        (0..GROUP_MEMBERS)
            .find(|slot| self.who(*slot).compare_exchange(0, me.to_word(), SeqCst, SeqCst).is_ok())
    }

    /// Whether the slot is still this member's.
    #[inline]
    pub fn is_member(&self, slot: usize, me: Member) -> bool {
        self.who(slot).load(SeqCst) == me.to_word()
    }

    /// Sets all words of a slot to 0, the member's id last.
    fn empty(&self, slot: usize) {
        self.segment_made(slot).store(0, SeqCst);
        self.requests(slot).store(0, SeqCst);
        // A device without a key has no counts yet.
        for device in self.known() {
            self.count(slot, device).store(0, SeqCst);
            self.member_limit(slot, device).store(0, SeqCst);
        }
        self.who(slot).store(0, SeqCst);
    }

    /// Removes the members that are dead for certain. Returns whether at least one was removed. `me`: the calling
    /// process, which must not be removed.
    pub fn remove_dead_members(&self, me: Member, mut life: impl FnMut(Member) -> Life) -> bool {
        let mut any = false;
        for slot in self.slots() {
            let who = self.who(slot).load(SeqCst);
            // A process that is emptying a slot has no time stored in it.
            let made = if who & EMPTYING == 0 { self.segment_made(slot).load(SeqCst) } else { 0 };
            let member = Member::from_words(who & !EMPTYING, made);
            if who == 0 || who & !EMPTYING == me.to_word() || life(member) != Life::Dead {
                continue;
            }
            let marked = me.to_word() | EMPTYING;
            if self.who(slot).compare_exchange(who, marked, SeqCst, SeqCst).is_ok() {
                self.empty(slot);
                any = true;
            }
        }
        any
    }

    /// The members, including those that have exited but were not removed yet.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.slots().filter_map(move |slot| {
            let who = self.who(slot).load(SeqCst);
            let member = Member::from_words(who, self.segment_made(slot).load(SeqCst));
            (who != 0 && who & EMPTYING == 0).then_some(member)
        })
    }

    /// The number of a device in this group; adds the device if it is new. `None`: the group has 128 other devices.
    pub fn device(&self, uuid: &[u8; 16], ordinal: u8, total_bytes: u64) -> Option<usize> {
        let [low, high] = uuid::to_words(uuid);
        let key = (low ^ high.rotate_left(29)).max(1);
        let device =
            (0..GROUP_DEVICES).find(|device| set_once(self.device_word(*device, 0), key) == key)?;
        for (word, value) in [(2, total_bytes), (3, low), (4, high)] {
            self.device_word(device, word).store(value, SeqCst);
        }
        set_once(self.device_word(device, 5), u64::from(ordinal) + 1);
        Some(device)
    }

    /// Stores the limit in bytes that this member was started with for the group's use of a device.
    pub fn set_member_limit(&self, slot: usize, device: usize, limit: Option<u64>) {
        self.member_limit(slot, device).store(limit.unwrap_or(0), SeqCst);
    }

    /// The group's limit in bytes: the one set by command, else the lowest that a member was started with. `None`: no
    /// limit.
    pub fn limit(&self, device: usize) -> Option<u64> {
        match self.device_word(device, 1).load(SeqCst) {
            NO_LIMIT => None,
            0 => {
                let limits = self.slots().map(|slot| self.member_limit(slot, device).load(SeqCst));
                limits.filter(|limit| *limit != 0).min()
            }
            limit => Some(limit),
        }
    }

    /// The sum of all members' counts on the device, in bytes.
    pub fn sum(&self, device: usize) -> u64 {
        let counts = self.slots().map(|slot| self.count(slot, device).load(SeqCst));
        counts.fold(0, u64::saturating_add)
    }

    /// The devices, with their numbers in this group.
    pub fn devices(&self) -> impl Iterator<Item = (usize, GroupDevice)> {
        self.known().map(move |device| {
            let word = |at| self.device_word(device, at).load(SeqCst);
            let found = GroupDevice {
                uuid: uuid::from_words([word(3), word(4)]),
                ordinal: word(5).saturating_sub(1) as u8,
                total_bytes: word(2),
                limit: self.limit(device),
                counted: self.sum(device),
            };
            (device, found)
        })
    }
}

/// Whether this is the page of the group of this name in the layout of another version: the last digit of word 0
/// differs between versions.
pub fn is_of_other_version(words: &[AtomicU64; GROUP_WORDS], name: &str) -> bool {
    let [magic, own] = [words[0].load(SeqCst), MAGIC].map(u64::to_le_bytes);
    magic[..7] == own[..7] && magic != own && words[4].load(SeqCst) == hash(name)
}

fn hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    hash | 1
}

/// How to set a limit by command: a byte offset in the page, and the word to store there.
pub fn limit_order(device: usize, limit: Option<u64>) -> (u64, u64) {
    let at = DEVICES_AT + DEVICE_WORDS * device + 1;
    (at as u64 * 8, limit.unwrap_or(NO_LIMIT).max(1))
}

/// Stores the value if the word is 0. Returns the word's value afterwards.
fn set_once(word: &AtomicU64, value: u64) -> u64 {
    word.compare_exchange(0, value, SeqCst, SeqCst).map_or_else(|seen| seen, |_| value)
}

#[cfg(all(test, not(loom)))]
mod tests;
