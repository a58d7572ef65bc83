//! The output of a run: `--out DIR|FILE|PATTERN`, and which trace files the run wrote.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use vramtrace_format::header::run_id;
use vramtrace_format::outspec::{
    self, DEFAULT_NAME, EXTENSION, Out, Part, is_file, is_null_device,
};
use vramtrace_reader::files::{self, Directory};
use vramtrace_reader::trace::{header_of, is_trace};

use crate::console::message;
use crate::error::Failure;

/// Where the traces of one run go.
#[derive(Clone, Debug)]
pub struct RunOutput {
    destination: Destination,
    /// Traces that existed before the run.
    earlier: HashSet<PathBuf>,
    /// When the run began, since 1970: pids are reused.
    begun_ns: u128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    /// Nothing is recorded; a cap still holds.
    Off,
    /// A new directory for this run.
    Own(PathBuf),
    /// Absolute path of a file, with %-codes or without; or of a directory with %-codes.
    Pattern { pattern: Vec<u8>, file: bool },
}

impl RunOutput {
    /// `given` as on the command line; without one, a new directory `vramtrace-<date>-<time>` in
    /// the working directory.
    pub fn new(given: Option<&OsStr>) -> Result<RunOutput, Failure> {
        let destination = match given {
            None => Destination::Own(std::path::absolute(dated_name())?),
            Some(given) => destination(given)?,
        };
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut output =
            RunOutput { destination, earlier: HashSet::new(), begun_ns: begun.as_nanos() };
        output.earlier = output.all_traces().into_iter().collect();
        Ok(output)
    }

    /// Makes the directory. Call it before [`RunOutput::variable`]: of two runs in one second the second takes `-2`.
    /// If the working directory is not writable, the directory is made in the temporary directory, with a message.
    pub fn create(&mut self) -> Result<(), Failure> {
        match &mut self.destination {
            Destination::Off => Ok(()),
            Destination::Own(directory) => {
                let made = make_numbered(directory).or_else(|error| match error.kind() {
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                        let elsewhere = std::env::temp_dir().join(dated_name());
                        message(format_args!(
                            "{}: {error}: the trace goes to {}; --out DIR chooses another directory",
                            directory.display(),
                            elsewhere.display()
                        ));
                        *directory = elsewhere;
                        make_numbered(directory)
                    }
                    _ => Err(error),
                });
                made.map_err(|error| cannot(directory, &error))
            }
            Destination::Pattern { .. } => match self.fixed_directory() {
                Some(directory) => Directory::made(&directory)
                    .map(drop)
                    .map_err(|error| cannot(&directory, &error)),
                None => Ok(()),
            },
        }
    }

    /// The value of VRAMTRACE_OUT.
    pub fn variable(&self) -> OsString {
        match &self.destination {
            Destination::Off => outspec::OFF.into(),
            Destination::Own(directory) => inside(&escaped(directory.as_os_str().as_bytes())),
            Destination::Pattern { pattern, file: true } => OsString::from_vec(pattern.clone()),
            Destination::Pattern { pattern, file: false } => inside(pattern),
        }
    }

    /// The value of VRAMTRACE_RUN: the same in all processes of the run, and different in other runs.
    pub fn run_marker(&self) -> OsString {
        match &self.destination {
            Destination::Own(directory) => directory.into(),
            _ => format!("#{}.{}", std::process::id(), self.begun_ns).into(),
        }
    }

    pub fn is_off(&self) -> bool {
        self.destination == Destination::Off
    }

    /// What to give to `vramtrace report`: the run's directory, or its only file.
    pub fn shown(&self) -> Option<PathBuf> {
        match &self.destination {
            Destination::Off => None,
            Destination::Own(directory) => Some(directory.clone()),
            Destination::Pattern { .. } => match self.traces().as_slice() {
                [only] => Some(only.clone()),
                _ => self.fixed_directory(),
            },
        }
    }

    /// The traces that this run wrote so far, sorted. Other runs may record into the same directory at the same time:
    /// what a run is asked about is asked of these traces alone. One that cannot be read may be of this run.
    pub fn traces(&self) -> Vec<PathBuf> {
        let run = run_id(self.run_marker().as_bytes());
        let is_own = |trace: &PathBuf| {
            matches!(self.destination, Destination::Own(_))
                || run_of(trace).is_none_or(|of| of == Some(run))
        };
        let mut traces = self.all_traces();
        traces.retain(|trace| !self.earlier.contains(trace) && is_own(trace));
        traces
    }

    /// Removes the run's new directory if it is empty.
    pub fn remove_if_empty(&self) {
        if let Destination::Own(directory) = &self.destination {
            // Fails if the directory holds a trace, which is intended.
            let _ = fs::remove_dir(directory);
        }
    }

    fn all_traces(&self) -> Vec<PathBuf> {
        let Some(directory) = self.fixed_directory() else { return Vec::new() };
        let depth = match &self.destination {
            Destination::Pattern { pattern, .. } if pattern.contains(&b'%') => 4,
            _ => 0,
        };
        let mut found = Vec::new();
        collect(&directory, depth, &mut found);
        found.sort_unstable();
        found
    }

    /// The directory up to the first part with a %-code.
    fn fixed_directory(&self) -> Option<PathBuf> {
        match &self.destination {
            Destination::Off => None,
            Destination::Own(directory) => Some(directory.clone()),
            Destination::Pattern { pattern, file } => {
                let path = Path::new(OsStr::from_bytes(pattern));
                let directory = if *file { path.parent()? } else { path };
                let is_fixed = |part: &Component| !has_codes(part.as_os_str().as_bytes());
                let fixed: PathBuf = directory.components().take_while(is_fixed).collect();
                Some(unescaped(fixed.as_os_str().as_bytes()))
            }
        }
    }
}

/// The run of a trace: the inner `None` if it has none. `None`: it cannot be read.
fn run_of(trace: &Path) -> Option<Option<u64>> {
    Some(header_of(&files::open(trace).ok()?).ok()?.run)
}

/// As the recorder reads `VRAMTRACE_OUT`; but what cannot be recorded into is refused here.
fn destination(given: &OsStr) -> Result<Destination, Failure> {
    let shown = given.display();
    match outspec::parse(given.as_bytes()) {
        Ok(Out::Off) => return Ok(Destination::Off),
        Ok(Out::Default) => {
            return Err(Failure::new(
                "--out is empty; give a directory, a file (.vtrace) or `off`",
            ));
        }
        Ok(Out::Pattern(_)) => {}
        Err(why) => return Err(Failure::new(format!("--out {shown}: {why}"))),
    }
    let mut absolute = PathBuf::from(given);
    if absolute.is_relative() {
        // The name of the working directory has no codes.
        let here = escaped(std::env::current_dir()?.as_os_str().as_bytes());
        absolute = Path::new(OsStr::from_bytes(&here)).join(given);
    }
    let absolute = std::path::absolute(absolute)?;
    let pattern = absolute.into_os_string().into_vec();
    let file = is_file(given.as_bytes());
    if !has_codes(&pattern) {
        let plain = unescaped(&pattern);
        if is_null_device(&plain) {
            return Ok(Destination::Off);
        }
        match fs::symlink_metadata(&plain) {
            Ok(_) if file && plain.is_dir() => {
                return Err(Failure::new(format!(
                    "--out {shown} is a directory; to record into it, write {shown}/"
                )));
            }
            // Nothing is overwritten: the recorder takes the next number.
            Ok(_) if file || plain.is_dir() => {}
            Ok(_) => {
                return Err(Failure::new(format!(
                    "--out {shown} is no directory; give a directory, or a name that ends in \
                     .{EXTENSION} for a file"
                )));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(&plain, &error)),
        }
    }
    Ok(Destination::Pattern { pattern, file })
}

/// A code other than `%%`. The pattern was checked.
fn has_codes(pattern: &[u8]) -> bool {
    outspec::parts(pattern).any(|part| !matches!(part, Ok(Part::Byte(_))))
}

fn escaped(path: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'%').collect();
    parts.join(&b"%%"[..])
}

/// The text of a pattern without codes.
fn unescaped(pattern: &[u8]) -> PathBuf {
    let byte = |part| if let Ok(Part::Byte(byte)) = part { Some(byte) } else { None };
    OsString::from_vec(outspec::parts(pattern).filter_map(byte).collect()).into()
}

fn inside(directory: &[u8]) -> OsString {
    Path::new(OsStr::from_bytes(directory)).join(DEFAULT_NAME).into()
}

fn collect(directory: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && depth > 0 {
            collect(&path, depth - 1, found);
        } else if !is_directory && is_trace(&path) {
            found.push(path);
        }
    }
}

/// Makes a directory, of the first of `NAME`, `NAME-2`, `NAME-3`, ... that is not there.
fn make_numbered(directory: &mut PathBuf) -> std::io::Result<()> {
    let first = directory.as_os_str().to_os_string();
    let mut number = 1;
    loop {
        let (above, name) = Directory::of(directory)?;
        match above.make_directory(name, 0o700) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
        number += 1;
        let mut next = first.clone();
        next.push(format!("-{number}"));
        *directory = next.into();
    }
}

fn dated_name() -> String {
    jiff::Zoned::now().strftime("vramtrace-%Y%m%d-%H%M%S").to_string()
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!(
        "{}: {error}: no trace can be written there; choose another directory with --out DIR",
        path.display()
    ))
}

/// A path relative to the working directory, where that is shorter.
pub fn from_here(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let shown = path.strip_prefix(&here).unwrap_or(path);
    let shown = if shown.as_os_str().is_empty() { path } else { shown };
    shown.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(given: &Path) -> RunOutput {
        RunOutput::new(Some(given.as_os_str())).unwrap()
    }

    #[test]
    fn a_directory_a_file_a_pattern_or_nothing() {
        let destination = tempfile::tempdir().unwrap();
        let directory = output(&destination.path().join("50%%"));
        let shown = destination.path().display();
        assert_eq!(directory.variable(), *format!("{shown}/50%%/{DEFAULT_NAME}"));
        assert_eq!(directory.shown(), Some(destination.path().join("50%")));
        let file = output(&destination.path().join("one.vtrace"));
        assert_eq!(file.variable(), *format!("{shown}/one.vtrace"));
        let pattern = output(&destination.path().join("%h/rank%r.vtrace"));
        assert_eq!(pattern.variable(), *format!("{shown}/%h/rank%r.vtrace"));
        assert_eq!(pattern.shown(), Some(destination.path().into()));
        let off = output(Path::new("off"));
        assert!(off.is_off() && off.variable() == "off");
        assert!(output(Path::new("/dev/null")).is_off());
        let slash = output(&destination.path().join("one.vtrace/"));
        assert_eq!(slash.variable(), *format!("{shown}/one.vtrace/{DEFAULT_NAME}"));
    }

    #[test]
    fn a_taken_name_is_numbered_and_what_is_no_place_is_refused() {
        let destination = tempfile::tempdir().unwrap();
        let file = destination.path().join("taken.vtrace");
        fs::write(&file, "").unwrap();
        let again = output(&file);
        fs::write(destination.path().join("taken.2.vtrace"), "").unwrap();
        assert_eq!(again.traces(), [destination.path().join("taken.2.vtrace")]);
        assert_eq!(again.shown(), Some(destination.path().join("taken.2.vtrace")));
        let directory = destination.path().join("directory.vtrace");
        fs::create_dir(&directory).unwrap();
        let refused = RunOutput::new(Some(directory.as_os_str())).unwrap_err();
        assert!(
            refused.code == 2 && refused.message.contains("a directory"),
            "{}",
            refused.message
        );
        let other = destination.path().join("taken.txt");
        fs::write(&other, "").unwrap();
        assert!(
            RunOutput::new(Some(other.as_os_str())).unwrap_err().message.contains("no directory")
        );
        for bad in ["a%x.vtrace", "a%", ""] {
            assert!(RunOutput::new(Some(bad.as_ref())).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_new_traces_are_this_runs() {
        let destination = tempfile::tempdir().unwrap();
        fs::write(destination.path().join("old.vtrace"), "").unwrap();
        let directory = output(destination.path());
        for name in ["new.vtrace", "new.2.vtrace", "new.txt"] {
            fs::write(destination.path().join(name), "").unwrap();
        }
        let names = ["new.2.vtrace", "new.vtrace"].map(|name| destination.path().join(name));
        assert_eq!(directory.traces(), names);
    }

    #[test]
    fn two_runs_in_one_second_get_two_directories() {
        let destination = tempfile::tempdir().unwrap();
        let own = || RunOutput {
            destination: Destination::Own(destination.path().join("run")),
            ..output(Path::new("off"))
        };
        let (mut one, mut two) = (own(), own());
        one.create().unwrap();
        two.create().unwrap();
        assert_eq!(two.shown(), Some(destination.path().join("run-2")));
        two.remove_if_empty();
        assert!(
            !destination.path().join("run-2").exists() && destination.path().join("run").exists()
        );
    }
}
