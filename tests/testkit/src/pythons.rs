//! Finds the installed Pythons.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;

/// Minor versions and paths of the Pythons from 3.8 on: all of pyenv's, and the system's if pyenv has none
/// of its minor version. Without any the test is skipped.
pub fn pythons() -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = of_pyenv().collect();
    found.sort();
    found.dedup();
    let system = Path::new("/usr/bin/python3");
    if let Some(minor) = minor_version(system).filter(|minor| *minor >= 8)
        && found.iter().all(|(known, _)| *known != minor)
    {
        found.push((minor, system.to_path_buf()));
        found.sort();
    }
    if found.is_empty() {
        skip("no Python from 3.8 on");
    }
    found
}

fn of_pyenv() -> impl Iterator<Item = (u32, PathBuf)> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let named = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let common = ["/opt/pyenv", "/usr/local/pyenv"].map(PathBuf::from);
    let roots = home.into_iter().chain(named).chain(common);
    let versions = roots.filter_map(|root| std::fs::read_dir(root.join("versions")).ok());
    versions.flatten().flatten().filter_map(|version| {
        let name = version.file_name().into_string().ok()?;
        let minor = name.strip_prefix("3.")?.split('.').next()?.parse().ok()?;
        let python = version.path().join("bin/python3");
        (minor >= 8 && python.is_file()).then_some((minor, python))
    })
}

/// The minor version that `python -V` prints: 11 of `Python 3.11.2`.
fn minor_version(python: &Path) -> Option<u32> {
    let output = Command::new(python).arg("-V").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().strip_prefix("Python 3.")?.split('.').next()?.parse().ok()
}
