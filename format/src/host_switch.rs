//! The files that switch the recording off on a whole host, and when they count.

use std::path::{Path, PathBuf};

/// The file of the host. It exists: no process of the host records.
pub const HOST_FILE: &str = "/etc/vramtrace/off";
/// The file of a user, in their runtime directory (`XDG_RUNTIME_DIR`).
pub const IN_RUNTIME_DIRECTORY: &str = "vramtrace/off";

/// The file of the user whose runtime directory this is.
pub fn of_user(runtime: &Path) -> PathBuf {
    runtime.join(IN_RUNTIME_DIRECTORY)
}

/// Why a file of this name does not switch the recording off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSwitch {
    /// It is a link, a directory, or something else that is no regular file.
    #[error("it is not a regular file")]
    NotRegular,
    /// It belongs to the user with this id, who is neither root nor the user of the process.
    #[error("it belongs to user {0}: it must belong to root or to the user of the process")]
    Owner(u32),
}

/// Whether an existing file with this mode and owner, by `lstat`, switches the recording of `user`'s processes off.
/// What it contains does not matter.
pub fn check(mode: u32, owner: u32, user: u32) -> Result<(), NoSwitch> {
    // S_IFMT and S_IFREG.
    match (mode & 0o170000 == 0o100000, owner == 0 || owner == user) {
        (false, _) => Err(NoSwitch::NotRegular),
        (true, false) => Err(NoSwitch::Owner(owner)),
        (true, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_of_root_or_the_user_counts() {
        assert_eq!(check(0o100644, 0, 1000), Ok(()));
        assert_eq!(check(0o100000, 1000, 1000), Ok(()));
        assert_eq!(check(0o100666, 1001, 1000), Err(NoSwitch::Owner(1001)));
        // For root, a file of another user does not count either.
        assert_eq!(check(0o100644, 1000, 0), Err(NoSwitch::Owner(1000)));
        for other in [0o120777, 0o040755, 0o010644, 0o140755, 0o020600, 0o060600] {
            assert_eq!(check(other, 0, 0), Err(NoSwitch::NotRegular), "{other:o}");
        }
    }
}
