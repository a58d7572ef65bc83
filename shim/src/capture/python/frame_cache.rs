//! Finds the stacks of this thread that it had before. Most captures on a thread find the outer frames unchanged, and inner ones
//! that it ran lately. The former are compared with those of the last capture and not read again; of the latter a table has what
//! was read. So the cost of a capture depends on the number of changed frames.
//!
//! ```text
//! last time   <module>  main  train  step  forward  linear        outermost first
//! now         <module>  main  train  step  loss     mean
//!             └──────── the same ────────┘ └─ changed ─┘
//! ```
//!
//! A frame is unchanged if its address, code object, instruction and owner are. Frames are reused only as a run that reaches the
//! outermost one, since a function may be called again from another line, with its frame at the same address. Each frame is
//! compared at its last address, so that loads do not depend on each other.
//!
//! As long as no code object was freed ([`freed_codes`]), one is known by its address, and from 3.11 on by the address of an
//! instruction in it. After that, and where frees are not counted, [`super::frame_reader`] tells whether it is the one it was.
//!
//! The program's own work takes the place of our code and data in the first caches: the path of a repeated stack is kept to few
//! lines of both.

use super::frame_reader::{Code, FrameReader};
use super::freed_codes;
use super::layout::{ELEVEN, Layout, Places, TEN, TWELVE};
use super::memory::{Memory, Plain};
use crate::capture::fingerprint::mix;

/// Most frames of a stack that is cached; a deeper stack is walked each time.
pub const MOST: usize = 192;

/// The fields of a frame that are compared.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct CachedFrame {
    pub(super) frame: usize,
    /// The frame's word for its code object; from 3.14 on it has tag bits.
    pub(super) code: usize,
    pub(super) instruction: usize,
    pub(super) owner: u8,
    pub(super) kind: CachedKind,
    /// Runs a function.
    pub(super) runs: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CachedKind {
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
    /// How many code objects were freed when all frames were read or compared; 0: what is compared is in `codes`.
    freed: u64,
    /// Outermost first, from 1 on: the outermost is called by none, which has the address 0.
    seen: [CachedFrame; MOST + 1],
    /// In the order of `seen`.
    sums: [Sum; MOST + 1],
    /// Of each frame's code object, in the order of `seen`.
    codes: [Code; MOST + 1],
    /// The changed frames of the current capture, innermost first.
    changed: [Known; MOST],
    recent: [RecentFrame; RECENT_FRAMES],
    reader: FrameReader,
}

/// What was read of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) seen: CachedFrame,
    pub(super) code: Code,
}

/// A frame that was read lately. A line of the cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct RecentFrame {
    known: Known,
    /// How many code objects were freed when it was read; 0: none was read.
    freed: u64,
}

const RECENT_FRAMES: usize = 256;

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
        // Offsets that the compiler knows make the comparison a third shorter.
        macro_rules! known {
            ($($version:expr),*) => {$(
                if layout.places() == $version.places() {
                    return self.of(layout, const { $version.places() }, code_type, frame, most);
                }
            )*};
        }
        known!(TWELVE, ELEVEN, TEN);
        self.of(layout, layout.places(), code_type, frame, most)
    }

    #[inline(always)]
    fn of(
        &mut self,
        layout: &Layout,
        places: Places,
        code_type: usize,
        mut frame: usize,
        most: usize,
    ) -> Option<Fingerprint> {
        let freed = freed_codes::all();
        let is_counted = freed == self.freed && freed != 0;
        let (mut changed, mut left) = (0, self.len.min(MOST));
        let left = loop {
            if frame == 0 {
                break 0;
            }
            if let Some(found) = find(&self.seen[..=left], frame, places) {
                let (seen, codes) = (&self.seen[..=found], &self.codes[..=found]);
                let rest = match is_counted {
                    true => surely_same(seen, places, true),
                    false => self.reader.same(layout, code_type, places, (seen, codes))?,
                };
                if rest == 0 {
                    break found;
                }
                // These are called by one that has changed.
                for (seen, code) in seen[rest + 1..].iter().zip(&codes[rest + 1..]).rev() {
                    *self.changed.get_mut(changed)? = Known { seen: *seen, code: *code };
                    changed += 1;
                }
                left = rest - 1;
                frame = seen[rest].frame;
            }
            // SAFETY: the innermost frame of this thread's, or the one that it was called by.
            let (seen, previous) = unsafe { CachedFrame::at(frame, places) };
            let recent = &mut self.recent[seen.recent_place()];
            if freed == 0 || recent.freed != freed || !recent.known.seen.is_like(&seen) {
                recent.known = self.reader.read(layout, code_type, &seen)?;
                let is_code = recent.known.seen.kind != CachedKind::Other;
                recent.freed = if is_code { freed } else { 0 };
            }
            let change = self.changed.get_mut(changed)?;
            *change = recent.known;
            change.seen.frame = frame;
            frame = previous;
            changed += 1;
        };
        if left + changed > most.min(MOST) {
            self.len = left;
            return None;
        }
        self.len = left + changed;
        let mut sum = self.sums[left];
        for (at, Known { seen, code }) in (left + 1..).zip(self.changed[..changed].iter().rev()) {
            sum.fingerprint = mix(sum.fingerprint, code.print);
            sum.running += u32::from(seen.runs);
            sum.others += u32::from(seen.kind == CachedKind::Other);
            (self.seen[at], self.codes[at], self.sums[at]) = (*seen, *code, sum);
        }
        // What is no code object now may become one without a free that is counted.
        self.freed = if sum.others == 0 { freed } else { 0 };
        Some(Fingerprint { fingerprint: sum.fingerprint, frames: sum.running as usize })
    }
}

/// The index of the cached frame at this address, if it is one of the innermost. A frame that is not found is read.
#[inline(always)]
fn find(seen: &[CachedFrame], frame: usize, places: Places) -> Option<usize> {
    let nearest = seen.len().saturating_sub(NEAR);
    for (at, one) in seen.iter().enumerate().skip(nearest).rev() {
        let above = frame.wrapping_sub(one.frame);
        if above == 0 {
            return Some(at);
        }
        // Inner frames lie at higher addresses on Python's stack, and at lower ones on the C stack.
        let upon = if one.kind == CachedKind::Marker { above.wrapping_neg() } else { above };
        if upon < ONE_STACK && places.has_stack() {
            return None;
        }
    }
    None
}

impl CachedFrame {
    /// The fields of the frame at this address that are compared, and the address of the next outer one.
    ///
    /// # Safety
    /// A frame of this thread's is there.
    #[inline(always)]
    unsafe fn at(frame: usize, places: Places) -> (CachedFrame, usize) {
        // SAFETY: this thread's frames can be read.
        let word = |offset: usize| unsafe { ((frame + offset) as *const usize).read_unaligned() };
        // SAFETY: the same.
        let owner = unsafe { *((frame + places.owner) as *const u8) };
        let seen = CachedFrame {
            frame,
            code: word(places.code),
            instruction: word(places.instruction) & places.instruction_bits,
            owner: owner & places.owner_bits,
            ..CachedFrame::default()
        };
        (seen, word(places.previous))
    }

    /// Of the same code object, instruction and owner.
    #[inline(always)]
    fn is_like(&self, other: &CachedFrame) -> bool {
        self.code == other.code
            && self.instruction == other.instruction
            && self.owner == other.owner
    }

    #[inline(always)]
    fn recent_place(&self) -> usize {
        mix(self.code as u64, (self.instruction as u64).rotate_left(17)) as usize % RECENT_FRAMES
    }
}

/// Compares these frames from the innermost on, which is at its old address, and returns how many remain after those that
/// have the same code object, instruction, owner and outer frame. Each is read at its cached address, so that no load
/// depends on the one before. `is_counted`: no code object was freed since they were read.
#[inline(always)]
pub(super) fn surely_same(seen: &[CachedFrame], places: Places, is_counted: bool) -> usize {
    let by_instruction = is_counted && places.has_absolute_instructions();
    for (at, pair) in seen.windows(2).enumerate().rev() {
        let [outer, one] = pair else { continue };
        // SAFETY: it is the innermost, or the link of an unchanged one.
        let (now, previous) = unsafe { CachedFrame::at(one.frame, places) };
        if previous != outer.frame
            || now.instruction != one.instruction
            || now.owner != one.owner
            || !by_instruction && now.code != one.code
        {
            return at + 1;
        }
    }
    0
}

#[cfg(test)]
mod tests;
