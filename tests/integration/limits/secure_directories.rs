//! Pages lie in directories of one user that nobody else may write into. What could be another's is
//! refused, by the library and by the command, with the reason. As another user than the tests run
//! as, so that these places are nobody else's: that needs root.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{InteractiveProgram, Scratch, Setup, bin_dir, reachable, skip_here};

/// A user of the test's own, and the directory of its pages, which goes with it.
struct User(u32);

impl User {
    /// `None`: the tests do not run as root.
    fn new(number: u32) -> Option<User> {
        if testkit::user() != 0 {
            skip_here("secure directories: needs root, to be another user");
            return None;
        }
        let user = User(1_000_000_000 + std::process::id() % 4_000_000 * 100 + number);
        user.clear();
        Some(user)
    }

    fn directory(&self) -> PathBuf {
        format!("/dev/shm/vramtrace-{}", self.0).into()
    }

    fn clear(&self) {
        let _ = std::fs::remove_file(self.directory());
        let _ = std::fs::remove_dir_all(self.directory());
    }

    fn setup(&self) -> Setup {
        Setup::simulated().preload().user(self.0)
    }

    /// The command, run as this user, ends with this status and says this.
    #[track_caller]
    fn gets(&self, line: &str, status: i32, says: &[&str]) {
        let mut command = Command::new(reachable(&bin_dir().join("vramtrace")));
        let run = command.args(line.split(' ')).uid(self.0).gid(self.0);
        let run = run.env_remove("XDG_RUNTIME_DIR").output().unwrap();
        let printed = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(status), "{line}: {printed}");
        assert!(says.iter().all(|part| printed.contains(part)), "{line}: {says:?}: {printed}");
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.clear();
    }
}

fn give(path: &Path, user: u32, mode: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    if !path.is_symlink() {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
}

#[test]
fn a_directory_that_could_be_anothers_is_refused() {
    let Some(user) = User::new(1) else { return };
    let place = user.directory();
    let elsewhere = Scratch::reachable();
    let open = "open to others (mode 777)";
    let foreign = "belongs to user 0";
    give(&elsewhere.0, user.0, 0o700);
    for (owner, mode, says) in
        [(user.0, 0o777, open), (0, 0o755, foreign), (0, 0o700, foreign), (0, 0, "link")]
    {
        user.clear();
        if says == "link" {
            symlink(&elsewhere.0, &place).unwrap();
        } else {
            std::fs::create_dir(&place).unwrap();
            give(&place, owner, mode);
        }
        // Without a group the program runs unchanged: only its live page is missing, which a message states.
        let mut process = InteractiveProgram::start(user.setup().cap("2GiB"));
        assert_eq!(process.results("a 100, a 4000"), [0, 2], "{says}");
        let said = process.stderr();
        assert!(said.contains(says) && said.contains("ps"), "{said}");
        user.gets(&format!("cap --pid {} 1GiB", process.pid()), 2, &[says]);
        user.gets("ps", 0, &[says]);
        assert_eq!(process.result("a 1000"), 0, "{says}: nothing changed its cap");
        process.end();
        let left = std::fs::read_dir(&elsewhere.0).unwrap().count();
        assert_eq!(left, 0, "nothing was made where the link leads");
    }
}

#[test]
fn only_its_user_and_root_may_change_a_process() {
    let Some(user) = User::new(3) else { return };
    let Some(other) = User::new(4) else { return };
    let mut process = InteractiveProgram::start(user.setup());
    assert_eq!(process.result("a 1000"), 0);
    let order = format!("cap --pid {} 1GiB", process.pid());
    other.gets(&order, 2, &[&format!("belongs to user {}", user.0)]);
    assert_eq!(process.result("a 1000"), 0);
    user.gets(&order, 0, &[]);
    assert_eq!(process.result("a 1"), 2);
    // Root.
    process.scratch.text(&format!("cap --pid {} none", process.pid()));
    assert_eq!(process.result("a 1000"), 0);
}
