//! Values that fit in a word or a part of one: numbers, ids and enumerations.

use crate::ids::{ContextId, DeviceId, PoolId, SiteId, StackId};
use crate::kind::Space;

/// A value of at most 64 bits.
pub(super) trait Scalar: Copy {
    /// Width of the encoded value, in bits.
    const BITS: u32;

    /// Encodes the value in the lowest [`Scalar::BITS`] bits; the others are 0.
    fn to_bits(self) -> u64;

    /// Decodes the lowest [`Scalar::BITS`] bits; the others are 0. `None`: a value of a newer writer.
    fn from_bits(bits: u64) -> Option<Self>;

    /// For tests: maps every number to a value, and reaches every value.
    fn any(number: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Scalar for $number {
            const BITS: u32 = <$number>::BITS;

            #[inline(always)]
            fn to_bits(self) -> u64 {
                // Clears the sign extension of a negative number.
                self as u64 & (u64::MAX >> (64 - Self::BITS))
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Option<$number> {
                Some(bits as $number)
            }

            fn any(number: u64) -> $number {
                number as $number
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64, i32, i64);

impl Scalar for bool {
    const BITS: u32 = 1;

    #[inline(always)]
    fn to_bits(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_bits(bits: u64) -> Option<bool> {
        Some(bits != 0)
    }

    fn any(number: u64) -> bool {
        number & 1 != 0
    }
}

macro_rules! ids {
    ($($id:ident($number:ty)),*) => { $(
        impl Scalar for $id {
            const BITS: u32 = <$number>::BITS;

            #[inline(always)]
            fn to_bits(self) -> u64 {
                u64::from(self.0)
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Option<$id> {
                Some($id(bits as $number))
            }

            fn any(number: u64) -> $id {
                $id(number as $number)
            }
        }
    )* };
}

ids!(DeviceId(u8), ContextId(u16), PoolId(u16), SiteId(u32), StackId(u32));

/// Implements [`Scalar`] in 8 bits for an enumeration with `ALL`. `$from_u8`: the function that decodes it.
macro_rules! scalar_enum {
    ($name:ident, $from_u8:expr) => {
        impl $crate::record::scalar::Scalar for $name {
            const BITS: u32 = 8;

            #[inline(always)]
            fn to_bits(self) -> u64 {
                self as u64
            }

            fn from_bits(bits: u64) -> Option<$name> {
                $from_u8(bits as u8)
            }

            fn any(number: u64) -> $name {
                $name::ALL[number as usize % $name::ALL.len()]
            }
        }
    };
}

/// Declares an enumeration whose numbers are stored in the file, with `ALL`, `from_u8` and [`Scalar`]. Numbers are
/// never reused.
macro_rules! numbered_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $number, )*
        }

        impl $name {
            /// All values, in the order of declaration.
            pub const ALL: &[$name] = &[$( $name::$variant ),*];

            /// `None`: a value of a newer writer.
            pub fn from_u8(value: u8) -> Option<$name> {
                match value {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }
        }

        $crate::record::scalar::scalar_enum!($name, $name::from_u8);
    };
}

pub(crate) use {numbered_enum, scalar_enum};

scalar_enum!(Space, Space::from_u8);
