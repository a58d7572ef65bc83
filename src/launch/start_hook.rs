//! The start hook that `vramtrace enable` writes into a Python's site directory: a module, and the
//! file that makes the interpreter call it (`.pth` up to Python 3.14, `.start` from 3.15 on).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use vramtrace_reader::files;

use super::python::Python;
use crate::error::Failure;

const MODULE: &str = include_str!("start_hook.py");
const NAME: &str = "vramtrace_start";
/// First line of each file that `vramtrace enable` writes.
const MARK: &str = "# Written by `vramtrace enable`; `vramtrace disable` removes it.\n";

/// The files of one site directory.
#[derive(Debug)]
pub struct StartHook {
    module: PathBuf,
    /// The `.pth` or `.start` file that the interpreter reads at its start, and its text.
    caller: PathBuf,
    text: String,
}

impl StartHook {
    pub fn new(site: &Path, python: &Python) -> StartHook {
        let (suffix, line) = match python.version >= (3, 15) {
            true => ("start", format!("{NAME}:start\n")),
            // Lines that begin with `import` are run.
            false => ("pth", format!("import {NAME}; {NAME}.start()\n")),
        };
        StartHook {
            module: site.join(format!("{NAME}.py")),
            caller: site.join(format!("{NAME}.{suffix}")),
            text: format!("{MARK}{line}"),
        }
    }

    /// Writes the module first, then the file that calls it. Returns their paths.
    pub fn write(&self, library: &Path, always: bool) -> Result<[&Path; 2], Failure> {
        let Some(library) = library.to_str().filter(|path| !path.contains(['"', '\\', '\n']))
        else {
            let shown = library.display();
            return Err(Failure::new(format!(
                "{shown}: a path with a quote or a backslash cannot stand in the hook: install \
                 vramtrace elsewhere"
            )));
        };
        // Python takes a compiled module of the same second and length for this one's: with and without, the lengths differ.
        let always = if always { "1" } else { "" };
        let module = MODULE.replace("@LIBRARY@", library).replace("@ALWAYS@", always);
        self.check()?;
        put(&self.module, &module)?;
        put(&self.caller, &self.text)?;
        Ok([&self.module, &self.caller])
    }

    /// Removes the calling file first, then the module. Returns the removed paths.
    pub fn remove(&self) -> Result<Vec<&Path>, Failure> {
        self.check()?;
        let mut gone = Vec::new();
        for path in [&self.caller, &self.module] {
            match fs::remove_file(path) {
                Ok(()) => gone.push(path.as_path()),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(cannot(path, &error)),
            }
        }
        Ok(gone)
    }

    /// Fails if a file of this name was not written by `vramtrace enable`.
    fn check(&self) -> Result<(), Failure> {
        for path in [&self.module, &self.caller] {
            match files::read(path, 1 << 20) {
                Ok(text) if text.starts_with(MARK.as_bytes()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Ok(_) => {
                    let shown = path.display();
                    return Err(Failure::new(format!(
                        "{shown} was not written by `vramtrace enable`: it stays; move it away first"
                    )));
                }
                Err(error) => return Err(cannot(path, &error)),
            }
        }
        Ok(())
    }
}

/// Writes a file atomically with mode 0644. An existing link is replaced, not followed.
fn put(path: &Path, text: &str) -> Result<(), Failure> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let made = files::Directory::made(directory);
    let put = made.and_then(|_| files::put(path, text.as_bytes(), 0o644));
    put.map_err(|error| cannot(path, &error))
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ": this Python belongs to someone else; use a virtual environment, or --user"
        }
        _ => "",
    };
    Failure::new(format!("{}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(minor: u32) -> Python {
        Python {
            executable: "/usr/bin/python3".into(),
            version: (3, minor),
            is_environment: true,
            site: "/nowhere".into(),
            user_site: "/nowhere".into(),
        }
    }

    #[test]
    fn the_interpreter_reads_a_pth_up_to_3_14_and_a_start_file_from_3_15_on() {
        let place = tempfile::tempdir().unwrap();
        for (minor, file, line) in [
            (8, "vramtrace_start.pth", "import vramtrace_start; vramtrace_start.start()\n"),
            (14, "vramtrace_start.pth", "import vramtrace_start; vramtrace_start.start()\n"),
            (15, "vramtrace_start.start", "vramtrace_start:start\n"),
        ] {
            let hook = StartHook::new(place.path(), &python(minor));
            hook.write(Path::new("/opt/libvramtrace.so"), true).unwrap();
            let text = fs::read_to_string(place.path().join(file)).unwrap();
            assert!(text.ends_with(line), "{minor}: {text}");
            let module = fs::read_to_string(place.path().join("vramtrace_start.py")).unwrap();
            assert!(module.starts_with(MARK) && !module.contains("@LIBRARY@"), "{module}");
            assert!(module.contains("LIBRARY = \"/opt/libvramtrace.so\"\nALWAYS = \"1\"\n"));
            assert_eq!(hook.remove().unwrap().len(), 2);
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_file_of_someone_else_stays() {
        let place = tempfile::tempdir().unwrap();
        let theirs = place.path().join("vramtrace_start.py");
        fs::write(&theirs, "print('mine')\n").unwrap();
        let hook = StartHook::new(place.path(), &python(11));
        for refused in [
            hook.write(Path::new("/opt/libvramtrace.so"), false).map(drop),
            hook.remove().map(drop),
        ] {
            assert!(refused.unwrap_err().message.contains("was not written by"));
        }
        assert_eq!(fs::read_to_string(theirs).unwrap(), "print('mine')\n");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
