//! Finds the libraries of vramtrace, and makes a path that LD_PRELOAD can hold: there spaces and colons separate
//! entries and `$` begins a token of the loader.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vramtrace_reader::files;

use super::elf;
use crate::error::Failure;

/// The recorder that is preloaded; `VRAMTRACE_LIB` names another one.
pub const SHIM: &str = "libvramtrace.so";
/// The simulated driver.
pub const SIMULATED: &str = "libvramtrace_sim.so";

/// Finds a library beside this executable, in `../lib`, or in the Python package of this installation. An error if
/// the loader cannot load it.
pub fn find(name: &str) -> Result<PathBuf, Failure> {
    let library = place_of(name)?;
    match problem(&library) {
        None => Ok(library),
        Some(why) => Err(Failure::new(format!("{}: {why}", library.display()))),
    }
}

/// Why the loader would skip a library and run the program without it. `None`: it can be loaded.
pub fn problem(library: &Path) -> Option<String> {
    const NOEXEC: &str = "it lies on a file system that is mounted noexec, from which the loader takes no \
        library: install vramtrace elsewhere, or copy the library and name it in VRAMTRACE_LIB";
    let is_noexec = |found: &libc::statvfs| found.f_flag & libc::ST_NOEXEC != 0;
    let noexec = || file_system(library).filter(is_noexec).map(|_| NOEXEC.to_string());
    elf::library_problem(library).or_else(noexec)
}

/// What the kernel says of the file system that holds a path.
pub fn file_system(path: &Path) -> Option<libc::statvfs> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::uninit();
    // SAFETY: the path ends in NUL; statvfs fills `found` where it returns 0.
    unsafe { (libc::statvfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) }
}

fn place_of(name: &str) -> Result<PathBuf, Failure> {
    let given = (name == SHIM).then(|| std::env::var_os("VRAMTRACE_LIB")).flatten();
    if let Some(given) = given.filter(|path| !path.is_empty()) {
        return Path::new(&given).canonicalize().map_err(|error| {
            Failure::new(format!(
                "VRAMTRACE_LIB={}: {error}; give the path of {SHIM}, or unset it",
                given.display()
            ))
        });
    }
    let executable = own_executable()?.canonicalize()?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(name), beside.join("../lib").join(name)];
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.or_else(|| packaged(beside.parent()?, name)).ok_or_else(|| {
        Failure::new(format!(
            "{name} is neither in {0} nor in ../lib of it, nor in a Python package vramtrace that \
             was installed together with this command; install it in {0}{1}",
            beside.display(),
            if name == SHIM { ", or name it in VRAMTRACE_LIB" } else { "" }
        ))
    })
}

/// The path of this command. Without /proc it is the one that exec was given.
fn own_executable() -> std::io::Result<PathBuf> {
    std::env::current_exe().or_else(|error| {
        // SAFETY: the kernel gives the address of a text that lives as long as the process, or 0.
        let path = unsafe {
            let address = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
            if address.is_null() {
                return Err(error);
            }
            CStr::from_ptr(address)
        };
        std::path::absolute(OsStr::from_bytes(path.to_bytes()))
    })
}

/// A file of the Python package under this prefix. If several Pythons have the package, one of this version is
/// preferred.
fn packaged(prefix: &Path, name: &str) -> Option<PathBuf> {
    const RECORD: &str = concat!("vramtrace-", env!("CARGO_PKG_VERSION"), ".dist-info");
    // `pip install --target` puts packages beside bin/.
    let mut places = vec![prefix.to_path_buf()];
    for lib in ["lib", "lib64"] {
        let entries = std::fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten();
        let pythons = entries.filter(|entry| {
            let name = entry.file_name();
            name.as_bytes().starts_with(b"python") || name.as_bytes().starts_with(b"pypy")
        });
        let mut pythons: Vec<PathBuf> = pythons.map(|entry| entry.path()).collect();
        pythons.sort();
        for packages in ["site-packages", "dist-packages"] {
            places.extend(pythons.iter().map(|python| python.join(packages)));
        }
    }
    // Stable sort: packages of this version first.
    places.sort_by_key(|place| !place.join(RECORD).exists());
    places.iter().find_map(|place| place.join("vramtrace").join(name).canonicalize().ok())
}

/// As [`find`], of the recorder under a path that LD_PRELOAD can hold.
pub fn find_preloadable() -> Result<PathBuf, Failure> {
    let library = find(SHIM)?;
    match can_be_preloaded(&library) {
        true => Ok(library),
        false => Err(not_preloadable(&library, ": install vramtrace elsewhere")),
    }
}

/// A library under a path that LD_PRELOAD can hold.
pub struct Preload {
    path: PathBuf,
    /// A temporary directory with a link to the library, if its path has characters that LD_PRELOAD cannot hold.
    private: Option<TempDir>,
}

/// The library's own path, or a link to it in a private directory.
pub fn preloadable(library: &Path) -> Result<Preload, Failure> {
    if can_be_preloaded(library) {
        return Ok(Preload { path: library.into(), private: None });
    }
    let private = [std::env::temp_dir(), "/tmp".into()]
        .into_iter()
        .filter(|place| can_be_preloaded(place))
        .find_map(|place| {
            files::temporary_directory("vramtrace-", Some(&place), &[(SHIM, library)]).ok()
        });
    let Some(private) = private else {
        let so = ", and no temporary directory without one could be made; install vramtrace elsewhere or set TMPDIR";
        return Err(not_preloadable(library, so));
    };
    let path = private.path().join(SHIM);
    Ok(Preload { path, private: Some(private) })
}

impl Preload {
    /// The value of LD_PRELOAD: the recorder first, then the existing entries.
    pub fn with_existing(&self, existing: Option<OsString>) -> OsString {
        let existing = existing.unwrap_or_default();
        let mut entries = existing.as_bytes().split(|byte| b": ".contains(byte));
        if entries.any(|entry| entry == self.path.as_os_str().as_bytes()) {
            return existing;
        }
        library_path(&self.path, Some(existing))
    }

    /// Leaves the link in place for processes that still need it.
    pub fn keep(&mut self) {
        if let Some(private) = self.private.take() {
            let _ = private.keep();
        }
    }
}

/// Whether LD_PRELOAD can hold this path.
fn can_be_preloaded(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    !bytes.iter().any(|byte| byte.is_ascii_whitespace() || b":;$".contains(byte))
}

fn not_preloadable(library: &Path, so: &str) -> Failure {
    let why = "LD_PRELOAD cannot carry a path with a space, a colon or a dollar sign";
    Failure::new(format!("{}: {why}{so}", library.display()))
}

/// The entries of LD_PRELOAD in this environment, each with the reason why it cannot be loaded. One without a slash is
/// searched by the loader and is not checked.
pub fn preloaded() -> Vec<(String, Option<String>)> {
    let value = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let names = value.as_bytes().split(|byte| b": ".contains(byte)).filter(|name| !name.is_empty());
    let entry = |name: &[u8]| {
        let path = PathBuf::from(OsStr::from_bytes(name));
        let problem = name.contains(&b'/').then(|| problem(&path)).flatten();
        (path.to_string_lossy().into_owned(), problem)
    };
    names.map(entry).collect()
}

/// The value of a variable of paths with `first` in front.
pub fn library_path(first: &Path, existing: Option<OsString>) -> OsString {
    let mut value = first.as_os_str().to_os_string();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(":");
        value.push(existing);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_package_of_the_same_version() {
        let prefix = tempfile::tempdir().unwrap();
        assert_eq!(packaged(prefix.path(), SHIM), None);
        let place = |python: &str| prefix.path().join("lib").join(python).join("site-packages");
        for python in ["python3.9", "python3.12"] {
            std::fs::create_dir_all(place(python).join("vramtrace")).unwrap();
            std::fs::write(place(python).join("vramtrace").join(SHIM), python).unwrap();
        }
        let record = format!("vramtrace-{}.dist-info", env!("CARGO_PKG_VERSION"));
        for python in ["python3.9", "python3.12"] {
            let record = place(python).join(&record);
            std::fs::create_dir(&record).unwrap();
            let found = packaged(prefix.path(), SHIM).unwrap();
            assert_eq!(std::fs::read_to_string(found).unwrap(), python);
            std::fs::remove_dir(&record).unwrap();
        }
        // `pip install --target`.
        std::fs::create_dir(prefix.path().join("vramtrace")).unwrap();
        std::fs::write(prefix.path().join("vramtrace").join(SIMULATED), "x").unwrap();
        assert!(packaged(prefix.path(), SIMULATED).is_some());
    }

    #[test]
    fn ours_comes_first_and_only_once() {
        let preload = Preload { path: "/opt/lib/libvramtrace.so".into(), private: None };
        assert_eq!(preload.with_existing(None), "/opt/lib/libvramtrace.so");
        let both = preload.with_existing(Some("libasan.so".into()));
        assert_eq!(both, "/opt/lib/libvramtrace.so:libasan.so");
        assert_eq!(preload.with_existing(Some(both.clone())), both);
    }

    #[test]
    fn a_path_that_the_loader_would_split_goes_through_a_link() {
        let directory = tempfile::Builder::new().prefix("a b:c").tempdir().unwrap();
        let library = directory.path().join("libvramtrace.so");
        std::fs::write(&library, "x").unwrap();
        let preload = preloadable(&library).unwrap();
        assert!(can_be_preloaded(&preload.path), "{}", preload.path.display());
        assert_eq!(std::fs::read(&preload.path).unwrap(), b"x");
    }

    #[test]
    fn a_plain_path_is_used_as_it_is() {
        let preload = preloadable(Path::new("/opt/lib/libvramtrace.so")).unwrap();
        assert_eq!(preload.path, Path::new("/opt/lib/libvramtrace.so"));
    }
}
