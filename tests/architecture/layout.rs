//! The rooms of a crate, who may import whom, and what stands against it.

use std::collections::BTreeMap;

use crate::cycles::{Graph, cycles};
use crate::imports::{Import, find};
use crate::sources::Sources;
use crate::tree::{FileId, Tree};

/// What is allowed in one crate.
pub struct Layout {
    /// The folder of its sources.
    pub folder: &'static str,
    /// The library's name in paths of the crate's other roots.
    pub library: &'static str,
    /// Folders of the sources whose folders and files are rooms themselves; only the file `mod.rs` of such a
    /// folder may import all.
    pub divided: &'static [&'static str],
    /// Its rooms, from the bottom up. A room is the first folder below the sources, or a file
    /// directly in them. A room may import those of every lower line; `lib.rs` and `main.rs` may
    /// import all.
    pub layers: &'static [&'static [&'static str]],
    /// Pairs that stay apart though the first stands above the second.
    pub apart: &'static [(&'static str, &'static str)],
    /// The most files that may import each other in a circle.
    pub largest_cycle: usize,
}

/// A crate's files and all imports between them.
pub struct Crate {
    pub files: Vec<String>,
    pub imports: Vec<Import>,
    divided: &'static [&'static str],
}

impl Crate {
    pub fn read(sources: &Sources, layout: &Layout) -> Crate {
        let tree = Tree::load(sources, layout.library);
        let imports = find(&tree);
        Crate { files: tree.files, imports, divided: layout.divided }
    }

    /// `model`, or `analysis/memory` where `analysis` is divided.
    pub fn room(&self, file: FileId) -> &str {
        let path = &self.files[file];
        let first = path.split('/').next().expect("a name");
        let inner = path[first.len()..].trim_start_matches('/').split('/').next().expect("a name");
        let end = match self.divided.contains(&first) {
            true if inner == "mod.rs" => first.len(),
            true => first.len() + 1 + inner.len(),
            false => first.len(),
        };
        path[..end].trim_end_matches(".rs")
    }

    /// `hooks/families/alloc.rs:12 imports model/ledger/mod.rs (crate::model::Ledger)`
    pub fn describe(&self, import: &Import) -> String {
        let Import { from, line, to, path, .. } = import;
        format!("{}:{line} imports {} ({path})", self.files[*from], self.files[*to])
    }

    /// Imports from one room into another, by the pair of rooms.
    pub fn between_rooms(&self) -> BTreeMap<(&str, &str), Vec<&Import>> {
        let mut pairs = BTreeMap::<_, Vec<&Import>>::new();
        for import in &self.imports {
            let (from, to) = (self.room(import.from), self.room(import.to));
            if from != to {
                pairs.entry((from, to)).or_default().push(import);
            }
        }
        pairs
    }

    /// Rooms that import each other, the largest cycle first.
    pub fn room_cycles(&self) -> Vec<Vec<&str>> {
        let mut graph = Graph::new();
        for (from, to) in self.between_rooms().into_keys() {
            graph.entry(from).or_default().insert(to);
        }
        cycles(&graph)
    }

    /// Files that import each other, the largest cycle first.
    pub fn file_cycles(&self) -> Vec<Vec<&str>> {
        let mut graph = Graph::new();
        for import in self.imports.iter().filter(|import| !import.name_of_module) {
            let (from, to) = (self.files[import.from].as_str(), self.files[import.to].as_str());
            graph.entry(from).or_default().insert(to);
        }
        cycles(&graph)
    }
}

/// Imports among the files of a cycle.
pub fn within<'c>(of: &'c Crate, cycle: &[&str]) -> Vec<&'c Import> {
    let inside = |file: FileId| cycle.contains(&of.files[file].as_str());
    let counts = |i: &&Import| !i.name_of_module && inside(i.from) && inside(i.to);
    of.imports.iter().filter(counts).collect()
}

impl Layout {
    /// Everything in the crate that the layout does not allow, one line each.
    pub fn violations(&self, of: &Crate) -> Vec<String> {
        let mut all = self.unknown_rooms(of);
        for ((from, to), imports) in of.between_rooms() {
            let forbidden = match (self.height(from), self.height(to)) {
                (Some(above), Some(below)) => above <= below || self.apart.contains(&(from, to)),
                _ => false,
            };
            if forbidden {
                let lines = imports.iter().map(|i| format!("{}/{}", self.folder, of.describe(i)));
                all.extend(lines);
            }
        }
        for cycle in of.file_cycles().iter().filter(|c| c.len() > self.largest_cycle) {
            let (files, most) = (cycle.len(), self.largest_cycle);
            all.push(format!("{files} files import each other, {most} may: {}", cycle.join(" ")));
        }
        all
    }

    /// Rooms that the table does not name, and names in it that no room has.
    fn unknown_rooms(&self, of: &Crate) -> Vec<String> {
        let present: Vec<&str> = (0..of.files.len()).map(|file| of.room(file)).collect();
        let mut missing: Vec<String> = present
            .iter()
            .filter(|room| self.height(room).is_none())
            .map(|room| format!("{}: no line of the table names the room {room}", self.folder))
            .collect();
        missing.dedup();
        let named = self.layers.iter().copied().flatten();
        missing.extend(
            named
                .filter(|room| !present.contains(room))
                .map(|room| format!("{}: the table names {room}, which is no room", self.folder)),
        );
        missing
    }

    fn height(&self, room: &str) -> Option<usize> {
        if ["lib", "main"].contains(&room) {
            return Some(self.layers.len());
        }
        self.layers.iter().position(|layer| layer.contains(&room))
    }
}
