//! Imports between the rooms of a crate, and which of them its layout does not allow. An import is a path that begins
//! with `crate`, `super` or the library's name, anywhere outside of tests: in a `use`, an expression, a macro.

use std::collections::{BTreeMap, BTreeSet};

use crate::lines::without_tests;
use crate::sources::Sources;
use crate::tokens::paths;

/// What is allowed in one crate.
pub struct Layout {
    /// The folder of its sources.
    pub folder: &'static str,
    /// The library's name in paths of the crate's other roots.
    pub library: &'static str,
    /// A folder of the sources whose folders and files are rooms themselves; only the file `mod.rs` of that
    /// folder may import all.
    pub divided: &'static str,
    /// Its rooms, from the bottom up. A room is the first folder below the sources, or a file
    /// directly in them. A room may import those of every lower layer, which `;` separates; `lib.rs` and
    /// `main.rs` may import all.
    pub layers: &'static str,
    /// Pairs that stay apart though the first stands above the second.
    pub apart: &'static [(&'static str, &'static str)],
}

/// Of each module that others import from: its names that come from elsewhere, by name. `*` is a whole module.
type Reexports = BTreeMap<String, Vec<String>>;

impl Layout {
    /// Everything in the crate that the layout does not allow, one line each.
    pub fn violations(&self, sources: &Sources) -> Vec<String> {
        let sources = without_tests(sources);
        let shown = |file: &str| sources.get(file).map(|text| reexports(text)).unwrap_or_default();
        let of_root = shown("lib.rs");
        let of_divided = shown(&format!("{}/mod.rs", self.divided));
        let mut present = BTreeSet::new();
        let mut all = BTreeSet::new();
        for (file, text) in &sources {
            let module = module(file);
            let Some(from) = self.room(&module, &of_root, &of_divided) else { continue };
            present.insert(from.clone());
            for path in paths(&text.parse().unwrap_or_else(|e| panic!("{file}: {e}"))) {
                let Some(target) = self.absolute(&module, &path.segments) else { continue };
                let Some(to) = self.room(&target, &of_root, &of_divided) else { continue };
                if to != from && self.is_forbidden(&from, &to) {
                    let (folder, line, named) = (self.folder, path.line, path.segments.join("::"));
                    all.insert(format!("{folder}/{file}:{line} imports {to} ({named})"));
                }
            }
        }
        let named: BTreeSet<String> =
            self.layers.split("; ").flat_map(|layer| layer.split(' ')).map(String::from).collect();
        let folder = self.folder;
        all.extend(present.difference(&named).map(|room| format!("{folder}: no layer has {room}")));
        all.extend(named.difference(&present).map(|room| format!("{folder}: no room is {room}")));
        all.into_iter().collect()
    }

    fn is_forbidden(&self, from: &str, to: &str) -> bool {
        let height = |room| {
            self.layers.split("; ").position(|layer| layer.split(' ').any(|name| name == room))
        };
        let (Some(above), Some(below)) = (height(from), height(to)) else { return false };
        above <= below || self.apart.contains(&(from, to))
    }

    /// The module, and what in it, that a path of the crate means. None: another crate's, or something near.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let up = path.iter().take_while(|segment| *segment == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "super" => Some([module.get(..module.len() - up)?, &path[up..]].concat()),
            library if library == self.library => Some(path[1..].to_vec()),
            _ => None,
        }
    }

    /// The room of a path from the crate's root: `model`, or `analysis/memory` where `analysis` is divided. None:
    /// the root itself.
    fn room(&self, path: &[String], root: &Reexports, divided: &Reexports) -> Option<String> {
        let first = path.first()?;
        if let Some(target) = root.get(first) {
            return self.room(target, &Reexports::new(), divided);
        }
        let second = path.get(1).filter(|_| *first == self.divided);
        let Some(second) = second else { return Some(first.clone()) };
        let inner = divided.get(second).and_then(|target| target.first()).unwrap_or(second);
        let is_room = |name: &str| self.layers.split([' ', ';']).any(|room| room == name);
        let rooms = [Some(inner), divided.get("*").and_then(|target| target.first())];
        let rooms = rooms.into_iter().flatten().map(|name| format!("{first}/{name}"));
        Some(rooms.into_iter().find(|room| is_room(room)).unwrap_or(format!("{first}/{second}")))
    }
}

/// `analysis/memory/mod.rs` -> `analysis`, `memory`; `lib.rs` -> nothing.
fn module(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let parts = path.split('/').filter(|part| !matches!(*part, "lib" | "main"));
    parts.map(String::from).collect()
}

/// What `pub use child::..` of a file shows.
fn reexports(text: &str) -> Reexports {
    let mut shown = Reexports::new();
    let uses = text.split("pub use ").skip(1).chain(text.split("pub(crate) use ").skip(1));
    for used in uses.map(|rest| rest.split(';').next().expect("a part")) {
        if let Some(child) = used.strip_suffix("::*") {
            shown.insert("*".into(), vec![child.into()]);
        }
        for path in paths(&used.parse().expect("a path")) {
            let name = path.segments.last().expect("a segment").clone();
            shown.insert(name, path.segments);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        folder: "src",
        library: "library",
        divided: "parts",
        layers: "low beside; high; parts/lower; parts/upper; parts",
        apart: &[("high", "beside")],
    };

    /// What stands against the layout where a file has this text besides what others have.
    fn found(file: &str, text: &str) -> Vec<String> {
        let files = [
            ("lib.rs", "mod low; pub use high::Shown; pub use parts::upper::Far;"),
            ("main.rs", "use library::high::Top;"),
            ("low.rs", ""),
            ("beside.rs", ""),
            ("high/mod.rs", "use crate::low::Base; pub use inner::Top;"),
            ("high/inner.rs", "use super::Top;"),
            ("parts/mod.rs", "pub use lower::*; pub use upper::{Up, deep};"),
            ("parts/lower.rs", "use crate::high::Top;"),
            ("parts/upper/mod.rs", "use crate::parts::{Low, upper::Up}; use super::lower::Low;"),
        ];
        let mut sources: Sources =
            files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        sources.insert(file.into(), text.into());
        LAYOUT.violations(&sources)
    }

    #[test]
    fn each_form_of_an_import_against_the_layout_is_named() {
        assert_eq!(found("low.rs", "pub struct Base;"), [""; 0]);
        for (file, text, wrong) in [
            ("low.rs", "\nuse crate::high::Top;", "2 imports high (crate::high::Top)"),
            ("low.rs", "use crate::high;", "1 imports high (crate::high)"),
            ("low.rs", "use super::{\nhigh::Top};", "2 imports high (super::high::Top)"),
            ("low.rs", "fn f() { crate::high::run() }", "1 imports high (crate::high::run)"),
            ("low.rs", "m!(a, $crate::high::run());", "1 imports high (crate::high::run)"),
            ("low.rs", "use crate::Shown;", "1 imports high (crate::Shown)"),
            ("low.rs", "use crate::beside::B;", "1 imports beside (crate::beside::B)"),
            ("high/inner.rs", "use crate::beside::B;", "1 imports beside (crate::beside::B)"),
            ("high/inner.rs", "use crate::Far;", "1 imports parts/upper (crate::Far)"),
            ("parts/lower.rs", "use super::Up;", "1 imports parts/upper (super::Up)"),
            (
                "parts/lower.rs",
                "use crate::parts::deep;",
                "1 imports parts/upper (crate::parts::deep)",
            ),
        ] {
            assert_eq!(found(file, text), [format!("src/{file}:{wrong}")], "{text}");
        }
    }

    #[test]
    fn tests_and_names_of_other_crates_are_no_imports() {
        for text in [
            "#[cfg(test)]\nuse crate::high::Top;",
            "#[cfg(test)]\nmod tests {\n    use crate::high::Top;\n}",
            "use high::Top; fn f() { high::run(); x.high; ::high::run() }",
            "pub(in crate::high) fn f() {}",
        ] {
            assert_eq!(found("low.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_room_must_stand_in_the_table_and_the_table_names_rooms_alone() {
        assert_eq!(found("new.rs", ""), ["src: no layer has new"]);
        assert_eq!(found("low.rs", "")[..], [""; 0]);
        let mut sources = Sources::new();
        sources.insert("low.rs".into(), String::new());
        assert_eq!(LAYOUT.violations(&sources).len(), 5);
    }
}
