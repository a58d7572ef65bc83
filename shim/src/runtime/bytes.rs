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

/// The bytes that a caller gave to a function of this file. Each access lies within them: so much the caller's contract allows.
#[derive(Clone, Copy)]
struct Bytes {
    at: *mut u8,
    size: usize,
}

impl Bytes {
    /// A `T` of numbers, at this distance from the first byte.
    #[inline(always)]
    fn load<T: Copy>(self, at: usize) -> T {
        debug_assert!(at.wrapping_add(size_of::<T>()) <= self.size);
        // SAFETY: these bytes can be read, at any address.
        unsafe { (*self.at.wrapping_add(at).cast::<Unaligned<T>>()).0 }
    }

    #[inline(always)]
    fn store<T: Copy>(self, at: usize, value: T) {
        debug_assert!(at.wrapping_add(size_of::<T>()) <= self.size);
        // SAFETY: these bytes can be written, at any address.
        unsafe { (*self.at.wrapping_add(at).cast::<Unaligned<T>>()).0 = value }
    }

    /// Both are loaded before one is stored.
    #[inline(always)]
    fn load_two<T: Copy>(self, one: usize, other: usize) -> (T, T) {
        (self.load(one), self.load(other))
    }

    #[inline(always)]
    fn store_two<T: Copy>(self, one: usize, other: usize, values: (T, T)) {
        self.store(one, values.0);
        self.store(other, values.1);
    }

    /// Where the last `T` is.
    #[inline(always)]
    fn last<T>(self) -> usize {
        self.size.wrapping_sub(size_of::<T>())
    }
}

/// Stands in a loop of which the compiler would else make a call of the function that it is in.
#[inline(always)]
fn keep_loop() {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) }
}

/// Moves from as many bytes as a `T` has to twice as many: the first and the last.
#[inline(always)]
fn ends_moved<T: Copy>(to: Bytes, from: Bytes) {
    to.store_two(0, to.last::<T>(), from.load_two::<T>(0, from.last::<T>()));
}

/// Moves the two blocks at this distance.
#[inline(always)]
fn pair_moved(to: Bytes, from: Bytes, at: usize) {
    let other = at.wrapping_add(BLOCK);
    to.store_two(at, other, from.load_two::<Block>(at, other));
    keep_loop();
}

/// The ranges may overlap: `memmove` is the same.
///
/// # Safety
/// So many bytes can be read and written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    let is_behind = to.addr().wrapping_sub(from.addr()) >= size;
    let (target, source) = (Bytes { at: to, size }, Bytes { at: from.cast_mut(), size });
    let (back, last) = (size.wrapping_sub(2 * BLOCK), target.last::<Block>());
    match size {
        // Upwards unless the target begins inside the source. What the loop may overwrite is loaded first.
        33.. if is_behind => {
            let end = source.load_two::<Block>(back, last);
            let mut at = 0;
            while at < back {
                pair_moved(target, source, at);
                at = at.wrapping_add(2 * BLOCK);
            }
            target.store_two(back, last, end);
        }
        33.. => {
            let begin = source.load_two::<Block>(0, BLOCK);
            let mut at = back;
            while at.cast_signed() > 0 {
                pair_moved(target, source, at);
                at = at.wrapping_sub(2 * BLOCK);
            }
            target.store_two(0, BLOCK, begin);
        }
        16.. => ends_moved::<Block>(target, source),
        8.. => ends_moved::<u64>(target, source),
        4.. => ends_moved::<u32>(target, source),
        2.. => ends_moved::<u16>(target, source),
        1 => target.store(0, source.load::<u8>(0)),
        0 => {}
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
#[inline(always)]
fn ends_filled<T: Copy>(to: Bytes, value: T) {
    to.store_two(0, to.last::<T>(), (value, value));
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: c_int, size: usize) -> *mut u8 {
    let word = u64::from(byte as u8).wrapping_mul(0x0101_0101_0101_0101);
    let target = Bytes { at: to, size };
    match size {
        16.. => {
            // SAFETY: a block has the bytes of two words.
            let block = unsafe { core::mem::transmute::<[u64; 2], Block>([word; 2]) };
            let (mut at, last) = (0, target.last::<Block>());
            while at < last {
                target.store(at, block);
                at = at.wrapping_add(BLOCK);
                keep_loop();
            }
            target.store(last, block);
        }
        8.. => ends_filled(target, word),
        4.. => ends_filled(target, word as u32),
        2.. => ends_filled(target, word as u16),
        1 => target.store(0, word as u8),
        0 => {}
    }
    to
}

/// # Safety
/// As of C's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, size: usize) -> c_int {
    let (one, other) = (Bytes { at: one.cast_mut(), size }, Bytes { at: other.cast_mut(), size });
    let mut at = 0;
    while size.wrapping_sub(at) >= 8 {
        let (a, b): (u64, u64) = (one.load(at), other.load(at));
        if a != b {
            return if a.to_be() < b.to_be() { -1 } else { 1 };
        }
        at = at.wrapping_add(8);
    }
    while at < size {
        let (a, b): (u8, u8) = (one.load(at), other.load(at));
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
    // To its end, which is not known.
    let text = Bytes { at: text.cast_mut(), size: usize::MAX };
    let mut length = 0;
    while text.load::<u8>(length) != 0 {
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
