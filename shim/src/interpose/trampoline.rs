//! How our `dlsym`, `dlvsym`, `dlopen` and `dlmopen` stand in front of the real ones: ask, then
//! jump.

use core::ffi::c_void;

/// What a filter says, in rax and rdx.
#[repr(C)]
pub struct Verdict {
    /// Where to jump, with everything as the caller left it; 0: nowhere.
    pub jump: usize,
    /// What to answer if nowhere.
    pub answer: *mut c_void,
}

/// Body of a naked function of up to three arguments. The filter gets the three argument registers
/// and the caller's return address. When it names a place, that place is jumped to with the stack
/// and the arguments untouched, so that the real function sees the caller, not us.
macro_rules! trampoline {
    ($filter:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "mov rcx, [rsp + 24]",
            "call {filter}",
            "mov rcx, rdx",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "mov rax, rcx",
            "ret",
            ".cfi_endproc",
            filter = sym $filter,
        )
    };
}
pub(crate) use trampoline;
