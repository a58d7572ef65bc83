//! The output file of a command. A regular file gets its name when it is complete, so that no partial file exists and
//! nothing stays of one that could not be written. A device, a FIFO and an open descriptor (`-`, `/dev/stdout`, `>(...)` of a
//! shell) are written directly. A file that the command reads is never overwritten.

use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::error::Failure;

/// An output whose path was checked.
#[derive(Debug)]
pub struct Output {
    /// The path as given on the command line.
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A regular file, existing or new, after all symbolic links.
    File(PathBuf),
    /// A descriptor that is open in this process.
    Descriptor(RawFd),
    /// A device or FIFO.
    Device,
}

/// How many symbolic links are followed: as many as the kernel follows.
const LINKS: usize = 40;

impl Output {
    /// `force`: an existing regular file may be replaced, a block device overwritten. Errors name the path.
    pub fn new(path: &Path, force: bool) -> Result<Output, Failure> {
        let target = target(path).map_err(|error| cannot(path, &error))?;
        let shown = path.display();
        match &target {
            Target::Descriptor(_) => {}
            Target::Device if is_block_device(path) && !force => {
                return Err(Failure::new(format!(
                    "{shown} is a block device: --force writes over what is on it"
                )));
            }
            Target::Device => {}
            Target::File(at) if at.is_dir() => {
                return Err(Failure::new(format!("{shown} is a directory: give a file")));
            }
            Target::File(_) if !force && path.symlink_metadata().is_ok() => {
                return Err(Failure::new(format!(
                    "{shown} exists: give another name, or --force to replace it"
                )));
            }
            Target::File(_) => {}
        }
        Ok(Output { path: path.to_path_buf(), target })
    }

    /// A regular file, existing or new.
    pub fn is_regular(&self) -> bool {
        matches!(self.target, Target::File(_))
    }

    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Descriptor(libc::STDOUT_FILENO))
    }

    pub fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|own| own == extension)
    }

    /// The path as given on the command line, for messages.
    pub fn shown(&self) -> impl std::fmt::Display {
        self.path.display()
    }

    /// Fails if the output is one of these files, also under another name or through a link.
    pub fn refuse_inputs<'p>(
        &self,
        inputs: impl IntoIterator<Item = &'p Path>,
    ) -> Result<(), Failure> {
        let Some(own) = self.metadata().filter(|meta| meta.is_file()) else { return Ok(()) };
        let same = |meta: Metadata| (meta.dev(), meta.ino()) == (own.dev(), own.ino());
        match inputs.into_iter().find(|input| input.metadata().is_ok_and(same)) {
            None => Ok(()),
            Some(input) => Err(Failure::new(format!(
                "{} is also an input ({}): give another output name",
                self.shown(),
                input.display()
            ))),
        }
    }

    /// Metadata of the target after all links. `None`: it does not exist yet.
    fn metadata(&self) -> Option<Metadata> {
        match &self.target {
            Target::File(at) => at.metadata().ok(),
            Target::Descriptor(number) => duplicate(*number).ok()?.metadata().ok(),
            Target::Device => self.path.metadata().ok(),
        }
    }

    /// Finds out now whether the file can be written. Nothing is created.
    pub fn probe(&self) -> Result<(), Failure> {
        let Target::File(at) = &self.target else { return Ok(()) };
        let opened = match at.exists() {
            true => OpenOptions::new().append(true).open(at).map(drop),
            false => New::beside(directory_of(at)).map(drop),
        };
        opened.map_err(|error| cannot(&self.path, &error))
    }

    /// Writes sequentially, buffered.
    pub fn write<T>(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> Result<T, Failure> {
        let buffered = |file: &File| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let written = write(&mut out)?;
            out.flush()?;
            Ok(written)
        };
        match &self.target {
            Target::File(at) => write_atomically(at, buffered),
            _ => self.opened().and_then(|file| buffered(&file)),
        }
        .map_err(|error| cannot(&self.path, &error))
    }

    /// Writes to a seekable file; for a pipe the finished file is copied into it.
    pub fn write_at<T>(&self, write: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Failure> {
        match &self.target {
            Target::File(at) => write_atomically(at, write),
            _ => write_by_copy(write, || self.opened()),
        }
        .map_err(|error| cannot(&self.path, &error))
    }

    fn opened(&self) -> io::Result<File> {
        match &self.target {
            Target::Descriptor(number) => duplicate(*number),
            Target::Device | Target::File(_) => OpenOptions::new().write(true).open(&self.path),
        }
    }
}

/// Writes a file of the same directory that gets its name when it is complete, and takes the place of `at`.
fn write_atomically<T>(at: &Path, write: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
    let there = at.metadata().ok();
    let file = match (New::beside(directory_of(at)), &there) {
        (Ok(file), _) => file,
        // The file is writable, its directory is not.
        (Err(_), Some(_)) => return write_by_copy(write, || truncated(at)),
        (Err(error), None) => return Err(error),
    };
    if let Some(there) = &there {
        file.file().set_permissions(there.permissions())?;
    }
    let written = write(file.file())?;
    match file.keep(at, there.is_some()) {
        Ok(()) => Ok(written),
        // A bind-mounted file cannot be replaced by rename.
        Err((file, error)) if error.kind() == ErrorKind::ResourceBusy => {
            copy(file.file(), truncated(at)?)?;
            Ok(written)
        }
        Err((_, error)) => Err(error),
    }
}

fn directory_of(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
}

/// A new file, mode 0600.
enum New {
    /// Without a name: nothing stays of it if the command is killed.
    Unnamed(File),
    /// On file systems that have no files without names.
    Named(NamedTempFile),
}

impl New {
    fn beside(directory: &Path) -> io::Result<New> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
        match options.open(directory) {
            Ok(file) => Ok(New::Unnamed(file)),
            Err(_) => NamedTempFile::new_in(directory).map(New::Named),
        }
    }

    fn file(&self) -> &File {
        match self {
            New::Unnamed(file) => file,
            New::Named(file) => file.as_file(),
        }
    }

    /// Gives the file its name. `replace`: in place of what is there.
    fn keep(self, at: &Path, replace: bool) -> Result<(), (New, io::Error)> {
        match self {
            New::Unnamed(file) if replace => {
                // A name cannot be given in place of another: the new file gets one of its own before.
                let named = Builder::new().make_in(directory_of(at), |name| link(&file, name));
                match named.and_then(|named| named.into_temp_path().persist(at).map_err(Into::into))
                {
                    Ok(()) => Ok(()),
                    Err(error) => Err((New::Unnamed(file), error)),
                }
            }
            New::Unnamed(file) => link(&file, at).map_err(|error| (New::Unnamed(file), error)),
            New::Named(file) => {
                let kept = match replace {
                    true => file.persist(at),
                    false => file.persist_noclobber(at),
                };
                kept.map(drop).map_err(|kept| (New::Named(kept.file), kept.error))
            }
        }
    }
}

/// Gives a file without a name this one. An error if something has it.
fn link(file: &File, name: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(name.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: C strings.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes to an unnamed temporary file, then copies it into the opened target.
fn write_by_copy<T>(
    write: impl FnOnce(&File) -> io::Result<T>,
    open: impl FnOnce() -> io::Result<File>,
) -> io::Result<T> {
    let file = tempfile::tempfile()?;
    let written = write(&file)?;
    copy(&file, open()?)?;
    Ok(written)
}

fn copy(mut from: &File, mut to: File) -> io::Result<()> {
    from.rewind()?;
    io::copy(&mut from, &mut to)?;
    to.flush()
}

fn truncated(at: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(true).open(at)
}

fn target(path: &Path) -> io::Result<Target> {
    if path == Path::new("-") {
        return Ok(Target::Descriptor(libc::STDOUT_FILENO));
    }
    let mut at = path.to_path_buf();
    for _ in 0..LINKS {
        if let Some(number) = descriptor_number(&at) {
            return Ok(Target::Descriptor(number));
        }
        match std::fs::read_link(&at) {
            // `join` leaves an absolute one as it is.
            Ok(to) => at = at.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => break,
        }
    }
    Ok(match at.metadata() {
        Ok(meta) if !meta.is_file() && !meta.is_dir() => Target::Device,
        _ => Target::File(at),
    })
}

/// The number of a path such as `/proc/self/fd/1`. Opening the path again would write from offset 0.
fn descriptor_number(path: &Path) -> Option<RawFd> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let parent = path.parent()?.canonicalize().ok()?;
    (parent == Path::new("/proc/self/fd").canonicalize().ok()?).then_some(number)
}

fn duplicate(number: RawFd) -> io::Result<File> {
    // SAFETY: touches no memory; a number that is no descriptor is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    match copy {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: fcntl returned a new descriptor; nothing else owns it.
        copy => Ok(unsafe { File::from_raw_fd(copy) }),
    }
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => " (its directory must exist)",
        ErrorKind::AlreadyExists => " (--force replaces it)",
        _ => "",
    };
    let shown = match path.to_str() {
        Some("-") => "stdout".into(),
        _ => path.display().to_string(),
    };
    Failure::new(format!("{shown}: {error}{hint}"))
}
