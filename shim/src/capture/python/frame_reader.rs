//! What is read of a frame and its code object, and how a code object is known again where one may have been freed.
//!
//! A number mostly tells that it is the one it was: from CPython 3.12 on its version number, before that the number of frees at its
//! address. Its contents are compared only if there is none.

use super::frame_cache::{CachedFrame, CachedKind, Known, surely_same};
use super::layout::{Chain, Layout, Places};
use super::memory::{Memory, Plain};
use super::walk::{OWNED_BY_C, has_begun};
use super::{code, freed_codes};
use std::sync::atomic::Ordering;

/// What tells that a frame's code object is the one it was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    number: Number,
    /// Of the code object, the instruction and the owner.
    pub(super) print: u64,
}

/// A number that changes when the code object of a frame is freed.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    /// Its address, or that of [`NO_NUMBER`].
    at: usize,
    /// [`UNSURE`] where the number cannot decide.
    value: u32,
}

static NO_NUMBER: u32 = 0;
const UNSURE: u32 = 1;

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

/// Identities of code objects that were read lately.
pub(super) struct FrameReader([KnownCode; 256]);

#[derive(Clone, Copy, Debug, Default)]
struct KnownCode {
    code: usize,
    identity: u64,
    /// The number of frees at its address; 0: there is no known code here.
    number: u32,
}

impl FrameReader {
    /// As [`surely_same`], where numbers or contents must tell that a code object is the same one. `codes`: of the frames' code
    /// objects.
    #[inline(never)]
    pub(super) fn same(
        &self,
        layout: &Layout,
        code_type: usize,
        places: Places,
        (seen, codes): (&[CachedFrame], &[Code]),
    ) -> Option<usize> {
        let mut count = codes.len() - 1;
        loop {
            let rest = surely_same(&seen[..=count], places, false);
            // SAFETY: the frames from `rest` on have the code objects that they had.
            let is_changed = |code: &Code| unsafe { !code.number.is_unchanged() };
            let Some(at) = codes[rest + 1..=count].iter().rposition(is_changed) else {
                return Some(rest);
            };
            let at = rest + 1 + at;
            if !has_same_contents(layout, code_type, &seen[at], &codes[at])? {
                return Some(at);
            }
            count = at - 1;
        }
    }

    /// Reads what tells the code object of the frame with these fields.
    #[cold]
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        layout: &Layout,
        code_type: usize,
        seen: &CachedFrame,
    ) -> Option<Known> {
        let mut seen = *seen;
        let number = Number { at: &raw const NO_NUMBER as usize, value: UNSURE };
        let mut known = Code { number, print: u64::from(seen.owner) << 56 };
        if layout.chain == Chain::Markers && seen.owner >= OWNED_BY_C {
            // Its owner alone counts.
            known.number.value = 0;
            return Some(Known { seen, code: known });
        }
        seen.kind = CachedKind::Other;
        let mut identity = 0;
        if let Some(code) = code_of(layout, code_type, seen.code)? {
            seen.kind = CachedKind::Code;
            let mut frees = 0;
            let (at, value) = match version(layout, code)? {
                0 => {
                    let at = freed_codes::number(code);
                    frees = at.load(Ordering::Acquire);
                    (at.as_ptr() as usize, frees)
                }
                version => (code + layout.version, version),
            };
            if value != 0 {
                known.number = Number { at, value };
            }
            identity = self.identity(layout, code, frees)?;
            let last = seen.instruction.wrapping_sub(code + layout.bytecode) as isize;
            seen.runs = layout.chain == Chain::Objects
                || has_begun(&Plain, layout, code, last, seen.owner)?;
        }
        known.print = print(&seen, identity);
        Some(Known { seen, code: known })
    }

    /// `number`: of frees at its address; 0: they are not counted.
    fn identity(&mut self, layout: &Layout, code: usize, number: u32) -> Option<u64> {
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

fn print(seen: &CachedFrame, identity: u64) -> u64 {
    (identity ^ seen.code as u64).rotate_left(9)
        ^ seen.instruction as u64
        ^ u64::from(seen.owner) << 56
}

/// Whether a frame with the cached frame's fields, whose number has changed or does not decide, has the same code object.
#[inline(never)]
fn has_same_contents(
    layout: &Layout,
    code_type: usize,
    seen: &CachedFrame,
    known: &Code,
) -> Option<bool> {
    if known.number.at != &raw const NO_NUMBER as usize {
        return Some(false);
    }
    let Some(code) = code_of(layout, code_type, seen.code)? else {
        return Some(seen.kind == CachedKind::Other);
    };
    if seen.kind != CachedKind::Code {
        return Some(false);
    }
    Some(print(seen, code::identity(&Plain, layout, code, &mut (0, 0))?) == known.print)
}

/// The code object of a frame's word; the inner `None`: it is no code object.
#[inline(always)]
fn code_of(layout: &Layout, code_type: usize, word: usize) -> Option<Option<usize>> {
    let Some(code) = layout.object(word) else { return Some(None) };
    Some((Plain.word(code + layout.objects.object_type)? == code_type).then_some(code))
}

#[inline(always)]
fn version(layout: &Layout, code: usize) -> Option<u32> {
    match layout.version {
        0 => Some(0),
        at => Plain.int(code + at).map(|version| version as u32),
    }
}

#[cfg(test)]
impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader([KnownCode::default(); 256])
    }
}
