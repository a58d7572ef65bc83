//! Values that fit in a word or a part of one: numbers, ids and enumerations.

/// A value of at most 64 bits.
pub(crate) trait Scalar: Copy {
    /// Width of the encoded value, in bits.
    const BITS: u32;

    /// Encodes the value in the lowest [`Scalar::BITS`] bits; the others are 0.
    fn to_bits(self) -> u64;

    /// Decodes the lowest [`Scalar::BITS`] bits; the others are 0. `None`: a value of a newer writer.
    fn from_bits(bits: u64) -> Option<Self>;
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
}

/// Declares structures around a number, which are a [`Scalar`].
macro_rules! scalar_ids {
    ($( $(#[$meta:meta])* pub struct $id:ident(pub $number:ty); )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $id(pub $number);

        impl $crate::scalar::Scalar for $id {
            const BITS: u32 = <$number>::BITS;

            #[inline(always)]
            fn to_bits(self) -> u64 {
                u64::from(self.0)
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Option<$id> {
                Some($id(bits as $number))
            }
        }
    )* };
}

/// Implements [`Scalar`] for optional values: `None` is 0, the others are their numbers plus 1.
macro_rules! optional_scalars {
    ($($value:ty),*) => { $(
        impl $crate::scalar::Scalar for Option<$value> {
            const BITS: u32 = <$value>::BITS;

            fn to_bits(self) -> u64 {
                self.map_or(0, |value| value.to_bits() + 1)
            }

            fn from_bits(bits: u64) -> Option<Option<$value>> {
                match bits.checked_sub(1) {
                    None => Some(None),
                    Some(bits) => <$value>::from_bits(bits).map(Some),
                }
            }
        }
    )* };
}

/// Declares an enumeration whose numbers are stored in the file, with `ALL`, `from_u8` and [`Scalar`]; with texts behind the
/// numbers, also `name`. `else`: the value that an unknown number is read as. Numbers are never reused.
macro_rules! numbered_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(else $unknown:ident)? {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal => $text:literal, )*
        }
    ) => {
        $crate::scalar::numbered_enum! {
            $(#[$meta])*
            pub enum $name $(else $unknown)? {
                $( $(#[$variant_meta])* $variant = $number, )*
            }
        }

        impl $name {
            /// The name in JSON, exports and tables.
            pub fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )*
                }
            }
        }
    };
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(else $unknown:ident)? {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $number, )*
        }

        impl $name {
            pub const COUNT: usize = [$($number),*].len();
            /// All values, in the order of declaration.
            pub const ALL: [$name; $name::COUNT] = [$( $name::$variant ),*];

            /// `None`: a value of a newer writer.
            pub fn from_u8(value: u8) -> Option<$name> {
                match value {
                    $( $number => Some($name::$variant), )*
                    _ => None,
                }
            }
        }

        impl $crate::scalar::Scalar for $name {
            const BITS: u32 = 8;

            #[inline(always)]
            fn to_bits(self) -> u64 {
                self as u64
            }

            fn from_bits(bits: u64) -> Option<$name> {
                $name::from_u8(bits as u8)$( .or(Some($name::$unknown)) )?
            }
        }
    };
}

pub(crate) use {numbered_enum, optional_scalars, scalar_ids};
