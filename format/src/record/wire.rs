//! The layout of a record's fields in its words.
//!
//! Each field of an event is declared with a *place*: the name of a method of [`Put`], which writes the field, of
//! [`Get`], which reads it, and of [`AnyFields`], which generates a value. Fields are stored in the order of their
//! declaration.
//!
//! | place | position of the field |
//! |---|---|
//! | `small` | the next free bits of the small field of word 1, as many as its type has |
//! | `word` | the next word |
//! | `high`, then `low` | the halves of the next word |
//! | `word_if` | the next word; a bit in the small field says whether the value is present |
//! | `ticks` | the next word: a time in ns, rounded down to whole ticks |
//! | `word_added` | the next word; 0 where an older writer has none |
//! | `high_added`, then `low` | the halves of the next word; 0 where an older writer has none |
//! | `word_at_end` | the next word, at the end of the record; `None` if the record ends before it |
//! | `inner` | the positions of the fields of its type |
//! | `inner_if` | as `inner`, at the end of the record; `None` if the record ends before them |

use super::scalar::Scalar;
use super::sealed::Record;
use super::word::whole_ticks;

/// Greatest length of an event record, in words.
pub(crate) const EVENT_WORDS: usize = 16;

/// A structure whose fields are stored in a record one after the other.
pub(super) trait Fields: Sized {
    fn put(&self, to: &mut Put);

    /// `None`: the record is too short, or has a value of a newer writer.
    fn get(from: &mut Get) -> Option<Self>;

    fn any<N: Iterator<Item = u64>>(numbers: &mut AnyFields<N>) -> Self;
}

/// Writes fields.
pub(super) struct Put {
    record: Record<EVENT_WORDS>,
    /// Number of bits of the small field in use.
    bits: u32,
}

impl Put {
    #[inline(always)]
    pub(super) fn new(kind: u8) -> Put {
        Put { record: Record::new(kind, 0), bits: 0 }
    }

    #[inline(always)]
    pub(super) fn finish(self) -> Record<EVENT_WORDS> {
        self.record
    }

    #[inline(always)]
    pub(super) fn small<T: Scalar>(&mut self, value: &T) {
        self.record.add_small(value.to_bits() << self.bits);
        self.bits += T::BITS;
    }

    #[inline(always)]
    pub(super) fn word<T: Scalar>(&mut self, value: &T) {
        self.record.push(value.to_bits());
    }

    #[inline(always)]
    pub(super) fn high<T: Scalar>(&mut self, value: &T) {
        self.record.push(value.to_bits() << 32);
    }

    #[inline(always)]
    pub(super) fn low<T: Scalar>(&mut self, value: &T) {
        self.record.add_last(value.to_bits());
    }

    #[inline(always)]
    pub(super) fn word_if(&mut self, value: &Option<u64>) {
        self.small(&value.is_some());
        self.word(&value.unwrap_or(0));
    }

    #[inline(always)]
    pub(super) fn ticks(&mut self, value: &u64) {
        self.word(&whole_ticks(*value));
    }

    #[inline(always)]
    pub(super) fn word_added<T: Scalar>(&mut self, value: &T) {
        self.word(value);
    }

    #[inline(always)]
    pub(super) fn high_added<T: Scalar>(&mut self, value: &T) {
        self.high(value);
    }

    #[inline(always)]
    pub(super) fn word_at_end(&mut self, value: &Option<u64>) {
        if let Some(value) = value {
            self.word(value);
        }
    }

    #[inline(always)]
    pub(super) fn inner<T: Fields>(&mut self, value: &T) {
        value.put(self);
    }

    #[inline(always)]
    pub(super) fn inner_if<T: Fields>(&mut self, value: &Option<T>) {
        if let Some(value) = value {
            value.put(self);
        }
    }
}

/// Reads fields. The words may have any number and values; words after the last field are ignored.
pub(super) struct Get<'a> {
    small: u64,
    words: &'a [u64],
    /// The word whose high half was read last.
    low: u64,
}

/// Decodes a value from the low bits of a word.
fn narrow<T: Scalar>(bits: u64) -> Option<T> {
    T::from_bits(bits & (u64::MAX >> (64 - T::BITS)))
}

impl<'a> Get<'a> {
    #[inline(always)]
    pub(super) fn new(small: u64, words: &'a [u64]) -> Get<'a> {
        Get { small, words, low: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(*first)
    }

    #[inline(always)]
    pub(super) fn small<T: Scalar>(&mut self) -> Option<T> {
        let bits = self.small;
        self.small >>= T::BITS;
        narrow(bits)
    }

    #[inline(always)]
    pub(super) fn word<T: Scalar>(&mut self) -> Option<T> {
        narrow(self.next()?)
    }

    #[inline(always)]
    pub(super) fn high<T: Scalar>(&mut self) -> Option<T> {
        self.low = self.next()?;
        narrow(self.low >> 32)
    }

    #[inline(always)]
    pub(super) fn low<T: Scalar>(&mut self) -> Option<T> {
        narrow(self.low)
    }

    #[inline(always)]
    pub(super) fn word_if(&mut self) -> Option<Option<u64>> {
        let is_there: bool = self.small()?;
        let word = self.next()?;
        Some(is_there.then_some(word))
    }

    #[inline(always)]
    pub(super) fn ticks(&mut self) -> Option<u64> {
        self.next()
    }

    #[inline(always)]
    pub(super) fn word_added<T: Scalar>(&mut self) -> Option<T> {
        narrow(self.next().unwrap_or(0))
    }

    #[inline(always)]
    pub(super) fn high_added<T: Scalar>(&mut self) -> Option<T> {
        self.low = self.next().unwrap_or(0);
        narrow(self.low >> 32)
    }

    #[inline(always)]
    pub(super) fn word_at_end(&mut self) -> Option<Option<u64>> {
        Some(self.next())
    }

    #[inline(always)]
    pub(super) fn inner<T: Fields>(&mut self) -> Option<T> {
        T::get(self)
    }

    #[inline(always)]
    pub(super) fn inner_if<T: Fields>(&mut self) -> Option<Option<T>> {
        Some(T::get(self))
    }
}

/// Derives fields from numbers, for events of tests and fuzzers. After the last number: 0.
pub(super) struct AnyFields<N>(pub N);

impl<N: Iterator<Item = u64>> AnyFields<N> {
    fn next(&mut self) -> u64 {
        self.0.next().unwrap_or(0)
    }

    pub(super) fn small<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn word<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn high<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn low<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn word_if(&mut self) -> Option<u64> {
        bool::any(self.next()).then(|| self.next())
    }

    pub(super) fn ticks(&mut self) -> u64 {
        whole_ticks(self.next())
    }

    pub(super) fn word_added<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn high_added<T: Scalar>(&mut self) -> T {
        T::any(self.next())
    }

    pub(super) fn word_at_end(&mut self) -> Option<u64> {
        bool::any(self.next()).then(|| self.next())
    }

    pub(super) fn inner<T: Fields>(&mut self) -> T {
        T::any(self)
    }

    pub(super) fn inner_if<T: Fields>(&mut self) -> Option<T> {
        bool::any(self.next()).then(|| T::any(self))
    }
}

/// Declares a structure with the places of its fields, and implements [`Fields`] for it.
macro_rules! fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty = $place:ident, )*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl $crate::record::wire::Fields for $name {
            #[inline(always)]
            fn put(&self, to: &mut $crate::record::wire::Put) {
                $( to.$place(&self.$field); )*
            }

            #[inline(always)]
            fn get(from: &mut $crate::record::wire::Get) -> Option<$name> {
                $( let $field = from.$place()?; )*
                Some($name { $($field),* })
            }

            fn any<N: Iterator<Item = u64>>(
                numbers: &mut $crate::record::wire::AnyFields<N>,
            ) -> $name {
                $( let $field = numbers.$place(); )*
                $name { $($field),* }
            }
        }
    };
}

pub(crate) use fields;
