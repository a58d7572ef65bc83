//! Addresses of which the compiler does not know what they are.

/// The same address, in a register.
#[inline(always)]
pub fn address(mut at: usize) -> usize {
    // SAFETY: no instruction.
    #[cfg(not(miri))]
    unsafe {
        core::arch::asm!("/* {at} */", at = inout(reg) at, options(nomem, nostack, preserves_flags, pure));
    }
    #[cfg(miri)]
    std::hint::black_box(&mut at);
    at
}
