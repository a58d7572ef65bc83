//! How `dlsym`, `dlvsym`, `dlopen` and `dlmopen` are interposed: call a filter, then jump to the real
//! function.

use core::ffi::c_void;

/// A filter's result, in the two result registers.
#[repr(C)]
pub struct Verdict {
    /// The address to jump to, with registers and stack unchanged; 0: return `answer`.
    pub jump: usize,
    /// The result if there is no jump.
    pub answer: *mut c_void,
}

/// Body of a naked function of up to three arguments. The filter gets the three argument registers and
/// the caller's return address. If it returns an address, the code jumps there with stack and arguments
/// unchanged, so that the real function sees its caller and not this library.
#[cfg(target_arch = "x86_64")]
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

#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($filter:path) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            // `bti c`
            "hint 34",
            "stp x29, x30, [sp, -48]!",
            ".cfi_def_cfa_offset 48",
            ".cfi_offset x29, -48",
            ".cfi_offset x30, -40",
            "mov x29, sp",
            "stp x0, x1, [sp, 16]",
            "str x2, [sp, 32]",
            "mov x3, x30",
            "bl {filter}",
            "mov x16, x0",
            "mov x9, x1",
            "ldr x2, [sp, 32]",
            "ldp x0, x1, [sp, 16]",
            "ldp x29, x30, [sp], 48",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "cbz x16, 2f",
            // By x16 a branch may enter where a call may.
            "br x16",
            "2:",
            "mov x0, x9",
            "ret",
            ".cfi_endproc",
            filter = sym $filter,
        )
    };
}
pub(crate) use trampoline;
