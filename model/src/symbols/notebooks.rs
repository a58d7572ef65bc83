//! The numbers of a notebook's cells. ipykernel names the code of a cell by a hash of its text; the saved notebook has
//! the text and the number. A kernel runs in the directory of its notebook.

use std::path::Path;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::trace::HostFiles;

/// Maximum number of notebooks of a directory that are read, and size of one in bytes: it may have pictures in it.
const MAX_NOTEBOOKS: usize = 64;
const MAX_NOTEBOOK_BYTES: u64 = 64 << 20;

/// Numbers by the hash of a cell's text. `None`: cells with the same text have several numbers.
#[derive(Debug, Default)]
pub(super) struct Cells(FxHashMap<u32, Option<u32>>);

#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    /// `None`: it has not been run, or is text.
    #[serde(default)]
    execution_count: Option<u32>,
    source: CellSource,
}

/// As Jupyter writes it, and as other tools do.
#[derive(Deserialize)]
#[serde(untagged)]
enum CellSource {
    Lines(Vec<String>),
    Text(String),
}

impl Cells {
    /// Of the notebooks in a directory. What cannot be read has no numbers.
    pub(super) fn below(files: &dyn HostFiles, directory: &Path) -> Cells {
        let mut found = Cells::default();
        let Ok(names) = files.names(directory) else { return found };
        let notebook = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".ipynb");
        for name in names.into_iter().filter(notebook).take(MAX_NOTEBOOKS) {
            let Ok(text) = files.map(&directory.join(name)) else { continue };
            let small = text.len() as u64 <= MAX_NOTEBOOK_BYTES;
            let read = small.then(|| serde_json::from_slice(&text).ok()).flatten();
            if let Some(notebook) = read {
                found.add(notebook);
            }
        }
        found
    }

    fn add(&mut self, notebook: Notebook) {
        for cell in notebook.cells {
            let Some(number) = cell.execution_count else { continue };
            let text = match cell.source {
                CellSource::Lines(lines) => lines.concat(),
                CellSource::Text(text) => text,
            };
            let known = self.0.entry(hash_of(&text)).or_insert(Some(number));
            if *known != Some(number) {
                *known = None;
            }
        }
    }

    pub(super) fn number(&self, hash: u32) -> Option<u32> {
        self.0.get(&hash).copied().flatten()
    }
}

/// The hash that ipykernel makes of a cell's text: MurmurHash2 of 32 bits, with its seed.
pub fn hash_of(text: &str) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0xc70f_6907;
    let mut hash = SEED ^ text.len() as u32;
    let mut words = text.as_bytes().chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ word >> 24).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let bytes = rest.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        hash = (hash ^ bytes).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TestFiles;

    #[test]
    fn cells_of_saved_notebooks_by_their_text() {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "train.ipynb",
            r##"{"cells": [
                {"cell_type": "markdown", "source": "# text"},
                {"cell_type": "code", "execution_count": 12, "source": ["def f():\n", "    return 1\n"]},
                {"cell_type": "code", "execution_count": 3, "source": "x = 12"},
                {"cell_type": "code", "execution_count": 4, "source": "ab=1"},
                {"cell_type": "code", "execution_count": 9, "source": "ab=1"},
                {"cell_type": "code", "execution_count": null, "source": "a"}
            ]}"##,
        );
        write("broken.ipynb", "{");
        write("other.txt", "{}");
        let cells = Cells::below(&TestFiles, directory.path());
        assert_eq!(cells.number(3711764925), Some(12), "lines");
        assert_eq!(cells.number(1670819179), Some(3), "one text");
        assert_eq!(cells.number(750688106), None, "two cells have this text");
        assert_eq!(cells.number(2167009006), None, "was not run");
        assert_eq!(Cells::below(&TestFiles, Path::new("/nonexistent")).number(1), None);
    }

    /// The hashes are those that ipykernel 7.4 makes.
    #[test]
    fn hashes_are_those_of_ipykernel() {
        for (text, wanted) in [
            ("", 3990065800),
            ("a", 2167009006),
            ("ab=1", 750688106),
            ("x = 12", 1670819179),
            ("x = 123", 25144494),
            ("print('\u{e9}')", 443812004),
            ("def f():\n    return 1\n", 3711764925),
        ] {
            assert_eq!(hash_of(text), wanted, "{text}");
        }
    }
}
