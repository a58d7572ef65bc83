//! Steps of earlier walks. A stack that was walked before is found by them, without a walk.
//!
//! A step depends on the registers with which it begins, on the words of the stack that it reads, on the end of the
//! stack and on the loaded libraries. An entry has the words that consecutive steps depend on, and where they
//! led. If the words are the same, the steps lead there again. Two words are read and not compared: the last
//! return address, and the saved frame pointer if no step has used it. They are the key of the next entry.
//!
//! ```text
//! entry 1   at cuMemAlloc: 12 words, the last return address is read ──▶ entry 2   at train: 9 words, ...
//!                                                                  └──▶ entry 3   at main: 9 words, ...
//! ```
//!
//! Where two stacks part in the middle of an entry, it is cut there, and each has an entry of its own for the rest. So
//! stacks share the entries of the frames that they have in common.
//!
//! Measured by `scripts/instructions.sh` with and without it: a recorded pair of calls with 20 native frames takes 4,523
//! instructions in place of 8,845, one from Python with both kinds of frames 4,808 in place of 8,257, and a block of PyTorch with
//! both 1,996 in place of 5,580. Where each stack is a new one it costs nothing: 48,676 and 49,760.
//!
//! Entries hold while no library comes or goes: see [`super::Walker`]. A step through a signal's frame is not kept, nor
//! one that read outside of the stack.

use super::rules::{CfaBase, Rule, State, UnwindStep};
use crate::capture::fingerprint::mix;
use crate::runtime::stack_pages::word_of_ended_frame;
use std::ops::Range;

/// Most words that an entry compares.
const WORDS: usize = 16;
/// Words are compared in groups of so many.
const GROUP: usize = 4;
const SETS: usize = 256;
const WAYS: usize = 4;
/// Most entries of one stack.
const TRAIL: usize = 256;

/// The stack of native frames, as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackPrint {
    print: u64,
    pub frames: usize,
    /// Outer frames are missing.
    pub cut: bool,
}

/// Odd. A print is a polynomial of this number, so that it can be put together from those of parts.
const BASE: u64 = 0xD6E8_FEB8_6659_FD93;
const POWERS: [u64; WORDS + 2] = powers();

const fn powers() -> [u64; WORDS + 2] {
    let mut powers = [1u64; WORDS + 2];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1].wrapping_mul(BASE);
        at += 1;
    }
    powers
}

#[inline(always)]
fn with(print: u64, address: usize) -> u64 {
    print.wrapping_mul(BASE).wrapping_add(mix(0, address as u64))
}

impl StackPrint {
    /// Of a stack's return addresses, from the innermost out.
    pub fn of(addresses: impl Iterator<Item = usize>, cut: bool) -> StackPrint {
        let mut all = StackPrint { cut, ..StackPrint::default() };
        for address in addresses {
            all.print = with(all.print, address);
            all.frames += 1;
        }
        all
    }

    #[inline(always)]
    pub fn fingerprint(&self, seed: u64) -> u64 {
        mix(mix(seed, self.frames as u64), self.print)
    }
}

/// Flags of a state: it and all inner ones are functions of this library.
pub const OWN: u8 = 1;
/// The address is that of the next instruction, not a return address.
pub const EXACT: u8 = 2;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
enum Then {
    /// There is another frame.
    #[default]
    GoesOn,
    Ends,
    /// Further frames are not known.
    Cut,
}

/// [`Entry::next_bp`]: the frame pointer is the one at the entry's start.
const SAME: u32 = u32::MAX;

/// Places are distances from `sp`, in bytes.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Head {
    ip: usize,
    sp: usize,
    /// Compared if `uses_bp`.
    bp: usize,
    /// The number of the walk that made it; 0: none.
    made: u64,
    /// Of its frames.
    print: u64,
    /// The end of the words that are read.
    reach: u32,
    /// Where the next state is found: its stack pointer, and the places of the other registers.
    up: u32,
    next_ip: u32,
    next_bp: u32,
    /// Which words are return addresses of frames that count.
    frame_words: u16,
    flags: u8,
    words: u8,
    steps: u8,
    frames: u8,
    then: Then,
    uses_bp: bool,
}

/// Zero bytes are an empty one.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Entry {
    head: Head,
    places: [u32; WORDS],
    values: [usize; WORDS],
}

const _: () = assert!(size_of::<Entry>() == 256);

impl Head {
    fn place(&self, address: usize) -> Option<u32> {
        let place = u32::try_from(address.checked_sub(self.sp)?).ok()?;
        (place != SAME).then_some(place)
    }

    /// Flags of the state to which it leads, whose address is `ip`.
    #[inline(always)]
    fn flags_behind(&self, ip: usize, ours: &Range<usize>) -> u8 {
        if self.flags & OWN != 0 && ours.contains(&ip.wrapping_sub(1)) { OWN } else { 0 }
    }
}

/// A return address, as it lies on the stack.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn plain(address: usize) -> usize {
    address
}

#[cfg(target_arch = "aarch64")]
use super::rules::unsigned as plain;

impl Entry {
    /// Whether the steps would be the same now.
    #[inline(always)]
    fn holds(&self, bp: usize, high: usize) -> bool {
        let head = &self.head;
        if head.uses_bp && head.bp != bp || head.sp.saturating_add(head.reach as usize) > high {
            return false;
        }
        let mut differs = 0;
        for group in 0..usize::from(head.words).div_ceil(GROUP) {
            for at in group * GROUP..(group + 1) * GROUP {
                differs |= self.word(self.places[at]) ^ self.values[at];
            }
        }
        differs == 0
    }

    #[inline(always)]
    fn word(&self, place: u32) -> usize {
        // SAFETY: between the stack pointer of a function that has not returned and the end of its stack (`holds`
        // compares `reach` with it), where all memory can be read.
        unsafe { word_of_ended_frame(self.head.sp + place as usize) }
    }

    /// The return addresses of its frames that count.
    fn addresses(&self) -> impl Iterator<Item = usize> + '_ {
        let first = (self.head.flags & OWN == 0).then_some(self.head.ip);
        let is_frame = |at: &usize| self.head.frame_words >> at & 1 != 0;
        let words = (0..WORDS).filter(is_frame).map(|at| plain(self.values[at]));
        first.into_iter().chain(words)
    }
}

/// The entries of one workspace. Zero bytes are an empty one.
pub struct WalkLog {
    entries: [Entry; SETS * WAYS],
    /// The entries of the stack that was found last, from the innermost frame out.
    trail: [u16; TRAIL],
    trail_len: usize,
    /// Its frames.
    found: usize,
}

#[inline(always)]
fn set(ip: usize, sp: usize) -> usize {
    let mixed = (ip as u64).rotate_left(32) ^ sp as u64;
    (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SETS.ilog2())) as usize * WAYS
}

impl WalkLog {
    /// The result of a walk from `start` that keeps at most `most` frames, if all of its steps were made since the
    /// walk of the number `since`. `high`: the end of this stack. `ours`: this library.
    #[inline]
    pub fn find(
        &mut self,
        start: State,
        high: usize,
        most: usize,
        since: u64,
        ours: &Range<usize>,
    ) -> Option<StackPrint> {
        let State { mut ip, mut sp, mut bp, .. } = start;
        let mut flags = OWN | EXACT;
        let mut all = StackPrint::default();
        self.trail_len = 0;
        loop {
            let at = self.get(ip, sp, flags, since)?;
            let entry = &self.entries[at];
            if !entry.holds(bp, high) {
                return None;
            }
            *self.trail.get_mut(self.trail_len)? = at as u16;
            self.trail_len += 1;
            let head = &entry.head;
            let frames = usize::from(head.frames);
            if all.frames + frames > most {
                let kept = entry.addresses().take(most - all.frames);
                let print = kept.fold(all.print, with);
                all = StackPrint { print, frames: most, cut: true };
                break;
            }
            all.print = all.print.wrapping_mul(POWERS[frames]).wrapping_add(head.print);
            all.frames += frames;
            if head.then != Then::GoesOn {
                all.cut = head.then == Then::Cut;
                break;
            }
            ip = plain(entry.word(head.next_ip));
            if head.next_bp != SAME {
                bp = entry.word(head.next_bp);
            }
            sp += head.up as usize;
            flags = head.flags_behind(ip, ours);
            if all.frames == most && flags & OWN == 0 && ip != 0 {
                all.cut = true;
                break;
            }
        }
        self.found = all.frames;
        Some(all)
    }

    /// The return addresses of the stack that was found last.
    pub fn addresses(&self) -> impl Iterator<Item = usize> + '_ {
        let entries = self.trail[..self.trail_len].iter();
        entries.flat_map(|at| self.entries[usize::from(*at)].addresses()).take(self.found)
    }

    #[inline(always)]
    fn get(&self, ip: usize, sp: usize, flags: u8, since: u64) -> Option<usize> {
        let first = set(ip, sp);
        (first..first + WAYS).find(|at| {
            let head = &self.entries[*at].head;
            (head.ip ^ ip) | (head.sp ^ sp) == 0 && head.flags == flags && head.made >= since
        })
    }

    /// Keeps an entry, in place of the one that began with the same registers, or else of the older one.
    fn put(&mut self, mut entry: Entry) {
        let words = usize::from(entry.head.words);
        if let Some(last) = words.checked_sub(1) {
            let end = words.next_multiple_of(GROUP);
            let (place, value) = (entry.places[last], entry.values[last]);
            entry.places[words..end].fill(place);
            entry.values[words..end].fill(value);
        }
        let Head { ip, sp, flags, .. } = entry.head;
        let first = set(ip, sp);
        let older = || (first..first + WAYS).min_by_key(|at| self.entries[*at].head.made);
        if let Some(at) = self.get(ip, sp, flags, 0).or_else(older) {
            self.entries[at] = entry;
        }
    }
}

/// The words that a step reads, in order.
#[derive(Default)]
pub struct Reads {
    words: [Word; 4],
    count: usize,
    /// A word lies outside of the stack.
    failed: bool,
}

#[derive(Clone, Copy, Default)]
struct Word {
    address: usize,
    value: usize,
}

impl Reads {
    #[inline(always)]
    pub fn note(&mut self, address: usize, value: Option<usize>) {
        match (value, self.words.get_mut(self.count)) {
            (Some(value), Some(place)) => {
                *place = Word { address, value };
                self.count += 1;
            }
            _ => self.failed = true,
        }
    }
}

/// One step of a walk.
pub struct Step<'a> {
    pub at: State,
    pub flags: u8,
    pub rule: &'a Rule,
    pub reads: &'a Reads,
    pub result: UnwindStep,
    /// The code at `at` is in a library.
    pub in_library: bool,
}

/// Where the frame pointer of the current state comes from.
#[derive(Clone, Copy)]
enum Origin {
    /// It is the one at the entry's start.
    Start,
    Word(Word),
    /// Either of them, and it is compared.
    Compared,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    Yes,
    /// It was the walk's last step.
    Last,
    /// It belongs to another entry.
    No,
}

/// Makes entries of a walk.
pub struct Recorder {
    is_on: bool,
    walk: u64,
    since: u64,
    /// Of the steps so far; not begun if `made` is 0.
    entry: Entry,
    /// The known entry with the same start, as long as it has the same words.
    like: Option<usize>,
    /// The return address that the last step read.
    returns: Option<Word>,
    bp: Origin,
}

impl Recorder {
    pub fn new(is_on: bool, walk: u64, since: u64) -> Recorder {
        let (entry, bp) = (Entry::default(), Origin::Start);
        Recorder { is_on, walk, since, entry, like: None, returns: None, bp }
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    pub fn step(&mut self, log: &mut WalkLog, step: &Step<'_>) {
        let can_be_kept = match step.result {
            UnwindStep::Interrupted(_) => false,
            // On aarch64 the stack pointer is not known then.
            UnwindStep::Guessed(_) if cfg!(target_arch = "aarch64") => false,
            _ => !step.reads.failed && step.rule.from != CfaBase::Signal && !step.rule.uses_link(),
        };
        let mut added = None;
        if can_be_kept {
            for _ in 0..2 {
                if self.entry.head.made == 0 {
                    self.begin(log, step);
                }
                added = self.add(log, step);
                if added != Some(Added::No) {
                    break;
                }
                self.close(log);
            }
        }
        if added != Some(Added::Yes) {
            self.close(log);
            self.is_on = false;
        }
    }

    fn begin(&mut self, log: &WalkLog, step: &Step<'_>) {
        let State { ip, sp, bp, .. } = step.at;
        let (flags, made, next_bp) = (step.flags, self.walk, SAME);
        self.entry.head = Head { ip, sp, bp, made, flags, next_bp, ..Head::default() };
        self.like = log.get(ip, sp, flags, self.since);
        (self.returns, self.bp) = (None, Origin::Start);
    }

    /// Ends the entry with the last step that was added, and keeps it if it is new.
    pub fn close(&mut self, log: &mut WalkLog) {
        let steps = self.entry.head.steps;
        match self.like {
            _ if steps == 0 => {}
            Some(like) if log.entries[like].head.steps == steps => {
                log.entries[like].head.made = self.walk;
            }
            // A known one that goes on where this walk had no more room may differ there.
            _ => log.put(self.entry),
        }
        self.entry.head.made = 0;
        self.entry.head.steps = 0;
    }

    /// Adds a step to the entry. `None`: it has a distance that an entry cannot have.
    fn add(&mut self, log: &WalkLog, step: &Step<'_>) -> Option<Added> {
        let mut head = self.entry.head;
        let like = self.like.map(|like| &log.entries[like]);
        if like.is_some_and(|like| like.head.then == Then::GoesOn && like.head.steps == head.steps)
        {
            return Some(Added::No);
        }
        let mut read = step.reads.words[..step.reads.count].iter().copied();
        let is_through_memory = step.rule.from == CfaBase::AtSp || step.rule.from == CfaBase::AtBp;
        let base = if is_through_memory { read.next() } else { None };
        let (mut returns, mut saved) = (read.next(), read.next());
        if step.rule.from == CfaBase::Guess {
            std::mem::swap(&mut returns, &mut saved);
        }
        let (next, depends_on_ip) = match step.result {
            UnwindStep::Caller(next) => (Some(next), false),
            // Its library decides whether it is one.
            UnwindStep::Guessed(next) => (Some(next), step.in_library),
            _ => (None, true),
        };
        let (saved_bp, uses_first_bp) = match self.bp {
            Origin::Word(word) if step.rule.uses_bp() => (Some(word), false),
            Origin::Start => (None, step.rule.uses_bp()),
            _ => (None, false),
        };
        if step.flags & OWN == 0 {
            head.frames += 1;
            head.print = with(head.print, step.at.ip);
            if self.returns.is_some() && usize::from(head.words) < WORDS {
                head.frame_words |= 1 << head.words;
            }
        }
        head.uses_bp |= uses_first_bp;
        let mut differs = uses_first_bp && like.is_some_and(|like| like.head.bp != head.bp);
        let mut is_full = false;
        let compared = [self.returns, saved_bp, base, returns.filter(|_| depends_on_ip)];
        for word in compared.into_iter().flatten() {
            let (at, place) = (usize::from(head.words), head.place(word.address)?);
            if at == WORDS {
                is_full = true;
                break;
            }
            (self.entry.places[at], self.entry.values[at]) = (place, word.value);
            head.words += 1;
            differs |= like.is_some_and(|like| {
                at >= usize::from(like.head.words)
                    || (like.places[at], like.values[at]) != (place, word.value)
            });
        }
        if differs {
            self.like = None;
        }
        // Where the two part the entry ends.
        if is_full || differs && head.steps > 0 {
            return Some(Added::No);
        }
        for word in &step.reads.words[..step.reads.count] {
            head.reach = head.reach.max(head.place(word.address)?.checked_add(8)?);
        }
        match next {
            Some(next) => {
                head.up = head.place(next.sp).filter(|up| *up > 0)?;
                head.next_ip = head.place(returns?.address)?;
                if let Some(saved) = saved {
                    head.next_bp = head.place(saved.address)?;
                }
            }
            None if step.result == UnwindStep::End => head.then = Then::Ends,
            None => head.then = Then::Cut,
        }
        head.steps += 1;
        self.entry.head = head;
        self.returns = returns;
        self.bp = match saved {
            Some(saved) => Origin::Word(saved),
            None if step.rule.uses_bp() => Origin::Compared,
            None => self.bp,
        };
        Some(if next.is_some() { Added::Yes } else { Added::Last })
    }
}
