//! What a library's tables for unwinding (.eh_frame) say of one address.

#[cfg(target_arch = "aarch64")]
use super::row_aarch64 as row;
#[cfg(target_arch = "x86_64")]
use super::row_x86_64 as row;
use super::rules::Rule;
use crate::runtime::mapped_modules::UnwindData;
use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, ParsedEhFrameHdr, Register,
    RegisterRule, UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
};

pub type Bytes = EndianSlice<'static, LittleEndian>;

/// Registers that a row of the tables names (17 in a signal's frame of x86-64, 21 that a function of
/// aarch64 keeps), and rows set aside. They are on the stack of the program's thread, so there are no
/// more than needed.
pub struct Room;

impl UnwindContextStorage<usize> for Room {
    type Rules = [(Register, RegisterRule<usize>); 22];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

pub type Row = UnwindTableRow<usize, Room>;

pub struct Tables {
    index: ParsedEhFrameHdr<Bytes>,
    frames: EhFrame<Bytes>,
    bases: BaseAddresses,
}

impl Tables {
    /// `None`: they cannot be searched.
    pub fn of(data: UnwindData) -> Option<Tables> {
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(data.index.as_ptr() as u64)
            .set_eh_frame(data.frames.as_ptr() as u64);
        let index = EhFrameHdr::new(data.index, LittleEndian).parse(&bases, 8).ok()?;
        index.table()?;
        #[allow(unused_mut)]
        let mut frames = EhFrame::new(data.frames, LittleEndian);
        // Where return addresses are signed, the tables say so in a way that is aarch64's alone.
        #[cfg(target_arch = "aarch64")]
        frames.set_vendor(gimli::Vendor::AArch64);
        Some(Tables { index, frames, bases })
    }

    /// The library must be loaded.
    #[inline(never)]
    pub fn rule(&self, code: usize) -> Rule {
        let Tables { index, frames, bases } = self;
        let entry = index.table().and_then(|table| {
            table.fde_for_address(frames, bases, code as u64, EhFrame::cie_from_offset).ok()
        });
        // Written by hand, without tables.
        let Some(entry) = entry else { return Rule::FRAME_POINTER };
        let mut context = UnwindContext::<usize, Room>::new_in();
        match entry.unwind_info_for_address(frames, bases, &mut context, code as u64) {
            Ok(row) => row::rule(row, entry.is_signal_trampoline(), frames).unwrap_or(Rule::LOST),
            Err(_) => Rule::LOST,
        }
    }
}
