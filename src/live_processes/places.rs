//! Where live pages are: directories that the environment names, and the one in /dev/shm.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use vramtrace_format::memory;
use vramtrace_reader::files::Directory;

use super::PageDirectory;

/// The directories that the environment of a process names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageLocations {
    /// `VRAMTRACE_LIVE_DIR`: the users' directories are in it.
    pub given: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`, of one user.
    pub runtime: Option<PathBuf>,
}

impl PageLocations {
    /// `variable`: the value of a variable of the environment.
    pub fn from(variable: impl Fn(&str) -> Option<OsString>) -> PageLocations {
        let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        PageLocations { given: path("VRAMTRACE_LIVE_DIR"), runtime: path("XDG_RUNTIME_DIR") }
    }

    pub fn of_environment() -> PageLocations {
        PageLocations::from(|name| std::env::var_os(name))
    }

    /// The directories in which processes of a user put their pages.
    pub fn of(&self, user: u32) -> Vec<PathBuf> {
        let given = self.given.as_ref().map(|given| given.join(memory::name(user)));
        let runtime = self.runtime.as_ref().map(|runtime| runtime.join("vramtrace"));
        let shared = PageDirectory::shared_path(user);
        given.into_iter().chain(runtime).chain([shared]).collect()
    }

    /// Those of all users, with the user whose each is: for root.
    pub fn of_all(&self) -> Vec<(PathBuf, u32)> {
        let shared = PageDirectory::shared_path(0);
        let of_users = [self.given.as_deref(), shared.parent()].into_iter().flatten();
        let mut all: Vec<(PathBuf, u32)> =
            of_users.flat_map(|place| users_in(place, memory::user_of)).collect();
        let own = self.runtime.as_ref().map(|runtime| (runtime.join("vramtrace"), 0));
        all.extend(own);
        let sessions = users_in(Path::new("/run/user"), |name| name.parse().ok());
        all.extend(sessions.into_iter().map(|(path, user)| (path.join("vramtrace"), user)));
        all.sort();
        all.dedup();
        all
    }
}

/// What is in a directory under the names of users.
fn users_in(directory: &Path, user_of: impl Fn(&str) -> Option<u32>) -> Vec<(PathBuf, u32)> {
    let names = Directory::at(directory).and_then(|opened| opened.names().map(Vec::from_iter));
    let of_user = |name: OsString| Some((directory.join(&name), user_of(name.to_str()?)?));
    names.unwrap_or_default().into_iter().filter_map(of_user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_user_and_of_all() {
        let place = tempfile::tempdir().unwrap();
        for name in ["vramtrace-7", "vramtrace-07", "vramtrace-x", "other"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        let path = place.path().as_os_str().to_owned();
        let places = PageLocations::from(|name| match name {
            "VRAMTRACE_LIVE_DIR" => Some(path.clone()),
            _ => Some("relative".into()),
        });
        let given = place.path().join("vramtrace-7");
        assert_eq!(places.of(7), [given.clone(), "/dev/shm/vramtrace-7".into()]);
        let here = |(path, _): &(PathBuf, u32)| path.starts_with(place.path());
        let found: Vec<_> = places.of_all().into_iter().filter(here).collect();
        assert_eq!(found, [(given, 7)]);
    }
}
