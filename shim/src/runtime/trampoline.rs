//! How a function is called in place of another: a filter runs with the arguments of the call, and then the code jumps to
//! the function, which sees its caller and not this library. So are `dlsym`, `dlopen` and others interposed, and so is
//! the first call of a function made that is looked up late ([`super::late_binding`]).

use core::ffi::c_void;

/// A filter's result, in the two result registers.
#[repr(C)]
pub struct Verdict {
    /// The address to jump to, with registers and stack unchanged; 0: return `answer`.
    pub jump: usize,
    /// The result if there is no jump.
    pub answer: *mut c_void,
}

/// Body of a naked function of up to four arguments. The filter gets the first three argument registers, the caller's return
/// address, and what the code that jumped here left in eax or w9. If it returns an address, the code jumps there with stack
/// and arguments unchanged.
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
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "mov rcx, [rsp + 40]",
            "mov r8d, eax",
            "call {filter}",
            "mov r8, rdx",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
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
            "mov rax, r8",
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
            "stp x2, x3, [sp, 32]",
            "mov x3, x30",
            "mov w4, w9",
            "bl {filter}",
            "mov x16, x0",
            "mov x9, x1",
            "ldp x2, x3, [sp, 32]",
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
