//! Where recorded blocks may be: a bit for each of 65,536 classes of addresses, and the number of recorded blocks of the
//! class. A bit that is 0 is certain; otherwise the ledger knows.
//!
//! The classes of 256 KiB of addresses share a cache line, which most calls of a program's step find where the one before
//! left it.

use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const CLASSES: usize = 1 << 16;

/// All zero at first.
#[repr(C, align(64))]
pub(super) struct Marks {
    bits: [AtomicU64; CLASSES / 64],
    counts: [AtomicU8; CLASSES],
}

/// A block is 512 bytes long at least. The number of its 256 KiB chooses a line, and where in the line the first block has
/// its bit: segments begin at multiples of 2 MiB. In one register: the place in the 256 KiB is above the number, and so changes
/// the upper 9 bits of the product alone, which are the place in the line. Addresses at a distance of 2 TiB share a class.
#[inline(always)]
fn class(address: u64) -> usize {
    usize::from((product(address) as u16).rotate_left(9))
}

#[inline(always)]
fn product(address: u64) -> u32 {
    ((address >> 9) as u32).rotate_right(9).wrapping_mul(0x9E37_79B1) >> 16
}

impl Marks {
    /// Whether a block at this address may be recorded. False is certain.
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    #[inline(always)]
    pub fn may_be_recorded(&self, address: u64) -> bool {
        let class = class(address);
        self.bits[class / 64].load(Relaxed) >> (class % 64) & 1 != 0
    }

    /// The same with two registers less than in the compiler's code, so that none is saved on the stack.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    pub fn may_be_recorded(&self, address: u64) -> bool {
        // SAFETY: as `class`; reads the word with the bit, which is one of these.
        unsafe {
            core::arch::asm!(
                "rol {class:x}, 9",
                "bt dword ptr [{bits}], {class:e}",
                "jc {found}",
                bits = in(reg) &raw const self.bits,
                class = inout(reg) product(address) => _,
                found = label { return true },
                options(nostack, readonly),
            );
        }
        false
    }

    /// There may be a recorded block at address 0 for good.
    pub fn add_null(&self) {
        self.set(class(0), u8::MAX);
    }

    /// A block at this address is in the ledger from now on, or no more. Once there are 255 of its class it is no more known
    /// how many there are, and the bit stays. `changing`: blocks of several devices may share the class.
    pub fn mark(&self, changing: &Lock<()>, address: u64, is_recorded: bool) {
        let class = class(address);
        let _changing = changing.lock();
        match self.counts[class].load(Relaxed) {
            u8::MAX => {}
            marks if is_recorded => self.set(class, marks + 1),
            marks => self.set(class, marks.saturating_sub(1)),
        }
    }

    fn set(&self, class: usize, marks: u8) {
        self.counts[class].store(marks, Relaxed);
        let (word, bit) = (&self.bits[class / 64], 1 << (class % 64));
        let bits = word.load(Relaxed) & !bit;
        word.store(if marks > 0 { bits | bit } else { bits }, Relaxed);
    }
}
