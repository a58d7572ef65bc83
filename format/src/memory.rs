//! The directory in memory of a user, on each host: pages of processes and groups, and tails of traces on file systems
//! that cannot be mapped.

/// Of this effective user. It is used only if it belongs to the user, is no link and gives others no access.
pub fn directory(user: u32) -> String {
    format!("/dev/shm/{}", name(user))
}

/// The name of a user's directory in one that users share.
pub fn name(user: u32) -> String {
    format!("vramtrace-{user}")
}

/// The user whose directory has this name.
pub fn user_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("vramtrace-")?;
    let user = digits.parse().ok()?;
    (self::name(user) == name).then_some(user)
}
