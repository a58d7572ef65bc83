//! Pointers that a program passes to the driver's functions.
//!
//! Contract, for all of the driver's functions: a pointer is NULL, or until the function returns it
//! points to a value of its documented type, which can be read, and as an output written. Where a count
//! stands beside it, it points to as many values. Values of these types come from the arguments of an
//! export alone (they have the ABI of a pointer), or from another such value, so that reading and
//! writing through them needs no promise of its own. What the program breaks of this contract, it
//! would break for the real driver.

use crate::error::{Done, Error};
use std::ffi::{CStr, c_char};

/// Where a function writes a result.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// What a function reads.
#[derive(Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> Out<T> {
    /// NULL.
    pub(crate) fn none() -> Out<T> {
        Out(std::ptr::null_mut())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes where the program wants the result; nothing where it passed NULL.
    #[inline]
    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the contract above; no alignment is required.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The same for a result that the program must want. NULL: 1.
    pub(crate) fn put(self, value: T) -> Done {
        self.check()?;
        self.set(value);
        Ok(())
    }

    /// NULL: 1.
    pub(crate) fn check(self) -> Done {
        if self.is_null() { Err(Error::INVALID_VALUE) } else { Ok(()) }
    }

    /// What the program wrote there before the call. NULL: 1.
    pub(crate) fn get(self) -> Done<T>
    where
        T: Copy,
    {
        self.input().get()
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn input(self) -> In<T> {
        In(self.0)
    }

    /// Of an array: the output at this index. NULL stays NULL.
    pub(crate) fn at(self, index: usize) -> Out<T> {
        if self.is_null() { self } else { Out(self.0.wrapping_add(index)) }
    }

    /// A result whose type another argument selects.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T> In<T> {
    #[cfg(test)]
    pub(crate) fn none() -> In<T> {
        In(std::ptr::null())
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// NULL: 1.
    #[inline]
    pub(crate) fn get(self) -> Done<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the contract above; no alignment is required.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Of an array: the value at this index. NULL stays NULL.
    pub(crate) fn at(self, index: usize) -> In<T> {
        if self.is_null() { self } else { In(self.0.wrapping_add(index)) }
    }

    /// An array of so many values. NULL is one of none.
    pub(crate) fn list(self, count: usize) -> Done<Vec<T>>
    where
        T: Copy,
    {
        if count > 0 && self.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        (0..count).map(|index| self.at(index).get()).collect()
    }

    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<c_char> {
    /// A text that ends with NUL.
    pub(crate) fn text(self) -> Done<String> {
        if self.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the contract above; a text's type is bytes up to a NUL.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
impl<T> From<*mut T> for Out<T> {
    fn from(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }
}

#[cfg(test)]
impl<T> From<&mut T> for Out<T> {
    fn from(pointer: &mut T) -> Out<T> {
        Out(pointer)
    }
}

#[cfg(test)]
impl<T> From<&T> for In<T> {
    fn from(pointer: &T) -> In<T> {
        In(pointer)
    }
}

#[cfg(test)]
impl<T> From<*const T> for In<T> {
    fn from(pointer: *const T) -> In<T> {
        In(pointer)
    }
}
