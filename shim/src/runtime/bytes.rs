//! Copying, filling and comparing bytes, for this library alone.
//!
//! The compiler calls `memcpy` and its like by name, and the name belongs to the process: a sanitizer's
//! runtime defines it, and would report accesses of this library as the program's. So this library
//! defines these names itself, with hidden visibility. No libc function may be called here.
//!
//! Under a sanitizer its runtime's functions are wanted: they check the accesses of the tests. So are Miri's.

#![cfg(not(any(miri, sanitized)))]

use core::ffi::c_int;

core::arch::global_asm!(".hidden memcpy, memmove, memset, memcmp, bcmp, strlen");

/// What one instruction loads and stores, at any address.
#[cfg(target_arch = "x86_64")]
type Block = core::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Block = core::arch::aarch64::uint8x16_t;

const BLOCK: usize = size_of::<Block>();

#[repr(C, packed)]
struct Unaligned<T>(T);

/// # Safety
/// A `T` of numbers can be read there.
#[inline(always)]
unsafe fn load<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller's contract.
    unsafe { (*at.cast::<Unaligned<T>>()).0 }
}

/// # Safety
/// A `T` of numbers can be written there.
#[inline(always)]
unsafe fn store<T: Copy>(at: *mut u8, value: T) {
    // SAFETY: the caller's contract.
    unsafe { (*at.cast::<Unaligned<T>>()).0 = value }
}

/// Stands in a loop of which the compiler would else make a call of the function that it is in.
#[inline(always)]
fn keep_loop() {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) }
}

/// Moves from as many bytes as a `T` has to twice as many: the first and the last, both of which are loaded before one is stored.
///
/// # Safety
/// As of [`memcpy`].
#[inline(always)]
unsafe fn ends_moved<T: Copy>(to: *mut u8, from: *const u8, size: usize) {
    let last = size.wrapping_sub(size_of::<T>());
    // SAFETY: the caller's contract.
    unsafe {
        let ends: (T, T) = (load(from), load(from.wrapping_add(last)));
        store(to, ends.0);
        store(to.wrapping_add(last), ends.1);
    }
}

/// Moves the two blocks at this distance.
///
/// # Safety
/// As of [`memcpy`].
#[inline(always)]
unsafe fn pair_moved(to: *mut u8, from: *const u8, at: usize) {
    let (to, from) = (to.wrapping_add(at), from.wrapping_add(at));
    // SAFETY: the caller's contract.
    unsafe {
        let pair: (Block, Block) = (load(from), load(from.wrapping_add(BLOCK)));
        store(to, pair.0);
        store(to.wrapping_add(BLOCK), pair.1);
    }
    keep_loop();
}

/// The ranges may overlap: `memmove` is the same.
///
/// # Safety
/// So many bytes can be read and written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    let back = size.wrapping_sub(2 * BLOCK);
    // SAFETY: the caller's contract.
    unsafe {
        match size {
            // Upwards unless the target begins inside the source. What the loop may overwrite is loaded first.
            33.. if to.addr().wrapping_sub(from.addr()) >= size => {
                let last = from.wrapping_add(back);
                let last: (Block, Block) = (load(last), load(last.wrapping_add(BLOCK)));
                let mut at = 0;
                while at < back {
                    pair_moved(to, from, at);
                    at = at.wrapping_add(2 * BLOCK);
                }
                store(to.wrapping_add(back), last.0);
                store(to.wrapping_add(back + BLOCK), last.1);
            }
            33.. => {
                let first: (Block, Block) = (load(from), load(from.wrapping_add(BLOCK)));
                let mut at = back;
                while at.cast_signed() > 0 {
                    pair_moved(to, from, at);
                    at = at.wrapping_sub(2 * BLOCK);
                }
                store(to, first.0);
                store(to.wrapping_add(BLOCK), first.1);
            }
            16.. => ends_moved::<Block>(to, from, size),
            8.. => ends_moved::<u64>(to, from, size),
            4.. => ends_moved::<u32>(to, from, size),
            2.. => ends_moved::<u16>(to, from, size),
            1 => store(to, load::<u8>(from)),
            0 => {}
        }
    }
    to
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { memcpy(to, from, size) }
}

/// Fills as [`ends_moved`] moves.
///
/// # Safety
/// So many bytes can be written there.
#[inline(always)]
unsafe fn ends_filled<T: Copy>(to: *mut u8, value: T, size: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        store(to, value);
        store(to.wrapping_add(size.wrapping_sub(size_of::<T>())), value);
    }
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: c_int, size: usize) -> *mut u8 {
    let word = u64::from(byte as u8).wrapping_mul(0x0101_0101_0101_0101);
    // SAFETY: the caller's contract; a block has the bytes of two words.
    unsafe {
        match size {
            16.. => {
                let block = core::mem::transmute::<[u64; 2], Block>([word; 2]);
                let (mut at, last) = (to, to.wrapping_add(size.wrapping_sub(BLOCK)));
                while at < last {
                    store(at, block);
                    at = at.wrapping_add(BLOCK);
                    keep_loop();
                }
                store(last, block);
            }
            8.. => ends_filled(to, word, size),
            4.. => ends_filled(to, word as u32, size),
            2.. => ends_filled(to, word as u16, size),
            1 => store(to, word as u8),
            0 => {}
        }
    }
    to
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, size: usize) -> c_int {
    let mut at = 0;
    while size.wrapping_sub(at) >= 8 {
        // SAFETY: the caller's contract.
        let (a, b): (u64, u64) =
            unsafe { (load(one.wrapping_add(at)), load(other.wrapping_add(at))) };
        if a != b {
            return if a.to_be() < b.to_be() { -1 } else { 1 };
        }
        at = at.wrapping_add(8);
    }
    while at < size {
        // SAFETY: the caller's contract.
        let (a, b): (u8, u8) =
            unsafe { (load(one.wrapping_add(at)), load(other.wrapping_add(at))) };
        if a != b {
            return c_int::from(a).wrapping_sub(c_int::from(b));
        }
        at = at.wrapping_add(1);
        keep_loop();
    }
    0
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, size: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { memcmp(one, other, size) }
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's contract: its end was not reached yet.
    while unsafe { load::<u8>(text.wrapping_add(length)) } != 0 {
        length = length.wrapping_add(1);
        keep_loop();
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

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
                let to_at = at.wrapping_add(to);
                // SAFETY: both ranges lie inside `bytes`.
                let answer = unsafe { memmove(to_at, at.add(from), size) };
                assert_eq!(answer, to_at);
                assert!(bytes == expected, "{size} bytes by {shift}");
            }
        }
    }

    #[test]
    fn bytes_are_filled_and_nothing_beside_them() {
        for size in sizes() {
            let mut bytes = vec![1u8; size + 2];
            let at = bytes[1..].as_mut_ptr();
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
            let compare =
                |other: &[u8]| unsafe { memcmp(one.as_ptr(), other.as_ptr(), size).signum() };
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
        let length = |text: &CStr| unsafe { strlen(text.as_ptr().cast()) };
        assert_eq!((length(c""), length(c"cuMemAlloc_v2")), (0, 13));
    }
}
