//! What is read of a frame and its code object.

use super::code;
use super::frame_cache::{FUNCTION, Known, OTHER};
use super::layout::{Chain, Layout};
use super::memory::{Memory, Plain};
use super::walk::{OWNED_BY_C, has_begun};

/// Reads the frame at this address. `file`: see [`code::identity`].
#[cold]
#[inline(never)]
pub(super) fn read(
    layout: &Layout,
    code_type: usize,
    frame: usize,
    file: &mut (usize, u64),
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
            identity = code::identity(&Plain, layout, code, file)?;
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
