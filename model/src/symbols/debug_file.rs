//! Files that have what was stripped from another file: its symbols and debug information.

use std::path::{Path, PathBuf};

use object::Object;

use super::native::hex;

/// Where distributions keep debug information.
const DEBUG: &str = "/usr/lib/debug";

/// Why functions of a file have no names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stripped {
    #[error("no symbols: stripped")]
    Alone,
    /// The file names one with its symbols.
    #[error("no symbols: stripped, and its debug file {0} is not found")]
    DebugFileMissing(String),
}

impl Stripped {
    /// `None`: it has symbols of its own.
    pub(super) fn of(file: &object::File) -> Option<Stripped> {
        let stripped = file.symbols().next().is_none();
        stripped.then(|| link(file).map_or(Stripped::Alone, Stripped::DebugFileMissing))
    }
}

/// Where a file with the symbols or the debug information of `file` may be. None, if it has both.
pub(super) fn places(path: &Path, file: &object::File, build_id: &[u8]) -> Vec<PathBuf> {
    if build_id.len() < 2 || file.section_by_name(".debug_info").is_some() {
        return Vec::new();
    }
    let (first, rest) = build_id.split_at(1);
    let by_id = format!("{DEBUG}/.build-id/{}/{}.debug", hex(first), hex(rest));
    let mut places = vec![PathBuf::from(by_id)];
    if let (Some(name), Some(folder)) = (link(file), path.parent()) {
        places.push(folder.join(&name));
        places.push(folder.join(".debug").join(&name));
        let absolute = folder.strip_prefix("/").map(|folder| Path::new(DEBUG).join(folder));
        places.extend(absolute.map(|folder| folder.join(&name)));
    }
    places
}

/// The file name in `.gnu_debuglink`.
fn link(file: &object::File) -> Option<String> {
    let (name, _checksum) = file.gnu_debuglink().ok()??;
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains('/')).then(|| name.to_string())
}
