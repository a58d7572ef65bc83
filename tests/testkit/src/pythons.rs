//! Pythons that are installed.

use std::path::{Path, PathBuf};

/// Minor versions and paths of the Pythons from 3.8 on that are installed with pyenv.
pub fn pythons() -> Vec<(u32, PathBuf)> {
    let Some(home) = std::env::var_os("HOME") else { return Vec::new() };
    let versions = Path::new(&home).join(".pyenv/versions");
    let Ok(entries) = std::fs::read_dir(versions) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let minor = name.strip_prefix("3.")?.split('.').next()?.parse().ok()?;
            (minor >= 8).then(|| (minor, entry.path().join("bin/python3")))
        })
        .collect();
    found.sort();
    found
}
