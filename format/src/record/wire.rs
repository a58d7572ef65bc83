//! The layout of a record's fields in its words.
//!
//! Each field of an event or definition is declared with a *place*: the name of a method of [`Put`], which writes the
//! field, and of [`Get`], which reads it. Fields are stored in the order of their declaration.
//!
//! | place | position of the field |
//! |---|---|
//! | `small` | the next free bits of the small field of word 1, as many as its type has |
//! | `word` | the next word |
//! | `high`, then `low` | the halves of the next word |
//! | `word_if` | the next word; a bit in the small field says whether the value is present |
//! | `word_at_end` | the next word, at the end of the record; `None` if the record ends before it |
//! | `inner` | the positions of the fields of its type |
//! | `inner_if` | as `inner`, at the end of the record; `None` if the record ends before them |
//! | `packed` | the next free bits of a word that all such fields of a record share |
//! | `uuid` | the next two words |
//! | `list` | behind all words of a definition, with its length ([`List`]) |

use std::fmt::Debug;

use super::sealed::Record;
use crate::scalar::Scalar;
use crate::uuid;

/// Greatest length of an event record, in words.
pub(crate) const EVENT_WORDS: usize = 16;

/// A structure whose fields are stored in a record one after the other.
pub(super) trait Fields: Sized {
    fn put(&self, to: &mut Put);

    /// `None`: the record is too short, or has a value of a newer writer.
    fn get(from: &mut Get) -> Option<Self>;
}

/// Writes fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put<'a> {
    /// All fields but lists.
    pub(super) record: Record<EVENT_WORDS>,
    pub(super) lists: [Option<&'a dyn List>; 3],
    /// Number of bits of the small field in use, and of the word of `packed` fields.
    bits: u32,
    packed: u32,
}

impl<'a> Put<'a> {
    #[inline(always)]
    pub(super) fn new(kind: u8) -> Put<'a> {
        Put { record: Record::new(kind, 0), lists: [None; 3], bits: 0, packed: 0 }
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

    pub(super) fn packed<T: Scalar>(&mut self, value: &T) {
        if self.packed == 0 {
            self.record.push(0);
        }
        self.record.add_last(value.to_bits() << self.packed);
        self.packed += T::BITS;
    }

    pub(super) fn uuid(&mut self, value: &[u8; 16]) {
        uuid::to_words(value).into_iter().for_each(|word| self.record.push(word));
    }

    pub(super) fn list(&mut self, value: &'a dyn List) {
        if let Some(place) = self.lists.iter_mut().find(|place| place.is_none()) {
            *place = Some(value);
        }
    }
}

/// Reads fields. The words may have any number and values; words after the last field are ignored.
pub(super) struct Get<'a> {
    small: u64,
    words: &'a [u64],
    /// The word whose high half was read last.
    low: u64,
    /// The rest of the word of `packed` fields.
    packed: Option<u64>,
}

/// Decodes a value from the low bits of a word.
#[inline(always)]
fn narrow<T: Scalar>(bits: u64) -> Option<T> {
    T::from_bits(bits & (u64::MAX >> (64 - T::BITS)))
}

impl<'a> Get<'a> {
    #[inline(always)]
    pub(super) fn new(small: u64, words: &'a [u64]) -> Get<'a> {
        Get { small, words, low: 0, packed: None }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(*first)
    }

    /// The length and the words of a list. `unit`: how many of its elements are in a word.
    fn take(&mut self, unit: usize) -> Option<(usize, &'a [u64])> {
        let length = usize::try_from(self.next()?).ok()?;
        let (taken, rest) = self.words.split_at_checked(length.div_ceil(unit))?;
        self.words = rest;
        Some((length, taken))
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
    pub(super) fn word_at_end(&mut self) -> Option<Option<u64>> {
        Some(if self.words.is_empty() { None } else { self.next() })
    }

    #[inline(always)]
    pub(super) fn inner<T: Fields>(&mut self) -> Option<T> {
        T::get(self)
    }

    #[inline(always)]
    pub(super) fn inner_if<T: Fields>(&mut self) -> Option<Option<T>> {
        Some(if self.words.is_empty() { None } else { T::get(self) })
    }

    pub(super) fn packed<T: Scalar>(&mut self) -> Option<T> {
        let bits = self.packed.or_else(|| self.next())?;
        self.packed = Some(bits >> T::BITS);
        narrow(bits)
    }

    pub(super) fn uuid(&mut self) -> Option<[u8; 16]> {
        Some(uuid::from_words([self.next()?, self.next()?]))
    }

    pub(super) fn list<T: List>(&mut self) -> Option<T> {
        T::get(self)
    }
}

/// A list of a definition: a text, bytes, or elements of one or two words. A word with its length comes first, in bytes of a
/// text or of bytes, else in words. Bytes are padded to whole words. Writing it allocates nothing: the recorder does so in hooks.
pub(super) trait List: Debug + Sync {
    /// The value of its first word.
    fn length(&self) -> usize;

    /// Number of words after the first one.
    fn words(&self) -> usize {
        self.length()
    }

    fn word(&self, index: usize) -> u64;

    /// `None`: the words end before it.
    fn get(from: &mut Get) -> Option<Self>
    where
        Self: Sized;
}

/// The 8 bytes from `8 * index` on, as a word; zeros where there are none.
pub(crate) fn word_of(bytes: &[u8], index: usize) -> u64 {
    let from = bytes.get(8 * index..).unwrap_or_default();
    let mut word = [0; 8];
    let length = from.len().min(8);
    word[..length].copy_from_slice(&from[..length]);
    u64::from_le_bytes(word)
}

impl List for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }

    fn words(&self) -> usize {
        self.len().div_ceil(8)
    }

    fn word(&self, index: usize) -> u64 {
        word_of(self, index)
    }

    fn get(from: &mut Get) -> Option<Vec<u8>> {
        let (length, words) = from.take(8)?;
        let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.truncate(length);
        Some(bytes)
    }
}

impl List for String {
    fn length(&self) -> usize {
        self.len()
    }

    fn words(&self) -> usize {
        self.len().div_ceil(8)
    }

    fn word(&self, index: usize) -> u64 {
        word_of(self.as_bytes(), index)
    }

    /// Invalid UTF-8 is replaced with U+FFFD.
    fn get(from: &mut Get) -> Option<String> {
        let text = String::from_utf8(Vec::get(from)?);
        Some(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

/// An element of one or two words.
pub(super) trait Element: Sized + Debug + Sync {
    const WORDS: usize = 1;

    fn word(&self, index: usize) -> u64;

    fn of(words: &[u64]) -> Self;
}

impl<T: Element> List for Vec<T> {
    fn length(&self) -> usize {
        T::WORDS * self.len()
    }

    fn word(&self, index: usize) -> u64 {
        self[index / T::WORDS].word(index % T::WORDS)
    }

    fn get(from: &mut Get) -> Option<Vec<T>> {
        let elements = from.take(1)?.1.chunks_exact(T::WORDS);
        elements.remainder().is_empty().then(|| elements.map(T::of).collect())
    }
}

impl Element for u64 {
    fn word(&self, _: usize) -> u64 {
        *self
    }

    fn of(words: &[u64]) -> u64 {
        words[0]
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
        }
    };
}

pub(crate) use fields;
