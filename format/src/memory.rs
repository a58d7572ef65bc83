//! The directory in memory of a user, on each host: pages of processes and groups, and tails of traces on file systems
//! that cannot be mapped.

/// Of this effective user. It is used only if it belongs to the user, is no link and gives others no access.
pub fn directory(user: u32) -> String {
    format!("/dev/shm/vramtrace-{user}")
}
