//! What is read of a frame and its code object.

use super::frame_cache::{FUNCTION, Known, OTHER};
use super::layout::{Chain, Layout};
use super::memory::{Memory, Plain};
use super::walk::{OWNED_BY_C, has_begun};
use super::{code, freed_codes};
use std::sync::atomic::Ordering;

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
    /// Reads the frame at this address.
    #[cold]
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        layout: &Layout,
        code_type: usize,
        frame: usize,
        known: &mut Known,
    ) -> Option<()> {
        let word = Plain.word(frame + layout.code)?;
        let instruction = Plain.word(frame + layout.instruction)?;
        let (instruction, owner) = match layout.chain {
            Chain::Objects => (instruction & u32::MAX as usize, 0),
            Chain::Entries | Chain::Markers => (instruction, Plain.byte(frame + layout.owner)?),
        };
        *known = Known { print: u64::from(owner) << 56, counts: 0 };
        if layout.chain == Chain::Markers && owner >= OWNED_BY_C {
            // Its owner alone counts.
            return Some(());
        }
        let mut identity = 0;
        match layout.object(word) {
            Some(code) if Plain.word(code + layout.objects.object_type)? == code_type => {
                identity = self.identity(layout, code)?;
                let last = instruction.wrapping_sub(code + layout.bytecode) as isize;
                let is_running =
                    layout.chain == Chain::Objects || has_begun(&Plain, layout, code, last, owner)?;
                known.counts = if is_running { FUNCTION } else { 0 };
            }
            _ => known.counts = OTHER,
        }
        known.print ^= (identity ^ word as u64).rotate_left(9) ^ instruction as u64;
        Some(())
    }

    fn identity(&mut self, layout: &Layout, code: usize) -> Option<u64> {
        let number = freed_codes::number(code).load(Ordering::Acquire);
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

#[cfg(test)]
impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader([KnownCode::default(); 256])
    }
}
