//! Reuses the frames of the last capture. Most captures on a thread find the outer frames unchanged.
//! Such frames are compared and not read again, so that the cost of a capture depends on the number of
//! new frames.
//!
//! ```text
//! last time   <module>  main  train  step  forward  linear        outermost first
//! now         <module>  main  train  step  loss     mean
//!             └──────── the same ────────┘ └── read anew ──┘
//! ```
//!
//! A frame is unchanged if its address, code object, instruction and owner are. Frames are reused only as a run that reaches the outermost one, since a function may
//! be called again from another line, with its frame at the same address. Each frame is compared at its
//! last address, so that loads do not depend on each other.
//!
//! As long as no code object was freed ([`freed_codes`]), one is known by its address. After that a number mostly tells that it
//! is the one it was: from CPython 3.12 on its version number, before that the number of frees at its address. Its contents are
//! compared only if there is none.

use super::layout::{Chain, ELEVEN, Layout, Places, TEN, TWELVE};
use super::memory::{Memory, Plain};
use super::walk::{OWNED_BY_C, has_begun};
use super::{code, freed_codes};
use crate::capture::fingerprint::mix;
use crate::runtime::rare::rare;
use std::sync::atomic::Ordering;

/// Most frames of a stack that is cached; a deeper stack is walked each time.
pub const MOST: usize = 192;

/// The fields of a frame that are compared.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct CachedFrame {
    frame: usize,
    /// The frame's word for its code object; from 3.14 on it has tag bits.
    code: usize,
    instruction: usize,
    owner: u8,
    kind: CachedKind,
    /// Runs a function.
    runs: bool,
}

/// A number that changes when the code object of a frame is freed.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    /// Its address, or that of [`NO_NUMBER`].
    at: usize,
    /// [`UNSURE`] where [`FrameReader::surely_same`] cannot decide.
    value: u32,
}

static NO_NUMBER: u32 = 0;
const UNSURE: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum CachedKind {
    /// Marks the start of an interpreter loop.
    #[default]
    Marker,
    /// Runs no Python code.
    Other,
    Code,
}

/// The sum of a frame and all outer ones.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    fingerprint: u64,
    /// Frames that run a function.
    running: u32,
    /// Frames whose word for a code object is none.
    others: u32,
}

pub struct FrameCache {
    len: usize,
    /// How many code objects were freed when all frames were read or compared; 0: the numbers are compared.
    freed: u64,
    /// Outermost first.
    seen: [CachedFrame; MOST],
    sums: [Sum; MOST],
    /// Of each frame's code object, in the order of `seen`.
    codes: [Code; MOST],
    /// The new frames of the current walk, innermost first.
    fresh: [(CachedFrame, Code); MOST],
    identities_of_codes: Identities,
}

/// What tells that a code object is the one it was.
#[derive(Clone, Copy, Debug, Default)]
struct Code {
    number: Number,
    identity: u64,
}

/// Identities of code objects that were read lately.
struct Identities([KnownCode; 256]);

#[derive(Clone, Copy, Debug, Default)]
struct KnownCode {
    code: usize,
    identity: u64,
    /// The number of frees at its address; 0: there is no known code here.
    number: u32,
}

impl Identities {
    /// `number`: of frees at its address; 0: they are not counted.
    #[inline(always)]
    fn of(&mut self, layout: &Layout, code: usize, number: u32) -> Option<u64> {
        let known = &mut self.0[(code >> 4 ^ code >> 12) % 256];
        if number != 0 && known.code == code && known.number == number {
            return Some(known.identity);
        }
        let identity = code::identity(&Plain, layout, code, &mut (0, 0))?;
        if number != 0 {
            *known = KnownCode { code, identity, number };
        }
        Some(identity)
    }
}

/// A stack as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Equal for equal stacks, and for no others.
    pub fingerprint: u64,
    /// Functions on it.
    pub frames: usize,
}

/// How many of the remaining cached frames, from the innermost on, are searched.
const NEAR: usize = 24;
/// Frames within this distance lie on one stack: Python's, or the C stack with the markers.
const ONE_STACK: usize = 1 << 16;

impl FrameCache {
    /// `None`: the stack must be walked. `most`: frames that are kept of a stack; deeper ones are
    /// walked. Not for free-threaded builds: there an instruction's address does not tell its offset, since the copy of the
    /// bytecode that it stands in may be freed, and another one made at its place.
    #[inline]
    pub fn fingerprint(
        &mut self,
        layout: &Layout,
        code_type: usize,
        thread: usize,
        most: usize,
    ) -> Option<Fingerprint> {
        let mut frame = Plain.word(thread + layout.first)?;
        if let Some((current, _)) = layout.cframe {
            frame = Plain.word(frame + current)?;
        }
        let freed = freed_codes::all();
        let seen = &self.seen[..self.len.min(MOST)];
        if freed == self.freed
            && freed != 0
            && seen.len() <= most
            && let Some(innermost) = seen.last()
            && innermost.frame == frame
            && surely_same(layout, seen) == 0
        {
            return Some(self.sums[seen.len() - 1].of_all());
        }
        self.changed(layout, code_type, frame, most, freed)
    }

    /// The same for a stack that is not, or not surely, that of the last capture.
    #[inline(never)]
    fn changed(
        &mut self,
        layout: &Layout,
        code_type: usize,
        mut frame: usize,
        most: usize,
        freed: u64,
    ) -> Option<Fingerprint> {
        let is_counted = freed == self.freed && freed != 0;
        let FrameCache { seen, len, sums, codes, fresh: fresh_frames, identities_of_codes, .. } =
            self;
        let mut look =
            FrameReader { layout, code_type, is_counted, identities: identities_of_codes };
        let most = most.min(MOST);
        let mut fresh = 0;
        let mut left = *len;
        loop {
            if frame == 0 {
                left = 0;
                break;
            }
            if let Some(found) = look.find(&seen[..left], frame) {
                let Run { down_to, next } = look.run((seen, codes), found, frame)?;
                if down_to == 0 && next == 0 {
                    left = found + 1;
                    break;
                }
                // The frames compared so far are called by one that has changed.
                for at in (down_to..=found).rev() {
                    *fresh_frames.get_mut(fresh)? = (seen[at], codes[at]);
                    fresh += 1;
                }
                frame = next;
                left = down_to.saturating_sub(1);
                if frame == 0 {
                    left = 0;
                    break;
                }
            }
            let (read, code, previous) = look.read(frame)?;
            *fresh_frames.get_mut(fresh)? = (read, code);
            fresh += 1;
            frame = previous;
        }
        if left + fresh > most {
            *len = left;
            return None;
        }
        let mut sum = match left {
            0 => Sum::default(),
            _ => sums[left - 1],
        };
        for (read, code) in fresh_frames[..fresh].iter().rev() {
            sum.fingerprint = mix(sum.fingerprint, read.own_print(code.identity));
            sum.running += u32::from(read.runs);
            sum.others += u32::from(read.kind == CachedKind::Other);
            (seen[left], codes[left], sums[left]) = (*read, *code, sum);
            left += 1;
        }
        self.len = left;
        // What is no code object now may become one without a free that is counted.
        self.freed = if sum.others == 0 { freed } else { 0 };
        Some(sum.of_all())
    }
}

impl Sum {
    #[inline(always)]
    fn of_all(&self) -> Fingerprint {
        Fingerprint { fingerprint: self.fingerprint, frames: self.running as usize }
    }
}

struct Run {
    /// Index of the outermost unchanged frame; one more than the start of the search if there is none.
    down_to: usize,
    /// The next outer frame; 0: there is none.
    next: usize,
}

impl CachedFrame {
    #[inline(always)]
    fn own_print(&self, identity: u64) -> u64 {
        if self.kind == CachedKind::Marker {
            return u64::from(self.owner) << 56;
        }
        (identity ^ self.code as u64).rotate_left(9)
            ^ self.instruction as u64
            ^ u64::from(self.owner) << 56
    }
}

impl Number {
    /// # Safety
    /// The frame has the cached frame's code object.
    #[inline(always)]
    unsafe fn is_unchanged(&self) -> bool {
        // SAFETY: a field of that code object, which is alive since the frame holds a reference; or a variable of ours. Other
        // threads write to it when they free other code objects.
        unsafe { (self.at as *const u32).read_volatile() == self.value }
    }
}

/// Compares these frames from the innermost on, which is at its old address, and returns how many remain after those that
/// have the same code object, instruction, owner and outer frame. Each is read at its cached address, so that no load
/// depends on the one before.
#[inline(always)]
fn surely_same(layout: &Layout, seen: &[CachedFrame]) -> usize {
    // Offsets that the compiler knows make the loop a third shorter.
    macro_rules! known {
        ($($layout:expr),*) => {$(
            if layout.places() == $layout.places() {
                return surely_same_at(seen, const { $layout.places() });
            }
        )*};
    }
    known!(TWELVE, ELEVEN, TEN);
    surely_same_at(seen, layout.places())
}

#[inline(always)]
fn surely_same_at(seen: &[CachedFrame], places: Places) -> usize {
    let mut left = seen;
    while let [.., outer, one] = left {
        // SAFETY: it is the innermost, or the link of an unchanged one.
        if !unsafe { one.is_same(outer.frame, places) } {
            rare();
            return left.len();
        }
        left = &left[..left.len() - 1];
    }
    match left {
        // SAFETY: the same.
        [outermost] => usize::from(!unsafe { outermost.is_same(0, places) }),
        _ => 0,
    }
}

impl CachedFrame {
    /// # Safety
    /// A frame of this thread's is at its address.
    #[inline(always)]
    unsafe fn is_same(&self, outer: usize, places: Places) -> bool {
        let Places { code, previous, instruction, instruction_bits, owner, owner_bits } = places;
        // SAFETY: this thread's frames can be read.
        let (word, byte) = unsafe {
            let word = |offset: usize| ((self.frame + offset) as *const usize).read_unaligned();
            ([word(code), word(previous), word(instruction)], *((self.frame + owner) as *const u8))
        };
        word[0] == self.code
            && word[1] == outer
            && (word[2] ^ self.instruction) & instruction_bits == 0
            && (byte ^ self.owner) & owner_bits == 0
    }
}

struct FrameReader<'a> {
    layout: &'a Layout,
    code_type: usize,
    /// No code object was freed since the last capture.
    is_counted: bool,
    identities: &'a mut Identities,
}

impl FrameReader<'_> {
    /// The run of unchanged frames from the one at `found` outwards. `seen`: the cached frames, and their code objects.
    #[inline(always)]
    fn run(
        &self,
        (seen, codes): (&[CachedFrame], &[Code]),
        found: usize,
        frame: usize,
    ) -> Option<Run> {
        let (mut count, mut frame) = (found + 1, frame);
        loop {
            // Mostly all.
            count = self.surely_same(&seen[..count], &codes[..count]);
            let Some(at) = count.checked_sub(1) else { return Some(Run { down_to: 0, next: 0 }) };
            let one = &seen[at];
            if at < found {
                // The inner frame is unchanged, including its link to this one.
                frame = one.frame;
            }
            if !self.same(one, &codes[at])? {
                return Some(Run { down_to: count, next: frame });
            }
            frame = self.previous(frame)?;
            if at == 0 || seen[at - 1].frame != frame {
                return Some(Run { down_to: at, next: frame });
            }
            count = at;
        }
    }

    #[inline(always)]
    fn previous(&self, frame: usize) -> Option<usize> {
        Plain.word(frame + self.layout.previous)
    }

    #[inline(always)]
    fn owner(&self, frame: usize) -> Option<u8> {
        match self.layout.chain {
            Chain::Objects => Some(0),
            _ => Plain.byte(frame + self.layout.owner),
        }
    }

    /// Whether a frame with this owner marks the start of an interpreter loop.
    #[inline(always)]
    fn is_marker(&self, owner: u8) -> bool {
        self.layout.chain == Chain::Markers && owner >= OWNED_BY_C
    }

    /// The frame's last instruction: an offset in frame objects (up to 3.10), otherwise an address.
    #[inline(always)]
    fn instruction(&self, frame: usize) -> Option<usize> {
        match self.layout.chain {
            Chain::Objects => Plain.int(frame + self.layout.instruction).map(|at| at as usize),
            _ => Plain.word(frame + self.layout.instruction),
        }
    }

    /// The code object of a frame's word; the inner `None`: it is no code object.
    #[inline(always)]
    fn code(&self, word: usize) -> Option<Option<usize>> {
        let Some(code) = self.layout.object(word) else { return Some(None) };
        Some(
            (Plain.word(code + self.layout.objects.object_type)? == self.code_type).then_some(code),
        )
    }

    #[inline(always)]
    fn version(&self, code: usize) -> Option<u32> {
        match self.layout.version {
            0 => Some(0),
            at => Plain.int(code + at).map(|version| version as u32),
        }
    }

    /// Finds the frame among these, if it is one of the innermost. A frame that is not found is read
    /// again.
    #[inline(always)]
    fn find(&self, seen: &[CachedFrame], frame: usize) -> Option<usize> {
        for at in (seen.len().saturating_sub(NEAR)..seen.len()).rev() {
            let one = &seen[at];
            let above = frame.wrapping_sub(one.frame);
            if above == 0 {
                return Some(at);
            }
            // Inner frames lie at higher addresses on Python's stack, and at lower ones on the C stack.
            let upon = if one.kind == CachedKind::Marker { above.wrapping_neg() } else { above };
            if upon < ONE_STACK && self.layout.chain != Chain::Objects {
                return None;
            }
        }
        None
    }

    /// As [`surely_same`], and returns how many remain after those that are certainly unchanged.
    #[inline(always)]
    fn surely_same(&self, seen: &[CachedFrame], codes: &[Code]) -> usize {
        let from = surely_same(self.layout, seen);
        if self.is_counted {
            return from;
        }
        // SAFETY: they have.
        let changed = codes[from..].iter().rposition(|code| unsafe { !code.number.is_unchanged() });
        changed.map_or(from, |at| from + at + 1)
    }

    /// Whether the frame at a cached address is still the cached one.
    #[inline(always)]
    fn same(&self, seen: &CachedFrame, known: &Code) -> Option<bool> {
        let frame = seen.frame;
        if self.owner(frame)? != seen.owner {
            return Some(false);
        }
        if seen.kind == CachedKind::Marker {
            return Some(true);
        }
        let word = Plain.word(frame + self.layout.code)?;
        if word != seen.code || self.instruction(frame)? != seen.instruction {
            return Some(false);
        }
        if known.number.at != &raw const NO_NUMBER as usize {
            // SAFETY: it has.
            return Some(unsafe { known.number.is_unchanged() });
        }
        let Some(code) = self.code(word)? else { return Some(seen.kind == CachedKind::Other) };
        if seen.kind != CachedKind::Code {
            return Some(false);
        }
        Some(code::identity(&Plain, self.layout, code, &mut (0, 0))? == known.identity)
    }

    /// Reads a frame: its fields, what tells its code object, and the next outer frame.
    #[inline(always)]
    fn read(&mut self, frame: usize) -> Option<(CachedFrame, Code, usize)> {
        let owner = self.owner(frame)?;
        let (code_word, instruction) =
            (Plain.word(frame + self.layout.code)?, self.instruction(frame)?);
        let mut seen =
            CachedFrame { frame, owner, code: code_word, instruction, ..CachedFrame::default() };
        let number = Number { at: &raw const NO_NUMBER as usize, value: UNSURE };
        let mut known = Code { number, identity: 0 };
        if self.is_marker(owner) {
            // Its owner alone counts.
            known.number.value = 0;
        } else {
            seen.kind = CachedKind::Other;
            if let Some(code) = self.code(seen.code)? {
                seen.kind = CachedKind::Code;
                let mut frees = 0;
                let (at, value) = match self.version(code)? {
                    0 => {
                        let at = freed_codes::number(code);
                        frees = at.load(Ordering::Acquire);
                        (at.as_ptr() as usize, frees)
                    }
                    version => (code + self.layout.version, version),
                };
                if value != 0 {
                    known.number = Number { at, value };
                }
                known.identity = self.identities.of(self.layout, code, frees)?;
                let last = seen.instruction.wrapping_sub(code + self.layout.bytecode) as isize;
                seen.runs = self.layout.chain == Chain::Objects
                    || has_begun(&Plain, self.layout, code, last, owner)?;
            }
        }
        Some((seen, known, self.previous(frame)?))
    }
}

#[cfg(test)]
mod tests;
