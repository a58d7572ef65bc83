//! Word offsets in a group's page ([`super::group`]). `models/` has a smaller layout.

use crate::policy::NAME_MOST;
use std::ops::Range;

/// The MIG devices of 16 GPUs with seven each are 112.
pub const GROUP_DEVICES: usize = 128;
/// Processes of a group.
pub const GROUP_MEMBERS: usize = 256;
pub(super) const NAME: Range<usize> = 5..5 + NAME_MOST / 8;
pub(super) const DEVICES_AT: usize = 16;
pub(super) const DEVICE_WORDS: usize = 8;
pub(super) const MEMBERS_AT: usize = DEVICES_AT + DEVICE_WORDS * GROUP_DEVICES;
/// One word for each member.
pub(super) const REQUESTS_AT: usize = MEMBERS_AT + 2 * GROUP_MEMBERS;
/// Two words for each device and member.
pub(super) const COUNTS_AT: usize = 2048;
/// Length of the page, in words.
pub const GROUP_WORDS: usize = COUNTS_AT + 2 * GROUP_DEVICES * GROUP_MEMBERS;

const _: () = assert!(MEMBERS_AT == 1040 && REQUESTS_AT == 1552 && GROUP_WORDS == 67584);
