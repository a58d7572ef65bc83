//! The output of a command (`-o`): a file, an open descriptor, a device or a FIFO. A file that the command reads is never
//! overwritten, and what a terminal gets controls nothing there. `files::Output` makes the file.

use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vramtrace_reader::files;

use super::select::{ProcessArgs, Selected, paths};
use crate::console::{for_terminal, message};
use crate::error::Failure;

/// An output whose path was checked.
#[derive(Debug)]
pub struct Output {
    /// The path as given on the command line.
    pub path: PathBuf,
    file: files::Output,
}

impl Output {
    /// `force`: an existing regular file may be replaced, a block device overwritten. Errors name the path.
    pub fn new(path: &Path, force: bool) -> Result<Output, Failure> {
        match files::Output::new(path, force) {
            Ok(file) => Ok(Output { path: path.to_path_buf(), file }),
            Err(error) if error.raw_os_error().is_none() => {
                Err(Failure::new(format!("{} {error}", path.display())))
            }
            Err(error) => Err(cannot(path, &error)),
        }
    }

    /// A regular file, existing or new.
    pub fn is_regular(&self) -> bool {
        self.file.is_regular()
    }

    pub fn is_stdout(&self) -> bool {
        self.file.is_stdout()
    }

    /// The path as given on the command line, for messages.
    pub fn shown(&self) -> impl Display {
        self.path.display()
    }

    /// Says on stderr what was written; nothing if that is stdout.
    pub fn say(&self, what: impl Display) {
        if !self.is_stdout() {
            message(format_args!("{}: {what}", self.shown()));
        }
    }

    /// Opens the traces that a command reads: none of them is the output.
    pub fn open_inputs(&self, processes: &ProcessArgs) -> Result<Selected, Failure> {
        let selected = processes.open()?;
        self.refuse_inputs(paths(&selected.traces))?;
        Ok(selected)
    }

    /// Fails if the output is one of these files, also under another name or through a link.
    pub fn refuse_inputs<'p>(
        &self,
        inputs: impl IntoIterator<Item = &'p Path>,
    ) -> Result<(), Failure> {
        let Some(own) = self.file.metadata().filter(|meta| meta.is_file()) else { return Ok(()) };
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

    /// Finds out now whether a new file can be made. Nothing is created.
    pub fn probe(&self) -> Result<(), Failure> {
        self.file.probe().map_err(|error| cannot(&self.path, &error))
    }

    /// Writes sequentially, buffered.
    pub fn write<T>(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> Result<T, Failure> {
        let buffered = |file: &File| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            let mut all = Vec::new();
            let is_terminal = file.is_terminal();
            let written = write(if is_terminal { &mut all } else { &mut out })?;
            out.write_all(for_terminal(&all).as_bytes())?;
            out.flush()?;
            Ok(written)
        };
        self.file.write(buffered).map_err(|error| cannot(&self.path, &error))
    }

    /// Writes to a seekable file; for a pipe the finished file is copied into it.
    pub fn write_at<T>(&self, write: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Failure> {
        if self.is_regular() {
            return self.file.write(write).map_err(|error| cannot(&self.path, &error));
        }
        self.write(|out| {
            let mut file = tempfile::tempfile()?;
            let written = write(&file)?;
            file.rewind()?;
            io::copy(&mut file, out)?;
            Ok(written)
        })
    }
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => " (its directory must exist)",
        ErrorKind::AlreadyExists => " (--force replaces it)",
        _ => "",
    };
    let shown = if path.as_os_str() == "-" { Path::new("stdout") } else { path }.display();
    Failure::new(format!("{shown}: {error}{hint}"))
}
