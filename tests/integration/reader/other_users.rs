//! Another user may write the directory of an output: what that user puts there, at any time, makes no command write
//! anywhere else, wait, or hand its output over. Needs root, which plays both: what is owned by [`OTHER`] is the other
//! user's, and the command is the one that is attacked.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::trace_builder::training;
use testkit::{Said, Scratch, fifo, skip_here, user, vramtrace};

const OTHER: u32 = 65534;

/// `shared/` of the other user, `victim/` of root, and a trace.
struct Place(Scratch);

impl Place {
    /// `None`: without root there is no second user.
    fn new() -> Option<Place> {
        if user() != 0 {
            skip_here("files of another user need root");
            return None;
        }
        let place = Place(Scratch::reachable());
        training().write(&place.at("t.vtrace"));
        for name in ["shared", "victim"] {
            std::fs::create_dir(place.at(name)).unwrap();
        }
        place.0.write("victim/file", "theirs");
        for (name, mode) in [("victim/file", 0o640), ("shared", 0o777)] {
            std::fs::set_permissions(place.at(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        chown(place.at("shared"), Some(OTHER), Some(OTHER)).unwrap();
        Some(place)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    fn link(&self, to: &str, name: &str) {
        link(&self.0.0, to, name);
    }

    /// A command that waits is ended, which is a failure.
    fn run(&self, line: &str) -> Said {
        let mut command = std::process::Command::new("timeout");
        command.arg("60").arg(vramtrace().get_program()).args(line.split(' '));
        Said::by(command.current_dir(&self.0.0).stdin(Stdio::null()))
    }

    #[track_caller]
    fn refused(&self, line: &str, why: &str) {
        let said = self.run(line).ended(2);
        assert!(said.err.contains(why), "{line}: {}", said.err);
        self.victim_stays();
    }

    /// Nothing in root's directory was made, replaced, truncated or given another mode.
    #[track_caller]
    fn victim_stays(&self) {
        let names: Vec<_> = std::fs::read_dir(self.at("victim")).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(std::fs::read_to_string(self.at("victim/file")).unwrap(), "theirs");
        assert_eq!(self.at("victim/file").metadata().unwrap().mode() & 0o7777, 0o640);
    }
}

/// Puts a link of the other user there.
fn link(place: &Path, to: &str, name: &str) {
    let made = place.join("shared").join(format!(".{}", name.replace('/', "-")));
    symlink(to, &made).unwrap();
    lchown(&made, Some(OTHER), Some(OTHER)).unwrap();
    // Fails if a directory has the name.
    if std::fs::rename(&made, place.join(name)).is_err() {
        std::fs::remove_file(made).unwrap();
    }
}

/// A command for each way to write a file.
const WRITERS: [&str; 5] = [
    "export t.vtrace --format csv -o OUT",
    "report --html t.vtrace -o OUT",
    "pack t.vtrace -o OUT",
    "flame t.vtrace -o OUT",
    "run --out traces --json OUT -- true",
];

#[test]
fn a_link_of_another_user_is_not_followed() {
    let Some(place) = Place::new() else { return };
    let theirs = "a symbolic link of another user (uid 65534)";
    for writer in WRITERS {
        let forced = if writer.starts_with("run") { "" } else { " --force" };
        let line = |out: &str| writer.replace("OUT", out).replacen(' ', &format!("{forced} "), 1);
        for target in ["../victim/file", "../victim/new"] {
            place.link(target, "shared/o");
            place.refused(&line("shared/o"), theirs);
            std::fs::remove_file(place.at("shared/o")).unwrap();
        }
        place.link("../victim", "shared/d");
        place.refused(&line("shared/d/new"), theirs);
        place.refused(&line("shared/d/file"), theirs);
        // A link of root's to theirs.
        let _ = symlink("shared/d/file", place.at("mine"));
        place.refused(&line("mine"), theirs);
    }
    for line in [
        "export t.vtrace --format parquet -o shared/d/new",
        "run --out shared/d/new -- true",
        "run --out shared/d/new/%p.vtrace -- true",
        "demo --out shared/d/new",
        "pack t.vtrace -o shared/d/new/",
    ] {
        place.refused(line, theirs);
    }
}

#[test]
fn no_exchange_of_names_at_any_moment_lets_a_command_write_elsewhere() {
    let Some(place) = Place::new() else { return };
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The name is nothing, a link to a file, a link to nothing, in turn; and the partial directory of tables.
        let (root, ends) = (place.0.0.clone(), &ends);
        scope.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                for target in ["../victim/file", "../victim/new"] {
                    link(&root, target, "shared/o");
                    let _ = std::fs::remove_file(root.join("shared/o"));
                }
                let partial = root.join("shared/o.partial");
                if std::fs::rename(&partial, root.join("shared/moved")).is_ok() {
                    link(&root, "../victim", "shared/o.partial");
                    let _ = std::fs::remove_file(&partial);
                    let _ = std::fs::rename(root.join("shared/moved"), &partial);
                }
            }
        });
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..40 {
                let format = ["csv", "folded", "parquet"][turn % 3];
                let force = if format != "parquet" && turn % 2 == 1 { " --force" } else { "" };
                let line = format!("export t.vtrace --format {format} -o shared/o{force}");
                let said = place.run(&line);
                assert!(matches!(said.code, Some(0 | 2)), "{said:?}");
                place.victim_stays();
                for made in ["shared/o", "shared/moved", "shared/o.partial"] {
                    let _ = std::fs::remove_dir_all(place.at(made));
                }
            }
        }));
        ends.store(true, Ordering::Relaxed);
        looked.unwrap();
    });
}

#[test]
fn a_fifo_of_another_user_is_not_opened() {
    let Some(place) = Place::new() else { return };
    let at = place.at("shared/f");
    fifo(&at);
    std::fs::set_permissions(&at, PermissionsExt::from_mode(0o666)).unwrap();
    chown(&at, Some(OTHER), None).unwrap();
    // With a reader, it would get the page; without one, the command would wait.
    for reads in [false, true] {
        let mut options = std::fs::File::options();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let reader = reads.then(|| options.open(&at).unwrap());
        for line in [
            "report --html t.vtrace -o shared/f",
            "report --html t.vtrace -o shared/f --force",
            "pack t.vtrace -o shared/f",
            "pack t.vtrace -o shared/f --force",
            "run --out traces --json shared/f -- true",
        ] {
            place.refused(line, "is a FIFO of another user (uid 65534)");
        }
        if let Some(mut reader) = reader {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            assert_eq!(bytes, b"");
        }
    }
}

#[test]
fn what_another_user_lets_others_read_does_not_open_this_users_file() {
    let Some(place) = Place::new() else { return };
    let path = place.at("shared/o");
    place.0.write("shared/o", "");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    chown(&path, Some(OTHER), None).unwrap();
    place.run("report --html t.vtrace -o shared/o --force").ended(0);
    let about = path.metadata().unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (0, 0o600));
}

#[test]
fn links_of_root_and_of_this_user_are_followed_and_stay() {
    let Some(place) = Place::new() else { return };
    symlink("victim", place.at("d")).unwrap();
    symlink("d/file", place.at("mine")).unwrap();
    place.run("export t.vtrace --format csv -o mine --force").ended(0);
    assert!(place.at("mine").symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read(place.at("victim/file")).unwrap().len() > 100);
    assert_eq!(place.at("victim/file").metadata().unwrap().mode() & 0o7777, 0o640);
    place.run("export t.vtrace --format parquet -o d/tables").ended(0);
    assert!(place.at("victim/tables/blocks").is_dir());
}
