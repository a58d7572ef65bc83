//! Copying, filling and comparing bytes, for this library alone.
//!
//! The compiler calls `memcpy` and its like by name, and the name belongs to the process: a
//! sanitizer's runtime answers it, and would report our accesses as the program's. So these names
//! are our own, hidden from all others. No libc function may be called here.

macro_rules! hidden {
    ($name:literal $(= $also:literal)?, $($line:literal),* $(,)?) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.vramtrace_", $name, ",\"ax\",@progbits"),
            ".p2align 5",
            $(concat!(".globl ", $also), concat!(".hidden ", $also),
              concat!(".type ", $also, ", @function"), concat!($also, ":"),)?
            concat!(".globl ", $name), concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"), concat!($name, ":"),
            ".cfi_startproc",
            "endbr64",
            $($line,)*
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

// (rdi: to, rsi: from, rdx: size) -> rax: to. They may overlap: up to 128 bytes all is loaded before
// anything is stored; above, the direction is chosen.
hidden!(
    "memmove" = "memcpy",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jae 20f",
    "cmp edx, 8",
    "jae 18f",
    "cmp edx, 4",
    "jae 14f",
    "test edx, edx",
    "je 17f",
    // One to three: the first, the middle and the last.
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "mov r9, rdx",
    "shr r9, 1",
    "movzx r10d, byte ptr [rsi + r9]",
    "mov byte ptr [rdi], cl",
    "mov byte ptr [rdi + r9], r10b",
    "mov byte ptr [rdi + rdx - 1], r8b",
    "17: ret",
    "14: mov ecx, dword ptr [rsi]",
    "mov r8d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [rdi + rdx - 4], r8d",
    "ret",
    "18: mov rcx, qword ptr [rsi]",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [rdi + rdx - 8], r8",
    "ret",
    "20: cmp rdx, 32",
    "ja 21f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    "21: cmp rdx, 64",
    "ja 22f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "ret",
    "22: cmp rdx, 128",
    "ja 23f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "movups [rdi + rdx - 64], xmm4",
    "movups [rdi + rdx - 48], xmm5",
    "movups [rdi + rdx - 32], xmm6",
    "movups [rdi + rdx - 16], xmm7",
    "ret",
    // Upwards unless the target begins inside the source.
    "23: mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 26f",
    "cmp rdx, 2048",
    "ja 25f",
    // The last 32 bytes are loaded first: the loop may overwrite them.
    "movups xmm4, [rsi + rdx - 32]",
    "movups xmm5, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 32]",
    "24: movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "cmp rdi, r8",
    "jb 24b",
    "movups [r8], xmm4",
    "movups [r8 + 16], xmm5",
    "ret",
    "25: mov rcx, rdx",
    "rep movsb",
    "ret",
    // Downwards; the first 32 bytes are loaded first.
    "26: movups xmm4, [rsi]",
    "movups xmm5, [rsi + 16]",
    "27: movups xmm0, [rsi + rdx - 16]",
    "movups xmm1, [rsi + rdx - 32]",
    "movups [rdi + rdx - 16], xmm0",
    "movups [rdi + rdx - 32], xmm1",
    "sub rdx, 32",
    "cmp rdx, 32",
    "ja 27b",
    "movups [rdi], xmm4",
    "movups [rdi + 16], xmm5",
    "ret",
);

// (rdi: to, esi: byte, rdx: size) -> rax: to
hidden!(
    "memset",
    "mov rax, rdi",
    "movzx esi, sil",
    "mov rcx, 0x0101010101010101",
    "imul rsi, rcx",
    "cmp rdx, 16",
    "jae 20f",
    "cmp edx, 8",
    "jae 18f",
    "cmp edx, 4",
    "jae 14f",
    "test edx, edx",
    "je 17f",
    "mov byte ptr [rdi], sil",
    "mov byte ptr [rdi + rdx - 1], sil",
    "shr rdx, 1",
    "mov byte ptr [rdi + rdx], sil",
    "17: ret",
    "14: mov dword ptr [rdi], esi",
    "mov dword ptr [rdi + rdx - 4], esi",
    "ret",
    "18: mov qword ptr [rdi], rsi",
    "mov qword ptr [rdi + rdx - 8], rsi",
    "ret",
    "20: cmp rdx, 1024",
    "ja 25f",
    "movq xmm0, rsi",
    "punpcklqdq xmm0, xmm0",
    "lea r8, [rdi + rdx - 16]",
    "24: movups [rdi], xmm0",
    "add rdi, 16",
    "cmp rdi, r8",
    "jb 24b",
    "movups [r8], xmm0",
    "ret",
    "25: mov r8, rax",
    "mov rax, rsi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
);

// (rdi, rsi, rdx: size) -> eax: as the first bytes that differ
hidden!(
    "memcmp" = "bcmp",
    "cmp rdx, 8",
    "jb 25f",
    "24: mov rax, qword ptr [rdi]",
    "mov rcx, qword ptr [rsi]",
    "cmp rax, rcx",
    "jne 28f",
    "add rdi, 8",
    "add rsi, 8",
    "sub rdx, 8",
    "cmp rdx, 8",
    "jae 24b",
    "25: test rdx, rdx",
    "je 27f",
    "26: movzx eax, byte ptr [rdi]",
    "movzx ecx, byte ptr [rsi]",
    "sub eax, ecx",
    "jne 29f",
    "inc rdi",
    "inc rsi",
    "dec rdx",
    "jne 26b",
    "27: xor eax, eax",
    "29: ret",
    "28: bswap rax",
    "bswap rcx",
    "cmp rax, rcx",
    "sbb eax, eax",
    "or eax, 1",
    "ret",
);

// (rdi: text) -> rax: bytes before its end
hidden!(
    "strlen",
    "xor eax, eax",
    "24: cmp byte ptr [rdi + rax], 0",
    "je 25f",
    "inc rax",
    "jmp 24b",
    "25: ret",
);

#[cfg(test)]
mod tests {
    use core::ffi::{CStr, c_char, c_int, c_void};

    unsafe extern "C" {
        fn memmove(to: *mut c_void, from: *const c_void, size: usize) -> *mut c_void;
        fn memset(to: *mut c_void, byte: c_int, size: usize) -> *mut c_void;
        fn memcmp(one: *const c_void, other: *const c_void, size: usize) -> c_int;
        fn strlen(text: *const c_char) -> usize;
    }

    fn sizes() -> impl Iterator<Item = usize> {
        (0..300).chain([511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 2100, 5000])
    }

    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|n| (n * 31 + n / 256 * 7 + 1) as u8).collect()
    }

    #[test]
    fn bytes_are_moved_however_they_overlap() {
        for size in sizes() {
            for shift in [-130isize, -64, -17, -16, -1, 0, 1, 5, 16, 31, 33, 100, 140, 6000] {
                let mut bytes = pattern(20_000);
                let from = 7000usize;
                let to = from.wrapping_add_signed(shift);
                let mut expected = bytes.clone();
                expected[to..to + size].copy_from_slice(&bytes.clone()[from..from + size]);
                let at = bytes.as_mut_ptr();
                let to_at = at.wrapping_add(to).cast();
                // SAFETY: both ranges lie inside `bytes`.
                let answer = unsafe { memmove(to_at, at.add(from).cast(), size) };
                assert_eq!(answer, to_at);
                assert!(bytes == expected, "{size} bytes by {shift}");
            }
        }
    }

    #[test]
    fn bytes_are_filled_and_nothing_beside_them() {
        for size in sizes() {
            let mut bytes = vec![1u8; size + 2];
            let at = bytes[1..].as_mut_ptr().cast();
            // SAFETY: `bytes` has one byte more behind these.
            assert_eq!(unsafe { memset(at, 0x3a5, size) }, at);
            assert_eq!((bytes[0], bytes[size + 1]), (1, 1), "{size}");
            assert!(bytes[1..=size].iter().all(|byte| *byte == 0xa5), "{size}");
        }
    }

    #[test]
    fn the_first_difference_decides() {
        for size in 0..100 {
            let one = pattern(size);
            // SAFETY: both have as many bytes.
            let compare = |other: &[u8]| unsafe {
                memcmp(one.as_ptr().cast(), other.as_ptr().cast(), size).signum()
            };
            assert_eq!(compare(&one.clone()), 0);
            for at in 0..size {
                let mut other = one.clone();
                other[at] ^= 0x80;
                if at + 1 < size {
                    other[at + 1] ^= 0xff;
                }
                let expected = if one[at] < other[at] { -1 } else { 1 };
                assert_eq!(compare(&other), expected, "{size} {at}");
            }
        }
    }

    #[test]
    fn a_text_ends_at_its_first_zero() {
        // SAFETY: a C string.
        let length = |text: &CStr| unsafe { strlen(text.as_ptr()) };
        assert_eq!((length(c""), length(c"cuMemAlloc_v2")), (0, 13));
    }
}
