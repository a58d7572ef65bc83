//! The library's state hangs on its `Process`. Each static beside it is in a list, with its reason.

use std::collections::BTreeSet;
use std::path::Path;

use crate::lines::without_tests;
use crate::sources::{self, Sources};

const LIST: &str = "hooks/process/statics.rs";

/// A row of the list without its reason.
fn row(path: &str, line: &str) -> Option<String> {
    let (before, behind) = line.split_once("static ")?;
    let name = behind.split_once(':')?.0;
    let is_name = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let is_item = is_name && !before.ends_with('\'') && !before.contains("//");
    is_item.then(|| format!("//! | `{name}` | `{path}` |"))
}

fn violations(sources: &Sources) -> Vec<String> {
    let found = |(path, text): (&String, &String)| {
        text.lines().filter_map(|line| row(path, line)).collect::<Vec<String>>()
    };
    let found: BTreeSet<String> = sources.iter().flat_map(found).collect();
    let listed = |line: &&str| line.starts_with("//! | `") && line.split('|').count() == 5;
    let known = |line: &str| line[..=line.rmatch_indices('|').nth(1).unwrap().0].to_string();
    let listed: BTreeSet<String> = sources[LIST].lines().filter(listed).map(known).collect();
    listed.symmetric_difference(&found).cloned().collect()
}

#[test]
fn each_static_of_the_library_has_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim/src");
    let mut sources = without_tests(&sources::read(&folder));
    let wrong = violations(&sources);
    assert!(wrong.is_empty(), "not in {LIST}, or not in the sources:\n{}", wrong.join("\n"));
    sources.insert("a.rs".into(), "fn f(a: &'static str) {\n    static A: u8 = 0;\n}".into());
    assert_eq!(violations(&sources), ["//! | `A` | `a.rs` |"]);
}
