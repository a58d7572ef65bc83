//! Every file of tests is compiled, and named in docs/PROMISES.md: cargo gets the crates by name, and
//! would miss one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::sources;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_test_file_is_a_module_of_its_crate() {
    for name in names(&tests().join("integration")) {
        let folder = tests().join("integration").join(&name);
        let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
        for file in names(&folder) {
            let module = file.trim_end_matches(".rs");
            let declared = module == "main" || main.contains(&format!("mod {module};\n"));
            assert!(declared, "tests/integration/{name}/main.rs lacks `mod {module};`");
        }
    }
}

/// What stands between backticks in a text, and whether a colon follows.
fn quoted(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut parts = text.split('`').peekable();
    parts.next();
    std::iter::from_fn(move || {
        let word = parts.next()?;
        let behind = parts.next().unwrap_or_default();
        Some((word, behind.starts_with(':')))
    })
}

/// The files that the table of promises and the text below it name. `promises/`: `graphs.rs`, `kill.rs`
/// are two files of one folder. Paths are below tests/integration/ or the repository.
fn named(promises: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for cell in promises.split(['|']).flat_map(|cell| cell.split("\n\n")) {
        let mut folder = None;
        for (word, is_list) in quoted(cell).filter(|(word, _)| !word.contains([' ', '<', ':'])) {
            let path = match word {
                _ if is_list && word.ends_with('/') => {
                    folder = Some(word);
                    continue;
                }
                _ if word.contains('/') => word.to_string(),
                _ if !word.contains('.') => continue,
                _ => folder.unwrap_or_default().to_string() + word,
            };
            let below = tests().join("integration").join(&path).exists();
            all.insert(if below { format!("tests/integration/{path}") } else { path });
        }
    }
    all
}

fn document(name: &str) -> String {
    std::fs::read_to_string(tests().join("../docs").join(name)).unwrap()
}

/// All that tests: crates of tests, models, what is fuzzed, scripts that run a part.
fn every_test() -> BTreeSet<String> {
    let root = tests().join("..");
    let in_folder = |folder: &str, is_test: &dyn Fn(&str) -> bool| -> Vec<String> {
        let files = names(&root.join(folder)).into_iter().filter(|name| is_test(name));
        files.map(|name| format!("{folder}/{name}")).collect()
    };
    let is_rust = |name: &str| name.ends_with(".rs") && !matches!(name, "main.rs" | "mod.rs");
    let mut all = BTreeSet::new();
    for name in names(&tests().join("integration")) {
        all.extend(in_folder(&format!("tests/integration/{name}"), &is_rust));
    }
    for folder in ["format/tests", "shim/tests", "sim/tests", "models/src/tests"] {
        all.extend(in_folder(folder, &is_rust));
    }
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    let is_target = |name: &str| manifest.contains(&format!("path = \"fuzz_targets/{name}\""));
    all.extend(in_folder("fuzz/fuzz_targets", &is_target));
    let is_script = |name: &str| name.starts_with("test-") && name.ends_with(".sh");
    for folder in ["scripts", "tests/systems", "packaging"] {
        all.extend(in_folder(folder, &is_script));
    }
    all.extend(in_folder("web/tests", &|name| name.ends_with(".test.mjs")));
    all
}

#[test]
fn the_documents_name_every_test() {
    let named = named(&document("PROMISES.md"));
    let missing: Vec<_> = every_test().into_iter().filter(|test| !named.contains(test)).collect();
    assert!(missing.is_empty(), "docs/PROMISES.md: no line names {missing:#?}");
    let gone: Vec<_> =
        named.into_iter().filter(|path| !tests().join("..").join(path).exists()).collect();
    assert!(gone.is_empty(), "docs/PROMISES.md: there is no {gone:#?}");
}

#[test]
fn a_name_that_is_wrong_shows() {
    let text = "| a promise | `promises/`: `kill.rs`, `gone.rs`, `scripts/` and `limits/top.rs` |";
    let of = |name: &str| named(text).contains(name);
    assert!(of("tests/integration/promises/kill.rs") && of("tests/integration/limits/top.rs"));
    assert!(of("promises/gone.rs") && of("scripts/") && named(text).len() == 4);
}

/// The other tables name files by the end of their path: `hooks/process/state.rs`.
#[test]
fn every_file_that_the_documents_name_is_there() {
    let all = sources::files(&tests().join(".."));
    let text = document("ARCHITECTURE.md");
    let is_file = |word: &str| {
        let end = word.rsplit('.').next().unwrap_or_default();
        matches!(end, "rs" | "sh" | "mjs" | "ts" | "md" | "toml") && !word.contains([' ', '<', '*'])
    };
    let words = quoted(&text).map(|(word, _)| word).filter(|word| is_file(word));
    let is_there =
        |word: &&str| all.keys().any(|path| format!("/{path}").ends_with(&format!("/{word}")));
    let gone: Vec<_> = words.filter(|word| !is_there(word)).collect();
    assert!(gone.is_empty(), "docs/ARCHITECTURE.md: there is no {gone:#?}");
}

/// A lint that the workspace denies holds in `fuzz/` and `models/` too, which are outside of it.
#[test]
fn packages_outside_the_workspace_have_its_lints() {
    let read = |folder: &str| {
        std::fs::read_to_string(tests().join("..").join(folder).join("Cargo.toml")).unwrap()
    };
    let workspace = read(".");
    let is_denied = |line: &&str| line.ends_with("= \"deny\"") || line.starts_with("all = ");
    let lints = workspace.split("[package]").next().unwrap();
    let denied: Vec<&str> = lints.lines().filter(is_denied).collect();
    assert!(denied.len() >= 4 && denied.contains(&"undocumented_unsafe_blocks = \"deny\""));
    for folder in ["fuzz", "models"] {
        let own = read(folder);
        let has = |line: &str| own.lines().any(|own| own == line);
        let lacks: Vec<_> = denied.iter().filter(|line| !has(line)).collect();
        assert!(lacks.is_empty(), "{folder}/Cargo.toml lacks {lacks:#?}");
    }
}

#[test]
fn cargo_knows_every_crate_of_tests() {
    let manifest = std::fs::read_to_string(tests().join("../Cargo.toml")).unwrap();
    for name in names(&tests().join("integration")) {
        let path = format!("path = \"tests/integration/{name}/main.rs\"");
        assert!(manifest.contains(&path), "Cargo.toml has no [[test]] of tests/integration/{name}");
    }
    let stray: Vec<String> = names(&tests()).into_iter().filter(|n| n.ends_with(".rs")).collect();
    assert!(stray.is_empty(), "no crate has {stray:?}: tests lie in tests/integration");
}
