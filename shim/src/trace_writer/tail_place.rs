//! The place of the tail. It is beside the trace where a store to mapped memory cannot fail. Other file
//! systems (btrfs, NFS, Lustre, FUSE) need room or a server at the time of the store: there it is in the
//! user's directory in memory. Readers find it by the tag in the trace's header.

use super::failure::Failure;
use super::named_file::NamedFile;
use crate::runtime::directory;
use crate::runtime::fallible::TryPush;
use crate::runtime::private_table::{Opened, Table};
use crate::runtime::{secure_dir, system};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vramtrace_format::{StopReason, memory, tail};

const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const TMPFS: u64 = 0x0102_1994;
const OVERLAY: u64 = 0x794C_7630;

/// Most bytes of tails of processes that have ended, and most entries of the directory that are looked
/// at for them.
const DEAD_MOST: u64 = 256 << 20;
const LOOKED_AT: usize = 1024;

/// Creates the file beside the trace.
pub fn beside<'t>(
    table: &'t Table,
    trace: &Path,
    tag: u64,
) -> Result<(NamedFile, Opened<'t>), Failure> {
    let file = trace.file_name().unwrap_or_default();
    let path = trace.with_file_name(OsStr::from_bytes(&tail::name(file.as_bytes(), tag)));
    create(table, &path)
}

/// Creates the file in the directory in memory. Before that, tails of ended processes that take too much
/// of it are removed. `None`: there is no such directory, or it is not safe.
pub fn in_memory(table: &Table, tag: u64) -> Option<(NamedFile, Opened<'_>)> {
    let path = memory::directory(secure_dir::user());
    let directory = secure_dir::directory(table, path.as_bytes()).ok()?;
    let most = (Room::of(&directory)?.all / 4).min(DEAD_MOST);
    remove_dead(table, &directory, most);
    create(table, &Path::new(&path).join(tail::name_end(tag))).ok()
}

/// Its mode keeps its owner from truncating it by mistake.
fn create<'t>(table: &'t Table, path: &Path) -> Result<(NamedFile, Opened<'t>), Failure> {
    NamedFile::create(table, path.to_path_buf(), 0o400)
}

/// Only filesystems that keep blocks allocated in advance are mapped: there a store cannot fail on a
/// full disk. Copy-on-write filesystems need new blocks for a page that was written back, and a store
/// could raise SIGBUS (btrfs, also below an overlay; it is recognised by a count of 0 inodes).
///
/// True: on a disk.
pub fn is_mappable(file: &Opened) -> Option<bool> {
    let info = system::fstatfs(file)?;
    match info.f_type as u64 & 0xFFFF_FFFF {
        TMPFS => Some(false),
        EXT | XFS => Some(true),
        OVERLAY if info.f_files != 0 => Some(true),
        _ => None,
    }
}

/// Memory is taken only while half of its file system stays free: the program uses it too, and a store
/// of its own that finds no room ends it (SIGBUS). Docker gives 64 MiB.
pub fn leaves_half(file: &Opened, bytes: u64) -> Result<(), Failure> {
    match Room::of(file) {
        Some(room) if room.leaves_half(bytes) => Ok(()),
        _ => Err(Failure { reason: StopReason::DiskFull, errno: libc::ENOSPC }),
    }
}

/// Bytes of a file system. `all` is 0 if it has no limit.
struct Room {
    all: u64,
    free: u64,
}

impl Room {
    fn of(file: &Opened) -> Option<Room> {
        let info = system::fstatfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(info.f_bsize as u64);
        Some(Room { all: bytes(info.f_blocks), free: bytes(info.f_bavail) })
    }

    fn leaves_half(&self, bytes: u64) -> bool {
        self.all == 0 || self.free.saturating_sub(bytes) >= self.all / 2
    }
}

/// The tail of a process that has ended.
struct Dead {
    name: [u8; NAME],
    modified: (i64, i64),
    bytes: u64,
}

/// Bytes of a name, with the zero at its end.
const NAME: usize = 23;

impl Dead {
    /// `None`: it is in use, or it is no tail of this user's.
    fn of(table: &Table, directory: &Opened, name: &CStr) -> Option<Dead> {
        let bytes = name.to_bytes_with_nul();
        let file = secure_dir::open(table, directory, name, libc::O_RDONLY).ok()?;
        let about = secure_dir::checked_stat(&file).ok()?;
        let is_plain = about.st_mode & libc::S_IFMT == libc::S_IFREG && about.st_nlink == 1;
        // One that has just been created has no contents until it has its lock.
        if !is_plain || about.st_blocks == 0 || !is_unlocked(&file) {
            return None;
        }
        Some(Dead {
            name: bytes.try_into().ok()?,
            modified: (about.st_mtime, about.st_mtime_nsec),
            bytes: about.st_blocks as u64 * 512,
        })
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.name).unwrap_or_default()
    }
}

/// A process holds a lock on its tail. A reader that writes one into its trace does too.
fn is_unlocked(file: &Opened) -> bool {
    // The lock goes when the file is closed.
    system::flock(file, libc::LOCK_SH | libc::LOCK_NB)
}

/// Removes the oldest tails of ended processes, until those that are left have at most this many bytes.
fn remove_dead(table: &Table, directory: &Opened, most: u64) {
    let (mut looked_at, mut dead) = (0, Vec::new());
    let _ = directory::each_name(directory, |name, _| {
        if looked_at == LOOKED_AT || !tail::is_memory_name(name.to_bytes()) {
            return;
        }
        looked_at += 1;
        if let Some(one) = Dead::of(table, directory, name) {
            // Without memory for the list, it is removed another time.
            let _ = dead.try_push(one);
        }
    });
    dead.sort_unstable_by_key(|one| one.modified);
    let mut bytes: u64 = dead.iter().map(|one| one.bytes).sum();
    for one in dead {
        if bytes <= most {
            return;
        }
        system::unlink(directory, one.name());
        bytes -= one.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::private_table;
    use crate::trace_writer::tests::Scratch;
    use std::fs::{File, Permissions, set_permissions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    #[test]
    fn half_of_the_memory_stays_free() {
        let room = Room { all: 64 << 20, free: 34 << 20 };
        assert!(room.leaves_half(2 << 20));
        assert!(!room.leaves_half((2 << 20) + 1));
        assert!(Room { all: 0, free: 0 }.leaves_half(1 << 30), "no limit");
    }

    #[test]
    fn the_oldest_tails_of_ended_processes_go_and_nothing_else() {
        let scratch = Scratch::below(Path::new("/dev/shm"), "dead-tails");
        set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
        let at = |name: &str| scratch.path().join(name);
        let tail = |tag: u64, age: u64, bytes: usize| {
            let path = scratch.path().join(tail::name_end(tag));
            std::fs::write(&path, vec![1; bytes]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
            file
        };
        for tag in 1..=4 {
            tail(tag, 100 - tag, 1 << 20);
        }
        let running = tail(5, 1000, 1 << 20);
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { libc::flock(running.as_raw_fd(), libc::LOCK_EX) }, 0);
        tail(6, 1000, 0);
        std::fs::write(at(".keep.0000000000000007.tail"), vec![1; 1 << 20]).unwrap();
        symlink(at(".keep.0000000000000007.tail"), at(&tail::name_end(8))).unwrap();
        std::fs::create_dir(at(&tail::name_end(9))).unwrap();
        tail(10, 1000, 1 << 20);
        set_permissions(at(&tail::name_end(10)), Permissions::from_mode(0o644)).unwrap();
        let before = scratch.names();
        let path = scratch.path().as_os_str().as_bytes();
        let remove = |most: u64| {
            private_table::run(|table| {
                remove_dead(table, &secure_dir::directory(table, path).unwrap(), most)
            })
            .unwrap();
        };
        remove(4 << 20);
        assert_eq!(scratch.names(), before);
        remove((3 << 20) - 1);
        let removed = [tail::name_end(1), tail::name_end(2)];
        let left: Vec<String> = before.into_iter().filter(|name| !removed.contains(name)).collect();
        assert_eq!(scratch.names(), left);
    }
}
