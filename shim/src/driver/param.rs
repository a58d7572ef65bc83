//! Pointers among the arguments of the driver's functions.
//!
//! Contract, for every function of the table, and those for the Python package: a pointer is NULL, or points to a
//! value of its documented type until the function returns. The function reads that value, and as an output writes
//! it. If the function takes a count for the pointer, it points to as many values. The types are those of
//! [`crate::driver::cuda`]: integers, handles and structures of them, so that every bit pattern is a
//! value.
//!
//! [`Out`] and [`In`] have the ABI of a pointer and no public constructor. A hook gets them as arguments
//! of the program's call, and keeps none after it returns: so reads and writes through them are as sound
//! as those that the real driver makes with the same pointers. A program that breaks the contract breaks
//! it for the driver too.

use core::ffi::{CStr, c_char};

/// Where the driver writes a result.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// What the driver reads.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> Out<T> {
    /// # Safety
    /// `place` is used through the result only while its borrow lasts.
    #[cfg(test)]
    pub unsafe fn to(place: &mut T) -> Out<T> {
        Out(place)
    }

    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value: after a successful call the driver's result, before it the program's value. `None`
    /// for NULL.
    #[inline]
    pub fn get(self) -> Option<T> {
        In(self.0.cast_const()).get()
    }

    /// Writes the value. Does nothing for NULL.
    #[inline]
    pub fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, so by the contract above a place of a `T`. No alignment is asked for.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    #[cfg(test)]
    pub fn input(self) -> In<T> {
        In(self.0)
    }

    /// Of an array: the place at this index, which the count beside the pointer allows.
    #[inline]
    pub fn at(self, index: usize) -> Out<T> {
        if self.is_null() { self } else { Out(self.0.wrapping_add(index)) }
    }
}

impl<T: Copy> In<T> {
    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// `None` for NULL.
    #[inline]
    pub fn get(self) -> Option<T> {
        // SAFETY: not NULL, so by the contract above a `T`. No alignment is asked for.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Of an array: the value at this index, which the count beside the pointer allows.
    #[inline]
    pub fn at(self, index: usize) -> In<T> {
        if self.is_null() { self } else { In(self.0.wrapping_add(index)) }
    }
}

impl In<c_char> {
    /// `None` for NULL.
    #[inline]
    pub fn text(&self) -> Option<&CStr> {
        // SAFETY: not NULL, so by the contract above a text that ends with NUL. The result lives no
        // longer than `self`, and that no longer than the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

impl In<u8> {
    /// Nothing for NULL. `length`: no more than the length beside the pointer.
    pub fn bytes(&self, length: usize) -> &[u8] {
        match self.is_null() {
            true => &[],
            // SAFETY: not NULL, so by the contract above so many bytes. The result lives no longer than `self`.
            false => unsafe { core::slice::from_raw_parts(self.0, length) },
        }
    }
}

impl Out<u8> {
    /// Writes as many of the bytes as there is room for. Does nothing for NULL.
    pub fn fill(self, bytes: &[u8], room: usize) {
        if !self.is_null() {
            // SAFETY: not NULL, so by the contract above there is that room.
            unsafe { self.0.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(room)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_nothing() {
        let out: Out<u64> = Out(core::ptr::null_mut());
        out.set(1);
        assert!(out.is_null() && out.at(3).is_null() && out.get().is_none());
        let text: In<c_char> = In(core::ptr::null());
        assert!(text.is_null() && text.at(1).is_null() && text.text().is_none());
        Out(core::ptr::null_mut()).fill(b"abc", 3);
        assert_eq!(In(core::ptr::null()).bytes(7), b"");
    }

    #[test]
    fn places_of_any_alignment() {
        let mut bytes = [0u8; 17];
        let out: Out<u64> = Out(bytes[1..].as_mut_ptr().cast());
        out.at(1).set(0x0102);
        assert_eq!((out.get(), out.at(1).get()), (Some(0), Some(0x0102)));
        assert_eq!(bytes[9..11], [2, 1]);
        assert_eq!(In(c"name".as_ptr()).text(), Some(c"name"));
        assert_eq!(In(c"name".as_ptr().cast()).bytes(2), b"na");
        Out(bytes.as_mut_ptr()).fill(b"abcdef", 4);
        assert_eq!(bytes[..5], [b'a', b'b', b'c', b'd', 0]);
    }
}
