//! The names in a directory, without `opendir`, which would call the program's malloc.

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Offsets in `struct linux_dirent64`, which begins with the inode.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

#[repr(C, align(8))]
struct Entries([MaybeUninit<u8>; 2048]);

/// Calls `report` with the name and inode of each entry of an open directory, from its current position
/// on; also for `.` and `..`.
pub fn each_name(directory: i32, mut report: impl FnMut(&CStr, u64)) {
    let mut room = Entries([MaybeUninit::uninit(); 2048]);
    loop {
        // SAFETY: room of that size for the kernel's answer.
        let read = unsafe {
            let at = room.0.as_mut_ptr();
            libc::syscall(libc::SYS_getdents64, directory, at, room.0.len())
        };
        let Ok(read @ 1..) = usize::try_from(read) else { return };
        // SAFETY: the kernel wrote `read` bytes.
        let mut rest = unsafe { std::slice::from_raw_parts(room.0.as_ptr().cast::<u8>(), read) };
        while rest.len() > NAME_AT {
            let length = u16::from_le_bytes([rest[LENGTH_AT], rest[LENGTH_AT + 1]]) as usize;
            let Some(entry) = rest.get(NAME_AT..length) else { return };
            let inode = rest.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            if let Ok(name) = CStr::from_bytes_until_nul(entry) {
                report(name, inode);
            }
            rest = &rest[length..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn all_names_are_reported() {
        let scratch = format!("vramtrace-names-{}", std::process::id());
        let directory = std::env::temp_dir().join(scratch);
        std::fs::create_dir_all(&directory).unwrap();
        let mut expected: Vec<String> = (0..200).map(|n| format!("a name of a file {n}")).collect();
        for name in &expected {
            std::fs::write(directory.join(name), "").unwrap();
        }
        let open = std::fs::File::open(&directory).unwrap();
        let mut found = Vec::new();
        each_name(open.as_raw_fd(), |name, _| found.push(name.to_str().unwrap().to_string()));
        expected.extend([".".to_string(), "..".to_string()]);
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        each_name(-1, |_, _| panic!("there is no such directory"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
