//! Whose a running process is.

use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;

/// The user of a process. `None`: it has ended, or is not visible from this pid namespace.
pub fn user_of(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The name of a user; the number of one without a name.
pub fn user_name(user: u32) -> String {
    let mut text = [0 as libc::c_char; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: a struct and a buffer of our own; `found` points to the struct, whose name is in the buffer.
    let name = unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        libc::getpwuid_r(user, &mut entry, text.as_mut_ptr(), text.len(), &mut found);
        (!found.is_null()).then(|| CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned())
    };
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| user.to_string())
}

/// Whether this process is in the first pid namespace of the machine, whose pids NVML lists.
pub fn is_in_first_namespace() -> bool {
    // PROC_PID_INIT_INO of the kernel.
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|about| about.ino() == 0xeffffffc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_name_or_their_number() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(3_999_999_999), "3999999999");
        assert_eq!(user_of(std::process::id()), Some(super::super::process::user()));
        assert_eq!(user_of(u32::MAX), None);
    }
}
