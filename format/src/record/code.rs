//! Record codes that are not in the event table: padding, parts, short forms and definitions. Codes are never reused. A
//! reader skips codes that it does not know.

/// Padding: fills words that hold no record. Its check covers word 0 only.
pub const PAD: u8 = 0x01;
/// A part of a definition that is longer than 255 words.
pub const PART: u8 = 0x02;
/// [`crate::Event::Anchor`], also in the event table. The reader decodes its time separately.
pub const ANCHOR: u8 = 0x03;

/// An allocation in 32 bytes.
pub const ALLOC_SHORT: u8 = 0x10;
/// A free in 16 bytes.
pub const FREE_SHORT: u8 = 0x12;
/// An allocation of a framework's block in 32 bytes.
pub const BLOCK_ALLOC_SHORT: u8 = 0x21;
/// A free of a framework's block in 16 bytes.
pub const BLOCK_FREE_SHORT: u8 = 0x22;

/// Definitions have this code or a greater one.
pub const FIRST_DEFINITION: u8 = 0x80;
/// Codes of the table of definitions, for [`crate::Lookup::early`].
pub const DEFINE_CODE: u8 = 0x89;
pub const DEFINE_STACK: u8 = 0x8A;
