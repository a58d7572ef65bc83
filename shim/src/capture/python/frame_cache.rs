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
//! A frame is unchanged if its address, position and caller's frame are. Frames are reused only as a run that reaches the outermost
//! one, since a function may be called again from another line, with its frame at the same address. Each frame is compared at its
//! last address, so that loads do not depend on each other.
//!
//! The position tells the code object as long as none was freed ([`super::freed_codes`]). After that, and where frees are not counted, the
//! frames are read again and their sums compared.
//!
//! The program's own work takes the place of our code and data in the first caches: the path of a repeated stack is kept to few
//! lines of both.

use super::frame_reader::read;
use super::layout::{Chain, Layout};
use super::memory::Plain;
use crate::capture::fingerprint::mix;

/// Most frames of a stack that is cached; a deeper stack is walked each time. Their indices are bytes: 0 is that of no frame.
pub const MOST: usize = PLACES - 1;
const PLACES: usize = 1 << u8::BITS;

/// A frame of the last capture.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    frame: usize,
    position: usize,
}

/// What was read of a frame; and the sum of such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Of the code object, the instruction and the owner.
    pub(super) print: u64,
    /// Frames that run a function, times [`FUNCTION`], and those that run no Python code, times [`OTHER`].
    pub(super) counts: u64,
}

pub(super) const FUNCTION: u64 = 1;
/// It may run Python code later at the same position.
pub(super) const OTHER: u64 = 1 << 32;

/// What was read lately of a frame at this position.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Recent {
    position: usize,
    /// [`super::freed_codes::all`] when it was read; even: it must be read again.
    freed: u64,
    known: Known,
}

const RECENT: usize = 512;

#[repr(C)]
pub struct FrameCache {
    len: u8,
    /// [`super::freed_codes::all`] when all frames were read or compared; even: they must be read again.
    freed: u64,
    /// The changed frames of the current capture, innermost first.
    changed: [usize; PLACES],
    /// The index of a frame in `seen`, by its address. Frames whose addresses share a place may not be found, and are read.
    indices: [u8; 256],
    /// Outermost first, from 1 on: the outermost is called by none, which has the address 0.
    seen: [Seen; PLACES],
    /// Of each frame and all outer ones.
    sums: [Known; PLACES],
    recent: [Recent; RECENT],
}

impl FrameCache {
    /// The fingerprint of this thread's stack, equal for equal stacks and for no others. `None`: the stack must be walked, or runs
    /// no function. `most`: frames that are kept of a stack; deeper ones are walked. `freed`: [`super::freed_codes::all`]. Not for free-threaded builds: there an
    /// instruction's address does not tell its offset, since the copy of the bytecode that it stands in may be freed, and another
    /// one made at its place.
    #[inline(always)]
    pub fn fingerprint(
        &mut self,
        layout: &Layout,
        code_type: usize,
        thread: usize,
        most: usize,
        freed: u64,
    ) -> Option<u64> {
        let (_, frame) = layout.first_frame(&Plain, thread)?;
        match layout.chain {
            Chain::Objects => self.of_objects(layout, code_type, frame, most, freed),
            Chain::Entries | Chain::Markers => {
                self.of::<false>(layout, code_type, frame, most, freed)
            }
        }
    }

    #[inline(never)]
    fn of_objects(
        &mut self,
        layout: &Layout,
        code_type: usize,
        frame: usize,
        most: usize,
        freed: u64,
    ) -> Option<u64> {
        self.of::<true>(layout, code_type, frame, most, freed)
    }

    #[inline(always)]
    fn of<const OBJECTS: bool>(
        &mut self,
        layout: &Layout,
        code_type: usize,
        mut frame: usize,
        most: usize,
        freed: u64,
    ) -> Option<u64> {
        let (mut changed, mut left) = (0, self.len);
        let (is_counted, mut file) = (freed & 1 != 0, (0, 0));
        loop {
            if frame == 0 {
                left = 0;
                break;
            }
            let found = self.indices[place(frame)];
            if found <= left && self.seen[usize::from(found)].frame == frame {
                let mut rest = self.unchanged::<OBJECTS>(layout, found);
                if !is_counted || freed != self.freed {
                    rest = self.unchanged_codes(layout, code_type, rest, found)?;
                }
                if rest == 0 {
                    left = found;
                    break;
                }
                // These are called by one that has changed.
                for at in (rest..found).rev() {
                    *self.changed.get_mut(changed)? = self.seen[usize::from(at) + 1].frame;
                    changed += 1;
                }
                left = rest - 1;
                frame = self.seen[usize::from(rest)].frame;
            }
            *self.changed.get_mut(changed)? = frame;
            changed += 1;
            // SAFETY: a frame of this thread's.
            frame = unsafe { word(frame + layout.previous) };
        }
        self.len = left;
        if usize::from(left) + changed > most.min(MOST) {
            return None;
        }
        let mut sum = self.sums[usize::from(left)];
        for frame in self.changed[..changed].iter().rev() {
            // SAFETY: a frame of this thread's.
            let position = unsafe { position::<OBJECTS>(*frame, layout) };
            let recent = &mut self.recent[mix(0, position as u64) as usize % RECENT];
            if recent.position != position || recent.freed != freed || !is_counted {
                recent.freed = 0;
                read(layout, code_type, *frame, &mut file, &mut recent.known)?;
                recent.position = position;
                recent.freed = if recent.known.counts < OTHER { freed } else { 0 };
            }
            left += 1;
            sum = sum.with(&recent.known);
            self.seen[usize::from(left)] = Seen { frame: *frame, position };
            self.sums[usize::from(left)] = sum;
            self.indices[place(*frame)] = left;
        }
        self.len = left;
        self.freed = if sum.counts < OTHER { freed } else { 0 };
        (sum.counts as u32 != 0).then_some(sum.print)
    }

    /// Compares frames from this one on, which is at its old address, and returns how many remain after those that have the same
    /// position and caller's frame.
    #[inline(always)]
    fn unchanged<const OBJECTS: bool>(&self, layout: &Layout, from: u8) -> u8 {
        let (mut one, mut rest) = (&self.seen[usize::from(from)], from);
        for outer in self.seen[..usize::from(from)].iter().rev() {
            // SAFETY: it is the first, or the link of an unchanged one.
            let is_here = unsafe { position::<OBJECTS>(one.frame, layout) } == one.position;
            // SAFETY: the same.
            if !is_here || unsafe { word(one.frame + layout.previous) } != outer.frame {
                break;
            }
            (one, rest) = (outer, rest - 1);
        }
        rest
    }

    /// As [`FrameCache::unchanged`], which has returned `rest`, where the position does not tell the code object.
    #[cold]
    #[inline(never)]
    fn unchanged_codes(
        &mut self,
        layout: &Layout,
        code_type: usize,
        rest: u8,
        from: u8,
    ) -> Option<u8> {
        let mut file = (0, 0);
        for at in (rest..from).rev() {
            let (outer, one) = (usize::from(at), usize::from(at) + 1);
            let mut known = Known::default();
            read(layout, code_type, self.seen[one].frame, &mut file, &mut known)?;
            if self.sums[outer].with(&known) != self.sums[one] {
                return Some(at + 1);
            }
        }
        Some(rest)
    }
}

impl Known {
    #[inline(always)]
    fn with(self, inner: &Known) -> Known {
        Known { print: mix(self.print, inner.print), counts: self.counts + inner.counts }
    }
}

#[inline(always)]
fn place(frame: usize) -> usize {
    (frame >> 5 ^ frame >> 13) % 256
}

/// # Safety
/// A word of a frame of this thread's.
#[inline(always)]
unsafe fn word(at: usize) -> usize {
    // SAFETY: this thread's frames can be read.
    unsafe { (at as *const usize).read_unaligned() }
}

/// What tells the code object, the instruction and the owner of the frame at this address, among code objects that are alive: the
/// instruction's address. An interpreter loop's own frame stands at an instruction that no function has, and a generator's
/// function gives its frame to the generator before the first instruction that counts as begun. `OBJECTS`: frames are objects,
/// which have the instruction's offset; they have no owner.
///
/// # Safety
/// A frame of this thread's is there.
#[inline(always)]
unsafe fn position<const OBJECTS: bool>(frame: usize, layout: &Layout) -> usize {
    // SAFETY: this thread's frames can be read.
    let instruction = unsafe { word(frame + layout.instruction) };
    if !OBJECTS {
        return instruction;
    }
    // SAFETY: the same.
    let code = unsafe { word(frame + layout.code) };
    // Addresses of objects have 48 bits, of which the lowest four are 0: no two pairs have equal words with offsets below a million,
    // or -1.
    code << 16 ^ instruction as u32 as usize
}

#[cfg(test)]
mod tests;
