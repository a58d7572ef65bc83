//! The same stack again, or nearly: most captures find the outer frames where the last one on this
//! thread left them. Such frames are compared, not taken apart; a capture costs what is new.
//!
//! ```text
//! last time   <module>  main  train  step  forward  linear        outermost first
//! now         <module>  main  train  step  loss     mean
//!             └──────── the same ────────┘ └── read anew ──┘
//! ```
//!
//! A frame is the same if its address, its code object (as sure as [`code::identity`] is), its
//! instruction and its owner are; a run of frames only down to the outermost, since a function may
//! be called again from another line into a frame at the same place.

use super::code;
use super::layout::{Chain, Layout, TYPE};
use super::memory::{Memory, Plain};
use super::walk::{OWNED_BY_C, has_begun};
use crate::capture::mix;

/// Most frames of a stack that is remembered; a deeper one is walked each time.
pub const MOST: usize = 192;

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    frame: usize,
    /// The word as it is in the frame: from 3.14 on with tags.
    code: usize,
    instruction: usize,
    identity: u64,
    /// The code object's number, from 3.12 on; 0: it has none.
    version: u32,
    owner: u8,
    kind: SeenKind,
    /// Runs a function.
    runs: bool,
    /// Such frames, this one and all outer ones.
    running: u32,
    /// Of this frame and all outer ones.
    print: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SeenKind {
    /// Marks where a loop began.
    #[default]
    Marker,
    /// Runs no Python code.
    Other,
    Code,
}

pub struct Quick {
    /// Outermost first.
    seen: [Seen; MOST],
    len: usize,
    /// What is new in the walk under way, innermost first.
    fresh: [Seen; MOST],
}

/// A stack as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    /// Equal for equal stacks, and for no others.
    pub print: u64,
    /// Functions on it.
    pub frames: usize,
}

/// Where frames are searched among the last ones: so many from the innermost that are left.
const NEAR: usize = 24;

impl Quick {
    /// `None`: it cannot be told in this way. `most`: frames that are kept of a stack; a deeper one
    /// is another matter.
    #[inline]
    pub fn print(
        &mut self,
        layout: &Layout,
        code_type: usize,
        thread: usize,
        most: usize,
    ) -> Option<Print> {
        let look = Look { layout, code_type };
        let most = most.min(MOST);
        let mut frame = Plain.word(thread + layout.first)?;
        if let Some((current, _)) = layout.cframe {
            frame = Plain.word(frame + current)?;
        }
        let mut fresh = 0;
        let mut left = self.len;
        loop {
            if frame == 0 {
                left = 0;
                break;
            }
            let near = self.seen[left.saturating_sub(NEAR)..left].iter();
            if let Some(ahead) = near.rev().position(|seen| seen.frame == frame) {
                let found = left - 1 - ahead;
                let Run { down_to, next } = self.run(&look, found, frame)?;
                if down_to == 0 && next == 0 {
                    left = found + 1;
                    break;
                }
                // Those that are the same lie upon one that is not.
                for at in (down_to..=found).rev() {
                    *self.fresh.get_mut(fresh)? = self.seen[at];
                    fresh += 1;
                }
                frame = next;
                left = down_to.saturating_sub(1);
                if frame == 0 {
                    left = 0;
                    break;
                }
            }
            let (seen, previous) = look.read(frame)?;
            *self.fresh.get_mut(fresh)? = seen;
            fresh += 1;
            frame = previous;
        }
        if left + fresh > most {
            self.len = left;
            return None;
        }
        let (mut print, mut running) = match left {
            0 => (0, 0),
            _ => (self.seen[left - 1].print, self.seen[left - 1].running),
        };
        for at in (0..fresh).rev() {
            let mut seen = self.fresh[at];
            print = mix(print, seen.own_print());
            running += u32::from(seen.runs);
            (seen.print, seen.running) = (print, running);
            self.seen[left] = seen;
            left += 1;
        }
        self.len = left;
        Some(Print { print, frames: running as usize })
    }

    /// How far the frames from the one at `found` outwards are the same.
    #[inline(always)]
    fn run(&self, look: &Look<'_>, found: usize, mut frame: usize) -> Option<Run> {
        for at in (0..=found).rev() {
            let seen = &self.seen[at];
            if seen.frame != frame || !look.same(seen)? {
                return Some(Run { down_to: at + 1, next: frame });
            }
            frame = look.previous(frame)?;
        }
        Some(Run { down_to: 0, next: frame })
    }
}

struct Run {
    /// Index of the outermost of the same ones; one more than where it began: there is none.
    down_to: usize,
    /// The frame behind it; 0: there is none.
    next: usize,
}

impl Seen {
    #[inline(always)]
    fn own_print(&self) -> u64 {
        let code = self.identity ^ u64::from(self.version) << 32 ^ self.code as u64;
        code.rotate_left(9) ^ self.instruction as u64 ^ u64::from(self.owner) << 56
    }
}

struct Look<'a> {
    layout: &'a Layout,
    code_type: usize,
}

impl Look<'_> {
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

    #[inline(always)]
    fn is_marker(&self, owner: u8) -> bool {
        self.layout.chain == Chain::Markers && owner >= OWNED_BY_C
    }

    #[inline(always)]
    fn instruction(&self, frame: usize) -> Option<usize> {
        match self.layout.chain {
            Chain::Objects => Plain.int(frame + self.layout.instruction).map(|at| at as usize),
            _ => Plain.word(frame + self.layout.instruction),
        }
    }

    /// The code object behind the word of a frame; `None` in it: something else.
    #[inline(always)]
    fn code(&self, word: usize) -> Option<Option<usize>> {
        let Some(code) = self.layout.object(word) else { return Some(None) };
        Some((Plain.word(code + TYPE)? == self.code_type).then_some(code))
    }

    #[inline(always)]
    fn version(&self, code: usize) -> Option<u32> {
        match self.layout.version {
            0 => Some(0),
            at => Plain.int(code + at).map(|version| version as u32),
        }
    }

    /// Is this frame, at the address where one was seen, that one?
    #[inline(always)]
    fn same(&self, seen: &Seen) -> Option<bool> {
        let frame = seen.frame;
        if self.owner(frame)? != seen.owner {
            return Some(false);
        }
        if seen.kind == SeenKind::Marker {
            return Some(true);
        }
        let word = Plain.word(frame + self.layout.code)?;
        if word != seen.code || self.instruction(frame)? != seen.instruction {
            return Some(false);
        }
        // What runs here is an object that lives. Where it lies there was a code object with a
        // number that no other one gets: if the number is still there, so is the object.
        if seen.version != 0 {
            return Some(self.version(seen.code & !self.layout.tag())? == seen.version);
        }
        let Some(code) = self.code(word)? else { return Some(seen.kind == SeenKind::Other) };
        if seen.kind != SeenKind::Code {
            return Some(false);
        }
        Some(code::identity(&Plain, self.layout, code, &mut (0, 0))? == seen.identity)
    }

    /// A frame, and the one behind it.
    #[inline(always)]
    fn read(&self, frame: usize) -> Option<(Seen, usize)> {
        let owner = self.owner(frame)?;
        let mut seen = Seen { frame, owner, ..Seen::default() };
        if !self.is_marker(owner) {
            seen.code = Plain.word(frame + self.layout.code)?;
            seen.instruction = self.instruction(frame)?;
            seen.kind = SeenKind::Other;
            if let Some(code) = self.code(seen.code)? {
                seen.kind = SeenKind::Code;
                seen.version = self.version(code)?;
                seen.identity = code::identity(&Plain, self.layout, code, &mut (0, 0))?;
                let last = seen.instruction.wrapping_sub(code + self.layout.bytecode) as isize;
                seen.runs = self.layout.chain == Chain::Objects
                    || has_begun(&Plain, self.layout, code, last, owner)?;
            }
        }
        Some((seen, self.previous(frame)?))
    }
}

#[cfg(test)]
#[path = "quick_test.rs"]
mod tests;
