//! Where the words of a group's page stand ([`super::group`]). `models/` has smaller ones.

/// The MIG devices of 16 cards, seven each, and some more.
pub const GROUP_DEVICES: usize = 128;
pub const GROUP_MEMBERS: usize = 256;
pub const DEVICES_AT: usize = 16;
pub const DEVICE_WORDS: usize = 8;
pub const MEMBERS_AT: usize = DEVICES_AT + DEVICE_WORDS * GROUP_DEVICES;
pub const ASKS_AT: usize = MEMBERS_AT + 2 * GROUP_MEMBERS;
pub const COUNTS_AT: usize = 2048;
pub const GROUP_WORDS: usize = COUNTS_AT + 2 * GROUP_DEVICES * GROUP_MEMBERS;

const _: () = assert!(MEMBERS_AT == 1040 && ASKS_AT == 1552 && GROUP_WORDS == 67584);
