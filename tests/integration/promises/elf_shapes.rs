//! Programs and libraries of unusual ELF shapes end as they do without the library. `tests/elf/elf-shapes.py` makes all of
//! them; here some are tried.

use std::process::Command;
use testkit::shim;

#[track_caller]
fn none_differs(choice: [&str; 2], shapes: usize) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/elf/elf-shapes.py");
    let bins = shim().parent().expect("a directory").to_owned();
    let done = Command::new("python3").arg(script).arg(bins).args(choice).output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{printed}{}", String::from_utf8_lossy(&done.stderr));
    let summary = printed.lines().last().unwrap_or_default();
    let built = summary.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    assert!(built >= shapes, "{printed}");
}

#[test]
fn twenty_shapes_of_all() {
    none_differs(["--count", "24"], 20);
}

/// Two libraries that are linked to the same addresses: the loader moves one of them, and the page at the difference of
/// its addresses belongs to nobody.
#[test]
fn a_library_that_is_not_where_it_was_linked_to() {
    none_differs(["--only", "library, pie, other-address"], 1);
}
