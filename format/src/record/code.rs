//! The codes of records that no row of the event table has: padding, parts, short forms,
//! definitions. Codes are never reused; a reader skips those that it does not know.

/// Fills a range in which no record fits. Its check covers word 0 alone.
pub const PAD: u8 = 0x01;
/// A piece of a record that is longer than 255 words.
pub const PART: u8 = 0x02;
/// As in the event table: its time is read apart.
pub const ANCHOR: u8 = 0x03;

/// An allocation in 32 bytes.
pub const ALLOC_SHORT: u8 = 0x10;
/// A free in 16 bytes.
pub const FREE_SHORT: u8 = 0x12;
/// The same of a framework's block.
pub const BLOCK_ALLOC_SHORT: u8 = 0x21;
pub const BLOCK_FREE_SHORT: u8 = 0x22;

/// Definitions have numbers from here on.
pub const FIRST_DEFINITION: u8 = 0x80;
pub const DEFINE_API: u8 = 0x80;
pub const DEFINE_THREAD: u8 = 0x81;
pub const DEFINE_DEVICE: u8 = 0x82;
pub const DEFINE_CONTEXT: u8 = 0x83;
pub const DEFINE_POOL: u8 = 0x84;
pub const DEFINE_SITE: u8 = 0x85;
pub const DEFINE_TEXT: u8 = 0x86;
pub const DEFINE_NOTE: u8 = 0x87;
pub const DEFINE_MODULE: u8 = 0x88;
pub const DEFINE_CODE: u8 = 0x89;
pub const DEFINE_STACK: u8 = 0x8A;
pub const DEFINE_SETTING: u8 = 0x8B;
pub const DEFINE_NAMES: u8 = 0x8C;
