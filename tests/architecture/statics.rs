//! The library's state hangs on its `Process`. Each static beside it is in a list, with its reason.

use std::collections::BTreeSet;
use std::path::Path;

use crate::lines::without_tests;
use crate::sources;

/// The statics of a file, as the list has them.
fn rows(path: &str, text: &str) -> Vec<String> {
    let row = |line: &str| {
        let (before, behind) = line.split_once("static ").filter(|_| !line.contains("//"))?;
        let name = behind.split_once(": ")?.0;
        let is_item = !before.ends_with('\'') && !name.contains([' ', '<', '[', '(']);
        is_item.then(|| format!("`{name}` | `{path}`"))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn each_static_of_the_library_has_a_reason() {
    let all = without_tests(&sources::read(Path::new("shim/src")));
    let found: BTreeSet<_> = all.iter().flat_map(|(path, text)| rows(path, text)).collect();
    let row = |line: &str| Some(line.strip_prefix("//! | ")?.rsplit_once(" | ")?.0.to_string());
    let list = all["hooks/process/statics.rs"].lines().filter(|line| line.contains("| `"));
    assert_eq!(found, list.filter_map(row).collect());
    assert_eq!(rows("a.rs", "f(a: &'static str)\n static A: u8 = 0;"), ["`A` | `a.rs`"]);
}
