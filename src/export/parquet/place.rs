//! The directory of an export. It gets its name when it is complete: until then it is `NAME.partial` beside it. Nothing
//! that is there is replaced.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Place {
    to: PathBuf,
    partial: PathBuf,
    kept: bool,
}

impl Place {
    /// Makes the directory to write into. An error if there is something at `to`, other than an empty directory.
    pub(super) fn new(to: &Path) -> io::Result<Place> {
        // Through a link, and `.`, to where the directory is.
        let to = fs::canonicalize(to).unwrap_or_else(|_| to.to_path_buf());
        let Some(name) = to.file_name() else {
            return Err(io::Error::other(
                "is no name of a directory: give one that does not exist",
            ));
        };
        match fs::read_dir(&to).map(|mut entries| entries.next().is_some()) {
            Ok(false) => {}
            Ok(true) => {
                return Err(io::Error::other(
                    "is not empty: give a directory that does not exist, or an empty one",
                ));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(io::Error::other(
                    "is a file: give a directory that does not exist, or an empty one",
                ));
            }
            Err(error) => return Err(error),
        }
        let mut partial_name = name.to_os_string();
        partial_name.push(".partial");
        let partial = to.with_file_name(partial_name);
        match DirBuilder::new().mode(0o700).create(&partial) {
            Ok(()) => Ok(Place { to, partial, kept: false }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(io::Error::other(format!(
                    "{} exists: an export into it is running or was killed; remove it, or give another name",
                    partial.display()
                )))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(io::Error::new(error.kind(), format!("{error} (its directory must exist)")))
            }
            Err(error) => Err(error),
        }
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the directory its name.
    pub(super) fn keep(mut self) -> io::Result<()> {
        fs::rename(&self.partial, &self.to).map_err(|error| match error.kind() {
            ErrorKind::DirectoryNotEmpty => io::Error::other("is not empty any more"),
            ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => {
                io::Error::other("is a mount point: give a directory that does not exist, below it")
            }
            _ => error,
        })?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_there_when_it_is_complete_and_replaces_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let why = |name: &str| Place::new(&at(name)).unwrap_err().to_string();
        let place = Place::new(&at("out")).unwrap();
        fs::write(place.path().join("part"), "1").unwrap();
        assert!(!at("out").exists());
        assert!(why("out").contains("out.partial exists"), "{}", why("out"));
        place.keep().unwrap();
        assert_eq!(fs::read_to_string(at("out/part")).unwrap(), "1");
        assert!(why("out").contains("is not empty"));
        fs::write(at("file"), "").unwrap();
        assert!(why("file").contains("is a file"));
        assert!(why("none/out").contains("must exist"));
        fs::create_dir(at("empty")).unwrap();
        std::os::unix::fs::symlink("empty", at("link")).unwrap();
        Place::new(&at("link")).unwrap().keep().unwrap();
        assert!(!at("empty.partial").exists() && at("link").is_dir());
        // What was not kept is removed.
        drop(Place::new(&at("failed")).unwrap());
        assert!(!at("failed").exists() && !at("failed.partial").exists());
    }

    #[test]
    fn what_came_meanwhile_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        let place = Place::new(&out).unwrap();
        fs::create_dir(&out).unwrap();
        fs::write(out.join("other"), "1").unwrap();
        assert!(place.keep().unwrap_err().to_string().contains("not empty"));
        assert!(out.join("other").exists() && !out.with_file_name("out.partial").exists());
    }
}
