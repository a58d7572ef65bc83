//! The output file of a command. A regular file is written under a temporary name and renamed when it is complete,
//! so that no partial file exists. A device, a FIFO and an open descriptor (`-`, `/dev/stdout`, `>(...)` of a
//! shell) are written directly. A file that the command reads is never overwritten.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

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

    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Descriptor(libc::STDOUT_FILENO))
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

    /// Opens the file, creating it if need be, to find out now whether it can be written.
    pub fn probe(&self) -> Result<(), Failure> {
        let Target::File(at) = &self.target else { return Ok(()) };
        let opened = OpenOptions::new().create(true).append(true).open(at);
        opened.map(drop).map_err(|error| cannot(&self.path, &error))
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

/// Writes a temporary file in the same directory, then renames it to `at`.
fn write_atomically<T>(at: &Path, write: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
    let there = at.metadata().ok();
    let directory = at.parent().filter(|parent| *parent != Path::new(""));
    let file = match (NamedTempFile::new_in(directory.unwrap_or(Path::new("."))), &there) {
        (Ok(file), _) => file,
        // The file is writable, its directory is not.
        (Err(_), Some(_)) => return write_by_copy(write, || truncated(at)),
        (Err(error), None) => return Err(error),
    };
    if let Some(there) = &there {
        file.as_file().set_permissions(there.permissions())?;
    }
    let written = write(file.as_file())?;
    let kept = match there {
        Some(_) => file.persist(at),
        None => file.persist_noclobber(at),
    };
    match kept {
        Ok(_) => Ok(written),
        // A bind-mounted file cannot be replaced by rename.
        Err(kept) if kept.error.kind() == ErrorKind::ResourceBusy => {
            copy(kept.file.as_file(), truncated(at)?)?;
            Ok(written)
        }
        Err(kept) => Err(kept.error),
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
