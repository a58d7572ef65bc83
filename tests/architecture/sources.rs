//! The text of a crate's files, from a folder or from memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Text of each file, by its path below the source folder ("hooks/families/alloc.rs").
pub type Sources = BTreeMap<String, String>;

/// All `.rs` files below `folder`.
pub fn read(folder: &Path) -> Sources {
    let files = files(folder).into_iter().filter(|(path, _)| path.ends_with(".rs"));
    let text = |at: PathBuf| std::fs::read_to_string(at).expect("a source file");
    files.map(|(path, at)| (path, text(at))).collect()
}

/// All files below `folder` by path, without what is built, fetched or hidden.
pub fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    walk(folder, "", &mut all);
    all
}

fn walk(folder: &Path, below: &str, all: &mut BTreeMap<String, PathBuf>) {
    const BUILT: [&str; 5] = ["target", "node_modules", "dist", "generated", "__pycache__"];
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.map(|entry| entry.expect("a folder's entry")) {
        let name = entry.file_name().into_string().expect("a file's name in UTF-8");
        if name.starts_with('.') || BUILT.contains(&&*name) {
            continue;
        }
        match entry.path() {
            path if path.is_dir() => walk(&path, &format!("{below}{name}/"), all),
            path => drop(all.insert(format!("{below}{name}"), path)),
        }
    }
}
