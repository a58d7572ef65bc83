//! Temporary directories.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::verify::{Expected, violations};
use crate::{reachable_directory, repository, temporary};

/// A new directory under cargo's temporary directory, removed when it is dropped, but kept after a failure.
/// The traces in it must then pass `vramtrace verify`.
pub struct Scratch(pub PathBuf, Cell<Expected>);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::below(&temporary())
    }

    /// A directory below one that every user can enter. The caller sets its mode.
    pub fn reachable() -> Scratch {
        Scratch::below(reachable_directory())
    }

    fn below(place: &Path) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = place.join(format!("run-{}-{n}", std::process::id()));
        // What an earlier process with this number left after a failure.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch::at(dir)
    }

    /// A new directory with the programs of the documents.
    pub fn with_programs() -> Scratch {
        let scratch = Scratch::new();
        for entry in std::fs::read_dir(repository().join("docs/programs")).unwrap().flatten() {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), scratch.0.join(entry.file_name())).unwrap();
            }
        }
        scratch
    }

    /// An existing directory.
    pub fn at(path: PathBuf) -> Scratch {
        Scratch(path, Cell::default())
    }

    /// Its traces contradict themselves on purpose: the program reported wrong figures.
    pub fn contradicts(&self) {
        self.1.set(Expected { contradicts: true, ..self.1.get() });
    }

    /// Not all of its traces can be read: the test damaged them, or they are not traces.
    pub fn damaged_traces(&self) {
        self.1.set(Expected { damaged: true, ..self.1.get() });
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), contents).unwrap();
    }

    pub fn traces(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|end| end == "vtrace"))
            .collect();
        found.sort();
        found
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The test has failed already: its traces are not verified, and are kept.
        if std::thread::panicking() {
            return;
        }
        if let Some(violations) = violations(&self.0, self.1.get()) {
            panic!("vramtrace verify: {violations}");
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
