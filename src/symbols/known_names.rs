//! Names that files have given already: the processes of one run mostly ask the same files for the same
//! addresses, and reading debug information takes most of the time.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::native::{self, Name, Unnamed};

/// A file by its path and build-id.
type KnownNames = FxHashMap<(PathBuf, Box<[u8]>), FxHashMap<u64, Vec<Name>>>;

static KNOWN_NAMES: Mutex<Option<KnownNames>> = Mutex::new(None);

/// As [`native::names`], which is asked for those that are new.
pub fn names(path: &Path, build_id: &[u8], addresses: &[u64]) -> Result<Vec<Vec<Name>>, Unnamed> {
    // Nothing tells whether it is still the same file.
    if build_id.is_empty() {
        return native::names(path, build_id, addresses);
    }
    let mut all = KNOWN_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (path.to_path_buf(), build_id.into());
    let known = all.get_or_insert_default().entry(key).or_default();
    let new: Vec<u64> = addresses.iter().copied().filter(|at| !known.contains_key(at)).collect();
    if !new.is_empty() {
        let names = native::names(path, build_id, &new)?;
        known.extend(new.into_iter().zip(names));
    }
    Ok(addresses.iter().map(|at| known[at].clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_asked_for_what_is_new_only() {
        let (path, id) = (Path::new("/nowhere/libgone.so"), &[7u8, 1][..]);
        assert!(matches!(names(path, id, &[16]), Err(Unnamed::Missing)));
        let name = Name { function: Some("f".into()), ..Name::default() };
        let one = [(16, vec![name.clone()])].into_iter().collect();
        KNOWN_NAMES.lock().unwrap().as_mut().unwrap().insert((path.into(), id.into()), one);
        assert_eq!(names(path, id, &[16, 16]).unwrap(), [vec![name.clone()], vec![name]]);
        assert!(matches!(names(path, id, &[16, 32]), Err(Unnamed::Missing)));
        // Another file of that name, or one that may be another.
        assert!(matches!(names(path, &[7, 2], &[16]), Err(Unnamed::Missing)));
        assert!(matches!(names(path, &[], &[16]), Err(Unnamed::Missing)));
    }
}
