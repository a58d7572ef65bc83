//! The page of a group.

#[path = "../../../format/src/pages/group.rs"]
pub mod group;
#[path = "../../../format/src/pages/member.rs"]
pub mod member;

/// Two devices and two members.
mod group_layout {
    pub const GROUP_DEVICES: usize = 2;
    pub const GROUP_MEMBERS: usize = 2;
    pub const NAME: std::ops::Range<usize> = 5..6;
    pub const DEVICES_AT: usize = 6;
    pub const DEVICE_WORDS: usize = 8;
    pub const MEMBERS_AT: usize = DEVICES_AT + DEVICE_WORDS * GROUP_DEVICES;
    pub const REQUESTS_AT: usize = MEMBERS_AT + 2 * GROUP_MEMBERS;
    pub const COUNTS_AT: usize = REQUESTS_AT + GROUP_MEMBERS;
    pub const GROUP_WORDS: usize = COUNTS_AT + 2 * GROUP_DEVICES * GROUP_MEMBERS;
}
