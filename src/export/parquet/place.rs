//! The directory of an export. It gets its name when it is complete: until then it is `NAME.partial` beside it. Nothing
//! that is there is replaced.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::files::Directory;

#[derive(Debug)]
pub(super) struct ExportDirectory {
    /// The directory that holds both names.
    above: Directory,
    name: OsString,
    partial_name: OsString,
    partial: Directory,
    kept: bool,
}

impl ExportDirectory {
    /// Makes the directory to write into. An error if there is something at `to`.
    pub(super) fn new(to: &Path) -> io::Result<ExportDirectory> {
        let (above, name, there) = Directory::end_of(to).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                io::Error::new(error.kind(), format!("{error} (its directory must exist)"))
            }
            _ => error,
        })?;
        if there.is_some() || name == "." {
            return Err(exists());
        }
        let mut partial_name = name.clone();
        partial_name.push(".partial");
        above.make_directory(&partial_name, 0o700).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => io::Error::other(format!(
                "{} exists: an export into it is running or was killed; remove it, or give another name",
                to.with_file_name(&partial_name).display()
            )),
            _ => error,
        })?;
        let partial = above.own_directory(&partial_name)?;
        Ok(ExportDirectory { above, name, partial_name, partial, kept: false })
    }

    /// Where to write.
    pub(super) fn directory(&self) -> &Directory {
        &self.partial
    }

    /// Gives the directory its name.
    pub(super) fn keep(mut self) -> io::Result<()> {
        self.above.check(&self.partial_name, self.partial.file())?;
        let rename = |replace| self.above.rename(&self.partial_name, &self.name, replace);
        match rename(false) {
            // Not all file systems can refuse to replace; none replaces a directory that is not empty.
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) =>
            {
                rename(true)?;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists()),
            renamed => renamed?,
        }
        self.kept = true;
        self.above.check(&self.name, self.partial.file())
    }
}

fn exists() -> io::Error {
    io::Error::other("exists: give a directory that does not exist")
}

impl Drop for ExportDirectory {
    fn drop(&mut self) {
        if !self.kept && self.above.has(&self.partial_name, self.partial.file()) {
            // Follows no link, neither here nor below.
            let _ = std::fs::remove_dir_all(self.above.path_to(&self.partial_name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn a_directory_is_there_when_it_is_complete_and_replaces_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let why = |name: &str| ExportDirectory::new(&at(name)).unwrap_err().to_string();
        let place = ExportDirectory::new(&at("out")).unwrap();
        place.directory().create("part".as_ref()).unwrap().write_all(b"1").unwrap();
        assert!(!at("out").exists());
        assert!(why("out").contains("out.partial exists"), "{}", why("out"));
        place.keep().unwrap();
        assert_eq!(fs::read_to_string(at("out/part")).unwrap(), "1");
        assert!(why("out").contains("exists: give"));
        fs::write(at("file"), "").unwrap();
        assert!(why("file").contains("exists: give"));
        assert!(why("none/out").contains("must exist"));
        ExportDirectory::new(&at("slash/")).unwrap().keep().unwrap();
        assert!(at("slash").is_dir());
        // What was not kept is removed.
        drop(ExportDirectory::new(&at("failed")).unwrap());
        assert!(!at("failed").exists() && !at("failed.partial").exists());
    }

    #[test]
    fn what_came_meanwhile_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        let place = ExportDirectory::new(&out).unwrap();
        fs::create_dir(&out).unwrap();
        assert!(place.keep().unwrap_err().to_string().contains("exists: give"));
        assert!(out.exists() && !out.with_file_name("out.partial").exists());
    }
}
