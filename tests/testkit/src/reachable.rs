//! Copies of files that every user can access. The repository may be below a private directory, such as
//! root's home, so programs that run as another user are copied out of it.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use crate::sim;

/// A directory of this test process in which every user can run programs.
pub fn reachable_directory() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let places = ["/tmp", "/var/tmp", "/dev/shm", "/run"].map(Path::new);
        let place = places.into_iter().filter(|place| all_enter(place)).find_map(make);
        place.expect("a directory that every user can enter, e.g. /tmp with mode 1777")
    })
}

fn all_enter(place: &Path) -> bool {
    let open = |part: &Path| part.metadata().is_ok_and(|meta| meta.mode() & 0o005 == 0o005);
    place.ancestors().all(open)
}

fn make(place: &Path) -> Option<PathBuf> {
    clear_ended(place);
    let directory = place.join(format!("{NAME}{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o755).create(&directory).ok()?;
    // The umask may have removed permissions.
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).ok()?;
    let program = directory.join("true");
    std::fs::copy("/bin/true", &program).ok()?;
    // It may be mounted with noexec.
    std::process::Command::new(program).status().ok()?;
    Some(directory)
}

const NAME: &str = "vramtrace-test-";

/// Removes the directories of test processes that have ended.
fn clear_ended(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(NAME)).map(str::to_string);
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A copy of a program or library, made once.
pub fn reachable(file: &Path) -> PathBuf {
    static COPYING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COPYING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let copy = reachable_directory().join(file.file_name().expect("a file"));
    if !copy.exists() {
        // By another process: a child that a thread of this one forks meanwhile has the file open for writing until
        // it calls exec, and the program cannot be started.
        let copied = std::process::Command::new("cp").arg(file).arg(&copy).status();
        assert!(copied.expect("cp").success(), "copy a program");
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    copy
}

/// As [`crate::sim_dir`], accessible to every user.
pub fn reachable_sim_dir() -> PathBuf {
    let copy = reachable(&sim());
    let directory = reachable_directory().join("sim");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).expect("its mode");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        // Another thread of this test process may be first.
        let _ = std::os::unix::fs::symlink(&copy, directory.join(name));
    }
    directory
}

pub fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}
