//! Every file of tests is compiled: cargo gets the crates by name, and would miss one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

#[test]
fn the_documents_name_every_integration_test() {
    let text = std::fs::read_to_string(tests().join("../docs/ARCHITECTURE.md")).unwrap();
    let promises = text.split("## Promises").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut missing = Vec::new();
    for name in names(&tests().join("integration")) {
        for file in names(&tests().join("integration").join(&name)) {
            // `promises/`: `api_families.rs`, `contexts.rs` names two files of one folder.
            let whole = promises.contains(&format!("`{name}/{file}`"));
            let of_folder = promises
                .split(&format!("`{name}/`:"))
                .skip(1)
                .any(|rest| rest.split(['|', '\n']).next().unwrap().contains(&format!("`{file}`")));
            if file != "main.rs" && !whole && !of_folder {
                missing.push(format!("{name}/{file}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/ARCHITECTURE.md, Promises: no line names {missing:?}");
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
