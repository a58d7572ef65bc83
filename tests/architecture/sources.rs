//! The text of a crate's files, from a folder or from memory.

use std::collections::BTreeMap;
use std::path::Path;

/// Text of each file, by its path below the source folder ("hooks/families/alloc.rs").
pub type Sources = BTreeMap<String, String>;

/// All `.rs` files below `folder`.
pub fn read(folder: &Path) -> Sources {
    let mut sources = Sources::new();
    read_into(&mut sources, folder, "");
    sources
}

fn read_into(sources: &mut Sources, folder: &Path, prefix: &str) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let entry = entry.expect("a folder's entry");
        let name = entry.file_name().into_string().expect("a file's name in UTF-8");
        let path = entry.path();
        if path.is_dir() {
            read_into(sources, &path, &format!("{prefix}{name}/"));
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            sources.insert(format!("{prefix}{name}"), text);
        }
    }
}
