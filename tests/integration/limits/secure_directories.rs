//! Pages lie in directories of one user that nobody else may write into. What could be another's is
//! refused, by the library and by the command, with the reason. As another user than the tests run
//! as, so that these places are nobody else's: that needs root.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::InteractiveProgram;
use testkit::{Program, Scratch, Setup, bin_dir, reachable, skip_here, vramtrace};

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

    fn page(&self) -> PathBuf {
        self.directory().join("group.job")
    }

    fn clear(&self) {
        let _ = std::fs::remove_file(self.directory());
        let _ = std::fs::remove_dir_all(self.directory());
    }

    /// The directory, as this user would make it.
    fn make(&self) {
        self.clear();
        std::fs::create_dir(self.directory()).unwrap();
        give(&self.directory(), self.0, 0o700);
    }

    fn setup(&self) -> Setup {
        Setup::simulated().preload().user(self.0)
    }

    /// The command, run as this user.
    fn command(&self, args: &[&str]) -> (i32, String) {
        let mut command = Command::new(reachable(&bin_dir().join("vramtrace")));
        let run = command.args(args).uid(self.0).gid(self.0).env_remove("XDG_RUNTIME_DIR");
        let run = run.output().unwrap();
        (run.status.code().unwrap(), String::from_utf8_lossy(&run.stderr).into_owned())
    }

    /// What a program in the group says at its first call, which fails.
    #[track_caller]
    fn refused(&self) -> String {
        let setup = self.setup().env("VRAMTRACE_CAP_GROUP", "job:4GiB");
        let run = Program::c("interactive").run(setup);
        assert_eq!(run.status, 98, "cuInit fails: {}", run.stderr);
        assert!(run.stderr.contains("VRAMTRACE_CAP_GROUP=job"), "{}", run.stderr);
        run.stderr
    }

    #[track_caller]
    fn group_is_refused(&self, place: &Path, shim_says: &str, command_says: &str) {
        let (status, command) = self.command(&["cap", "--group", "job", "1GiB"]);
        assert_eq!(status, 2, "{command}");
        for (printed, says) in [(self.refused(), shim_says), (command, command_says)] {
            assert!(printed.contains(place.to_str().unwrap()), "{printed}");
            assert!(printed.contains(says), "{printed}");
        }
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
    for (case, says) in [("wide", open), ("root's", foreign), ("closed", foreign), ("link", "link")]
    {
        user.clear();
        match case {
            "link" => {
                give(&elsewhere.0, user.0, 0o700);
                symlink(&elsewhere.0, &place).unwrap();
            }
            _ => std::fs::create_dir(&place).unwrap(),
        }
        match case {
            "wide" => give(&place, user.0, 0o777),
            "root's" => give(&place, 0, 0o755),
            "closed" => give(&place, 0, 0o700),
            _ => {}
        }
        user.group_is_refused(&place, says, says);
        // Without a group the program runs unchanged: only its live page is missing, which a message states.
        let mut process = InteractiveProgram::start(user.setup().cap("2GiB"));
        assert_eq!((process.result("a 100"), process.result("a 4000")), (0, 2), "{case}");
        assert!(
            process.stderr().contains(says) && process.stderr().contains("ps"),
            "{}",
            process.stderr()
        );
        let (status, printed) = user.command(&["cap", "--pid", &process.pid().to_string(), "1GiB"]);
        assert_eq!(status, 2, "{printed}");
        assert!(printed.contains(says), "{case}: {printed}");
        let (status, printed) = user.command(&["ps"]);
        assert!(status == 0 && printed.contains(says), "{case}: {printed}");
        assert_eq!(process.result("a 1000"), 0, "{case}: nothing changed its cap");
        process.end();
        let left = std::fs::read_dir(&elsewhere.0).unwrap().count();
        assert_eq!(left, 0, "nothing was made where the link leads");
    }
}

#[test]
fn a_page_that_could_be_anothers_is_refused() {
    let Some(user) = User::new(2) else { return };
    let page = user.page();
    let elsewhere = Scratch::reachable();
    let target = elsewhere.0.join("target");
    for (case, shim, command) in [
        ("wide", "open to others (mode 777)", "open to others (mode 777)"),
        ("root's", "belongs to user 0", "belongs to user 0"),
        ("link", "link", "link"),
        ("a file", "not a directory", "Not a directory"),
        ("something else", "not a group page of this version", "not a page of this version"),
    ] {
        user.make();
        match case {
            "link" => {
                std::fs::write(&target, "mine").unwrap();
                give(&target, user.0, 0o600);
                symlink(&target, &page).unwrap();
            }
            "a file" => std::fs::write(&page, "").unwrap(),
            _ => std::fs::create_dir(&page).unwrap(),
        }
        match case {
            "wide" => give(&page, user.0, 0o777),
            "root's" => give(&page, 0, 0o700),
            _ => give(&page, user.0, 0o700),
        }
        if case == "something else" {
            std::fs::write(page.join("notes"), "").unwrap();
        }
        user.group_is_refused(&page, shim, command);
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine", "nothing was written there");
}

#[test]
fn only_its_user_and_root_may_change_a_process() {
    let Some(user) = User::new(3) else { return };
    let Some(other) = User::new(4) else { return };
    let mut process = InteractiveProgram::start(user.setup());
    assert_eq!(process.result("a 1000"), 0);
    let pid = process.pid().to_string();
    let (status, printed) = other.command(&["cap", "--pid", &pid, "1GiB"]);
    assert_eq!(status, 2, "{printed}");
    assert!(printed.contains(&format!("belongs to user {}", user.0)), "{printed}");
    assert_eq!(process.result("a 1000"), 0);
    let (status, printed) = user.command(&["cap", "--pid", &pid, "1GiB"]);
    assert_eq!(status, 0, "{printed}");
    assert_eq!(process.result("a 1"), 2);
    let run = vramtrace().args(["cap", "--pid", &pid, "none"]).output().unwrap();
    assert!(run.status.success(), "root: {}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(process.result("a 1000"), 0);
}
