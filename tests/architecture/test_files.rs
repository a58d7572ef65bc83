//! Every file of tests is compiled: cargo is told of the crates by name, and would miss one.

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
fn cargo_knows_every_crate_of_tests() {
    let manifest = std::fs::read_to_string(tests().join("../Cargo.toml")).unwrap();
    for name in names(&tests().join("integration")) {
        let path = format!("path = \"tests/integration/{name}/main.rs\"");
        assert!(manifest.contains(&path), "Cargo.toml has no [[test]] of tests/integration/{name}");
    }
    let stray: Vec<String> = names(&tests()).into_iter().filter(|n| n.ends_with(".rs")).collect();
    assert!(stray.is_empty(), "no crate has {stray:?}: tests lie in tests/integration");
}
