//! Copying, filling and comparing bytes, for this library alone.
//!
//! The compiler calls `memcpy` and its like by name, and the name belongs to the process: a sanitizer's
//! runtime defines it, and would report accesses of this library as the program's. So this library
//! defines these names itself, with hidden visibility. No libc function may be called here.

#![cfg_attr(any(miri, sanitized), allow(unused_macros))]

/// The landing pad of a function that is called by a pointer.
#[cfg(target_arch = "x86_64")]
macro_rules! entry {
    () => {
        "endbr64"
    };
}
/// `bti c`
#[cfg(target_arch = "aarch64")]
macro_rules! entry {
    () => {
        "hint 34"
    };
}

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
            entry!(),
            $($line,)*
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

// Under a sanitizer its runtime's functions are wanted: they check the accesses of the tests. Miri runs no
// assembly.
#[cfg(all(target_arch = "aarch64", not(any(miri, sanitized))))]
mod aarch64;
#[cfg(all(target_arch = "x86_64", not(any(miri, sanitized))))]
mod x86_64;

#[cfg(all(test, not(miri)))]
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
