//! The names in a directory, without `opendir`, which would call the program's malloc.

use super::errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

/// Offsets in `struct linux_dirent64`, which begins with the inode.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// Calls `report` with the name and inode of each entry of an open directory, from its current position
/// on; also for `.` and `..`. It must not be read elsewhere through this descriptor. `Err`: errno.
pub fn each_name(directory: impl AsFd, mut report: impl FnMut(&CStr, u64)) -> Result<(), i32> {
    let mut room = [0u8; 2048];
    loop {
        let (at, bytes, directory) = (room.as_mut_ptr(), room.len(), directory.as_fd().as_raw_fd());
        // SAFETY: room of that size for the kernel's answer, which needs no alignment.
        let read = unsafe { libc::syscall(libc::SYS_getdents64, directory, at, bytes) };
        let mut rest = match usize::try_from(read) {
            Ok(0) => return Ok(()),
            Ok(read) => &room[..read],
            Err(_) => return Err(errno::get()),
        };
        while rest.len() > NAME_AT {
            let length = u16::from_le_bytes([rest[LENGTH_AT], rest[LENGTH_AT + 1]]) as usize;
            let Some(entry) = rest.get(NAME_AT..length) else { break };
            let inode = rest.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            if let Ok(name) = CStr::from_bytes_until_nul(entry) {
                report(name, inode);
            }
            rest = &rest[length..];
        }
    }
}
