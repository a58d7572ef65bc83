//! The kind numbers of records: the one place where they stand. Numbers are never reused; a
//! reader skips those that it does not know.

/// Fills a range in which no record fits. Its check covers word 0 alone.
pub const PAD: u8 = 0x01;
/// A piece of a record that is longer than 255 words.
pub const PART: u8 = 0x02;
pub const ANCHOR: u8 = 0x03;

/// The 32-byte form.
pub const ALLOC: u8 = 0x10;
pub const ALLOC_WIDE: u8 = 0x11;
/// The 16-byte form.
pub const FREE: u8 = 0x12;
pub const FREE_WIDE: u8 = 0x13;
pub const FREE_FAILED: u8 = 0x14;
pub const REFUSED: u8 = 0x15;
pub const MAP: u8 = 0x16;
pub const UNMAP: u8 = 0x17;
pub const POOL_STATE: u8 = 0x18;
pub const GRAPH_STATE: u8 = 0x19;
pub const CONTEXT_CREATED: u8 = 0x1A;
pub const CONTEXT_DESTROYED: u8 = 0x1B;
pub const SAMPLE: u8 = 0x1C;
pub const CAP: u8 = 0x1D;
pub const LIMIT: u8 = 0x1E;
pub const MARK: u8 = 0x1F;
pub const COUNTERS: u8 = 0x20;
/// As ALLOC and FREE, of a framework's block.
pub const BLOCK_ALLOC: u8 = 0x21;
pub const BLOCK_FREE: u8 = 0x22;
pub const CACHE_STATE: u8 = 0x23;
pub const CACHE_OOM: u8 = 0x24;
pub const SHARED: u8 = 0x25;
pub const BLOCK_CHANGE: u8 = 0x26;
pub const CAP_POLICY: u8 = 0x27;

pub const CHECKPOINT_BEGIN: u8 = 0x28;
pub const CHECKPOINT_ALLOC: u8 = 0x29;
pub const CHECKPOINT_MAP: u8 = 0x2A;
pub const CHECKPOINT_POOL: u8 = 0x2B;
pub const CHECKPOINT_GRAPH: u8 = 0x2C;
pub const CHECKPOINT_CONTEXT: u8 = 0x2D;
pub const CHECKPOINT_TOTALS: u8 = 0x2E;
pub const CHECKPOINT_COUNTERS: u8 = 0x2F;
pub const CHECKPOINT_END: u8 = 0x30;

pub const GROUP_CAP: u8 = 0x31;
pub const SOFT_LIMIT: u8 = 0x32;
pub const POST_MORTEM: u8 = 0x33;
pub const NEIGHBOUR: u8 = 0x34;
pub const TOOK: u8 = 0x35;
pub const CHECKPOINT_TOOK: u8 = 0x36;

pub const STOPPED: u8 = 0x38;
pub const ENDED: u8 = 0x39;
pub const DRIFT: u8 = 0x3A;
pub const PASSED_THROUGH: u8 = 0x3B;

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
