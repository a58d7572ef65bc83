//! Names that files have given already: the processes of one run mostly ask the same files for the same
//! addresses, and reading debug information takes most of the time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::debug_file::Stripped;
use super::limits::Limit;
use super::native::{self, FileNames, ResolvedFrame, Unnamed};
use crate::trace::HostFiles;

/// A file by its path and build-id.
type KnownNames = FxHashMap<(PathBuf, Box<[u8]>), CachedNames>;

#[derive(Default)]
struct CachedNames {
    names: FxHashMap<u64, Vec<ResolvedFrame>>,
    without_lines: Option<Limit>,
    stripped: Option<Stripped>,
}

static KNOWN_NAMES: Mutex<Option<KnownNames>> = Mutex::new(None);

/// As [`native::names`], which is asked for those that are new.
pub fn names(
    files: &dyn HostFiles,
    path: &Path,
    build_id: &[u8],
    addresses: &[u64],
) -> Result<FileNames, Unnamed> {
    // Nothing tells whether it is still the same file.
    if build_id.is_empty() {
        return native::names(files, path, build_id, addresses);
    }
    let mut all = KNOWN_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (path.to_path_buf(), build_id.into());
    let CachedNames { names, without_lines, stripped } =
        all.get_or_insert_default().entry(key).or_default();
    let new: Vec<u64> = addresses.iter().copied().filter(|at| !names.contains_key(at)).collect();
    if !new.is_empty() {
        let found = native::names(files, path, build_id, &new)?;
        names.extend(new.into_iter().zip(found.names));
        *without_lines = without_lines.or(found.without_lines);
        *stripped = stripped.take().or(found.stripped);
    }
    let names = addresses.iter().map(|at| names[at].clone()).collect();
    Ok(FileNames { names, without_lines: *without_lines, stripped: stripped.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TestFiles;

    #[test]
    fn a_file_is_asked_for_what_is_new_only() {
        let (path, id) = (Path::new("/nowhere/libgone.so"), &[7u8, 1][..]);
        assert!(matches!(names(&TestFiles, path, id, &[16]), Err(Unnamed::Missing)));
        let name = ResolvedFrame { function: Some("f".into()), ..ResolvedFrame::default() };
        let names_of_one = [(16, vec![name.clone()])].into_iter().collect();
        let one = CachedNames { names: names_of_one, ..CachedNames::default() };
        KNOWN_NAMES.lock().unwrap().as_mut().unwrap().insert((path.into(), id.into()), one);
        assert_eq!(
            names(&TestFiles, path, id, &[16, 16]).unwrap().names,
            [vec![name.clone()], vec![name]]
        );
        assert!(matches!(names(&TestFiles, path, id, &[16, 32]), Err(Unnamed::Missing)));
        // Another file of that name, or one that may be another.
        assert!(matches!(names(&TestFiles, path, &[7, 2], &[16]), Err(Unnamed::Missing)));
        assert!(matches!(names(&TestFiles, path, &[], &[16]), Err(Unnamed::Missing)));
    }
}
