//! A file that the command writes. A regular file gets its name when it is complete, so that no partial file exists and
//! nothing stays of one that could not be written. Devices, FIFOs and open descriptors (`/dev/stdout`, `>(...)` of a
//! shell) are written directly.
//!
//! The path is followed once ([`walk`]): from then on all that happens is relative to the opened directory, where names
//! are given and links never followed. What another user put there is no target: a FIFO or a device is written only if that
//! user cannot have chosen it. A file is never overwritten in place.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::directory::Directory;
use super::walk::{DirectoryEntry, End, is_trusted, walk};
use super::{path_of, random, set_mode};

/// An output whose path was followed and checked.
#[derive(Debug)]
pub struct Output {
    target: Target,
    /// An existing regular file may be replaced.
    force: bool,
}

#[derive(Debug)]
enum Target {
    /// A regular file, existing or new, after all symbolic links.
    File(DirectoryEntry),
    /// A descriptor that is open in this process.
    Descriptor(RawFd),
    /// A device or FIFO, opened with O_PATH.
    Device(File),
}

impl Output {
    /// `force`: an existing regular file may be replaced, a block device overwritten. An error that is not the
    /// system's says what is wrong with the path.
    pub fn new(path: &Path, force: bool) -> io::Result<Output> {
        let refused = |why: &str| Err(io::Error::other(why));
        let open = descriptor_number(path).map(|number| Ok(End::Descriptor(number)));
        let place = match open.unwrap_or_else(|| walk(path, None))? {
            End::Descriptor(number) => {
                return Ok(Output { target: Target::Descriptor(number), force });
            }
            End::At(place) => place,
        };
        let about = place.there.as_ref().map(File::metadata).transpose()?;
        let target = match (about, place) {
            (Some(about), _) if about.is_dir() => return refused("is a directory: give a file"),
            (Some(about), DirectoryEntry { there: Some(there), .. }) if !about.is_file() => {
                if !is_trusted(&about) && !OF_EVERYBODY.contains(&about.rdev()) {
                    let what = if about.file_type().is_fifo() { "FIFO" } else { "device" };
                    let owner = about.uid();
                    return refused(&format!(
                        "is a {what} of another user (uid {owner}): give another name"
                    ));
                }
                if about.file_type().is_block_device() && !force {
                    return refused("is a block device: --force writes over what is on it");
                }
                Target::Device(there)
            }
            (about, place) if !force && (about.is_some() || place.is_link) => {
                return refused("exists: give another name, or --force to replace it");
            }
            (_, place) => Target::File(place),
        };
        Ok(Output { target, force })
    }

    /// A regular file, existing or new.
    pub fn is_regular(&self) -> bool {
        matches!(self.target, Target::File(_))
    }

    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Descriptor(libc::STDOUT_FILENO))
    }

    /// Metadata of the target after all links. `None`: it does not exist yet.
    pub fn metadata(&self) -> Option<Metadata> {
        match &self.target {
            Target::File(place) => place.there.as_ref()?.metadata().ok(),
            Target::Descriptor(number) => duplicate(*number).ok()?.metadata().ok(),
            Target::Device(found) => found.metadata().ok(),
        }
    }

    /// Finds out now whether a new file can be made. Nothing stays.
    pub fn probe(&self) -> io::Result<()> {
        match &self.target {
            Target::File(DirectoryEntry { directory, there: None, .. }) => {
                New::inside(directory).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Writes a seekable file, or, if the target is none, into what is open.
    pub fn write<T>(&self, write: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        match &self.target {
            Target::File(place) => write_complete(place, self.force, write),
            Target::Descriptor(number) => write(&duplicate(*number)?),
            // Root or this user made it, and its owner decides who reads: opening may wait for that.
            Target::Device(found) => {
                let mut options = OpenOptions::new();
                write(&options.write(true).custom_flags(libc::O_NOCTTY).open(path_of(found))?)
            }
        }
    }
}

/// /dev/null and /dev/tty, whose owner is not known in a user namespace without root.
const OF_EVERYBODY: [u64; 2] = [libc::makedev(1, 3), libc::makedev(5, 0)];

/// Writes a file of the place's directory, which gets its name when it is complete.
fn write_complete<T>(
    place: &DirectoryEntry,
    force: bool,
    write: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    let new = New::inside(&place.directory)?;
    // What another user lets others read is not that of a file of this user.
    let about = place.there.as_ref().map(File::metadata).transpose()?;
    if let Some(about) = about.filter(is_trusted) {
        set_mode(&new.file, about.mode() & 0o777)?;
    }
    let written = write(&new.file)?;
    new.keep(&place.name, force)?;
    Ok(written)
}

/// Replaces a file, or what else has its name, atomically by one of this text and mode. A link is replaced, not followed.
pub fn put(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let (directory, name) = Directory::of(path)?;
    let mut new = New::inside(&directory)?;
    new.file.write_all(text)?;
    set_mode(&new.file, mode)?;
    new.keep(name, true)
}

/// A new file of mode 0600.
struct New<'d> {
    directory: &'d Directory,
    file: File,
    /// `None`: nothing stays of it if the command is killed. Not all file systems have files without names.
    name: Option<OsString>,
}

impl New<'_> {
    fn inside(directory: &Directory) -> io::Result<New<'_>> {
        if let Ok(file) = directory.open_at(".".as_ref(), OFlags::RDWR | OFlags::TMPFILE) {
            return Ok(New { directory, file, name: None });
        }
        let (name, file) = unused_name(|name| directory.create(name))?;
        Ok(New { directory, file, name: Some(name) })
    }

    /// Gives the file its name; with `force` in place of what has it, which is never followed.
    fn keep(mut self, name: &OsStr, force: bool) -> io::Result<()> {
        let linked = self.directory.link(&self.file, name);
        match (&linked, &self.name) {
            (Err(error), _) if error.kind() == ErrorKind::AlreadyExists && force => {}
            // The file system has no second names.
            (Err(error), Some(_)) if error.kind() != ErrorKind::AlreadyExists => {}
            _ => return linked,
        }
        let own = match self.name.clone() {
            Some(own) => own,
            // A name cannot be given in place of another: the file gets one of its own before.
            None => unused_name(|own| self.directory.link(&self.file, own))?.0,
        };
        self.name = Some(own.clone());
        self.directory.check(&own, &self.file)?;
        self.directory.rename(&own, name, force)?;
        self.name = None;
        self.directory.check(name, &self.file)
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = self.directory.remove(name);
        }
    }
}

/// Makes something of a random name.
fn unused_name<T>(make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
    loop {
        let name = OsString::from(format!(".vramtrace-{:016x}", u64::from_ne_bytes(random()?)));
        match make(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (name, made)),
        }
    }
}

/// The number of a path such as `/dev/stdout`, which is one whoever owns the links of /dev.
fn descriptor_number(path: &Path) -> Option<RawFd> {
    let path = path.to_str()?;
    match path {
        "-" | "/dev/stdout" => Some(libc::STDOUT_FILENO),
        "/dev/stderr" => Some(libc::STDERR_FILENO),
        _ => {
            ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|at| path.strip_prefix(at)?.parse().ok())
        }
    }
}

fn duplicate(number: RawFd) -> io::Result<File> {
    // SAFETY: touches no memory; a number that is no descriptor is an error. A new one is nobody else's.
    unsafe {
        match libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) {
            -1 => Err(io::Error::last_os_error()),
            new => Ok(File::from_raw_fd(new)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A directory in which somebody changes names, and one with a file that must stay.
    struct Shared {
        place: tempfile::TempDir,
    }

    impl Shared {
        fn new() -> Shared {
            let place = tempfile::tempdir().unwrap();
            for name in ["shared", "other"] {
                fs::create_dir(place.path().join(name)).unwrap();
            }
            // Others may write it: nothing is believed of its names.
            set_mode(&File::open(place.path().join("shared")).unwrap(), 0o777).unwrap();
            fs::write(place.path().join("other/file"), "theirs").unwrap();
            Shared { place }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.place.path().join(name)
        }

        fn output(&self, force: bool) -> Output {
            Output::new(&self.at("shared/o"), force).unwrap()
        }

        fn names(&self, directory: &str) -> Vec<OsString> {
            let entries = fs::read_dir(self.at(directory)).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        }

        #[track_caller]
        fn the_other_file_stays(&self) {
            assert_eq!(self.names("other"), ["file"]);
            assert_eq!(fs::read_to_string(self.at("other/file")).unwrap(), "theirs");
        }
    }

    fn text(mut file: &File) -> io::Result<()> {
        file.write_all(b"ours")
    }

    #[test]
    fn a_directory_that_is_replaced_after_the_check_gets_nothing() {
        for force in [false, true] {
            let shared = Shared::new();
            let output = shared.output(force);
            fs::rename(shared.at("shared"), shared.at("moved")).unwrap();
            symlink("other", shared.at("shared")).unwrap();
            output.write(text).unwrap();
            assert_eq!(fs::read_to_string(shared.at("moved/o")).unwrap(), "ours");
            assert_eq!(shared.names("moved"), ["o"]);
            shared.the_other_file_stays();
        }
    }

    #[test]
    fn a_link_that_comes_after_the_check_is_not_followed() {
        for during in [false, true] {
            for force in [false, true] {
                for target in ["../other/file", "../other/new"] {
                    let shared = Shared::new();
                    let output = shared.output(force);
                    let comes = || symlink(target, shared.at("shared/o")).unwrap();
                    if !during {
                        comes();
                    }
                    let written = output.write(|file| {
                        if during {
                            comes();
                        }
                        text(file)
                    });
                    match force {
                        true => {
                            written.unwrap();
                            assert!(shared.at("shared/o").symlink_metadata().unwrap().is_file());
                            assert_eq!(fs::read_to_string(shared.at("shared/o")).unwrap(), "ours");
                        }
                        false => {
                            let why = written.unwrap_err();
                            assert_eq!(why.kind(), ErrorKind::AlreadyExists, "{why}");
                        }
                    }
                    assert_eq!(shared.names("shared"), ["o"], "nothing else stays");
                    shared.the_other_file_stays();
                }
            }
        }
    }

    /// As on a file system without unnamed files.
    fn named(directory: &Directory) -> New<'_> {
        let (name, file) = unused_name(|name| directory.create(name)).unwrap();
        New { directory, file, name: Some(name) }
    }

    #[test]
    fn a_named_file_that_is_replaced_before_it_has_its_name_is_no_output() {
        let shared = Shared::new();
        let directory = Directory::to_write(&shared.at("shared")).unwrap();
        for force in [false, true] {
            let new = named(&directory);
            text(&new.file).unwrap();
            let own = shared.at("shared").join(new.name.as_ref().unwrap());
            fs::remove_file(&own).unwrap();
            symlink("../other/file", &own).unwrap();
            fs::write(shared.at("shared/o"), "before").unwrap();
            assert!(new.keep(OsStr::new("o"), force).is_err(), "{force}");
            assert_eq!(fs::read_to_string(shared.at("shared/o")).unwrap(), "before");
            fs::remove_file(shared.at("shared/o")).unwrap();
            shared.the_other_file_stays();
        }
        // Undisturbed.
        for (force, good) in [(false, true), (false, false), (true, true)] {
            let new = named(&directory);
            text(&new.file).unwrap();
            assert_eq!(new.keep(OsStr::new("o"), force).is_ok(), good);
            assert_eq!(shared.names("shared"), ["o"]);
        }
    }

    #[test]
    fn a_mode_stays_and_a_link_is_put_away() {
        let shared = Shared::new();
        fs::write(shared.at("shared/o"), "before").unwrap();
        set_mode(&File::open(shared.at("shared/o")).unwrap(), 0o640).unwrap();
        shared.output(true).write(text).unwrap();
        assert_eq!(shared.at("shared/o").metadata().unwrap().mode() & 0o7777, 0o640);
        let why = Output::new(&shared.at("shared/o"), false).unwrap_err();
        assert!(why.raw_os_error().is_none() && why.to_string().starts_with("exists"), "{why}");
        symlink("../other/file", shared.at("shared/link")).unwrap();
        put(&shared.at("shared/link"), b"ours", 0o644).unwrap();
        assert_eq!(shared.at("shared/link").symlink_metadata().unwrap().mode(), 0o100_644);
        shared.the_other_file_stays();
    }
}
