//! The finder on small trees: every form of an import is found, and nothing else.

use std::collections::BTreeSet;

use crate::cycles::{Graph, cycles};
use crate::layout::{Crate, Layout};
use crate::sources::Sources;

fn tree(files: &[(&str, &str)]) -> Crate {
    let sources: Sources =
        files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
    Crate::read(&sources, &LAYOUT)
}

/// Two rooms, `a` with the text and `b` with several things to import.
fn import_from_b(text: &str) -> Vec<String> {
    imports(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", text),
        ("b/mod.rs", "pub mod deep; pub use deep::Shown; pub fn call() {} pub struct Thing;"),
        ("b/deep.rs", "pub struct Shown; pub struct Hidden; pub fn run() {}"),
    ])
}

/// All imports that count among files, `from:line to`.
fn imports(files: &[(&str, &str)]) -> Vec<String> {
    let read = tree(files);
    let all = read.imports.iter().filter(|import| !import.name_of_module);
    let lines: BTreeSet<String> =
        all.map(|i| format!("{}:{} {}", read.files[i.from], i.line, read.files[i.to])).collect();
    lines.into_iter().collect()
}

#[test]
fn a_use_is_an_import() {
    assert_eq!(import_from_b("use crate::b::Thing;"), ["a.rs:1 b/mod.rs"]);
    assert_eq!(import_from_b("\nuse super::b::deep::Hidden;"), ["a.rs:2 b/deep.rs"]);
    assert_eq!(import_from_b("use crate::b::Thing as Other;"), ["a.rs:1 b/mod.rs"]);
}

#[test]
fn every_name_of_a_group_has_its_own_line() {
    let found = import_from_b("use crate::{\n  b::Thing,\n  b::deep::{self, Hidden},\n};");
    assert_eq!(found, ["a.rs:2 b/mod.rs", "a.rs:3 b/deep.rs"]);
}

#[test]
fn a_reexport_leads_to_the_file_that_defines_it() {
    assert_eq!(import_from_b("use crate::b::Shown;"), ["a.rs:1 b/deep.rs"]);
    assert_eq!(import_from_b("fn f() -> crate::b::Shown { todo!() }"), ["a.rs:1 b/deep.rs"]);
}

#[test]
fn a_reexport_of_a_reexport_leads_to_the_end() {
    let found = imports(&[
        ("lib.rs", "mod a; mod b; pub use b::Shown;"),
        ("a.rs", "use crate::Shown;"),
        ("b/mod.rs", "mod deep; pub use self::deep::Inner as Shown;"),
        ("b/deep.rs", "pub use crate::b::deep::last::*; mod last;"),
        ("b/deep/last.rs", "pub struct Inner;"),
    ]);
    assert_eq!(found, ["a.rs:1 b/deep/last.rs"]);
}

#[test]
fn showing_ones_own_children_is_no_import() {
    assert_eq!(import_from_b(""), Vec::<String>::new());
}

#[test]
fn reexporting_another_rooms_thing_is_an_import() {
    assert_eq!(import_from_b("pub use crate::b::Shown;"), ["a.rs:1 b/deep.rs"]);
    assert_eq!(import_from_b("pub(crate) use crate::b::deep;"), ["a.rs:1 b/deep.rs"]);
}

#[test]
fn a_parent_that_uses_what_it_shows_imports_it() {
    let found = imports(&[
        ("lib.rs", "mod b;"),
        ("b/mod.rs", "mod deep;\npub use deep::Shown;\nfn f() -> Shown { Shown }"),
        ("b/deep.rs", "pub struct Shown;"),
    ]);
    assert_eq!(found, ["b/mod.rs:3 b/deep.rs"]);
}

#[test]
fn a_path_in_an_expression_or_a_type_is_an_import() {
    assert_eq!(import_from_b("fn f() { crate::b::call(); }"), ["a.rs:1 b/mod.rs"]);
    assert_eq!(import_from_b("struct S(Vec<super::b::Thing>);"), ["a.rs:1 b/mod.rs"]);
    assert_eq!(import_from_b("impl From<crate::b::Thing> for u8 {}"), ["a.rs:1 b/mod.rs"]);
}

#[test]
fn a_modules_name_counts_where_something_of_it_is_used() {
    let found = import_from_b("use crate::b::deep;\nfn f() {\n    deep::run();\n}");
    assert_eq!(found, ["a.rs:3 b/deep.rs"]);
    assert_eq!(import_from_b("use crate::b;\nstruct S(b::Shown);"), ["a.rs:2 b/deep.rs"]);
}

#[test]
fn a_use_inside_a_function_is_an_import() {
    let found = import_from_b("fn f() {\n use crate::b::deep as d;\n d::run()\n}");
    assert_eq!(found, ["a.rs:3 b/deep.rs"]);
    assert_eq!(import_from_b("fn f() {\n use super::b::call;\n call()\n}"), ["a.rs:2 b/mod.rs"]);
}

#[test]
fn a_glob_leads_to_the_definers_of_the_names_that_are_used() {
    let found = import_from_b("use crate::b::*;\nfn f(s: Shown) {}");
    assert_eq!(found, ["a.rs:1 b/mod.rs", "a.rs:2 b/deep.rs"]);
}

#[test]
fn super_and_self_are_followed_from_inline_modules() {
    let found = import_from_b("mod inner {\n fn f() { super::super::b::call() }\n}");
    assert_eq!(found, ["a.rs:2 b/mod.rs"]);
    assert_eq!(import_from_b("mod b { pub fn call() {} }\nuse self::b::call;"), [""; 0]);
}

#[test]
fn paths_in_a_macros_tokens_are_imports() {
    let call = "fn f() { println!(\"{}\", crate::b::call()); }";
    assert_eq!(import_from_b(call), ["a.rs:1 b/mod.rs"]);
    let body = "macro_rules! m {\n ($x:expr) => { $crate::b::deep::run($x) };\n}";
    assert_eq!(import_from_b(body), ["a.rs:2 b/deep.rs"]);
    let parent = "fn f() { assert!(super::b::call() == ()); }";
    assert_eq!(import_from_b(parent), ["a.rs:1 b/mod.rs"]);
    let known = "use crate::b::deep;\nfn f() { vec![\n deep::run()]; }";
    assert_eq!(import_from_b(known), ["a.rs:3 b/deep.rs"]);
    let used = "macro_rules! m { () => { use crate::{b::Shown, b::call as c}; } }";
    assert_eq!(import_from_b(used), ["a.rs:1 b/deep.rs", "a.rs:1 b/mod.rs"]);
}

#[test]
fn a_macros_variable_a_field_and_a_foreign_path_are_no_imports() {
    let text = "use crate::b;\nmacro_rules! m { ($b:ident) => { $b::call(); x.b; ::b::call() } }";
    assert_eq!(import_from_b(text), [""; 0]);
    assert_eq!(import_from_b("use std::b::Thing; fn f() { b::call() }"), [""; 0]);
    assert_eq!(import_from_b("pub(in crate::b) fn f() {}"), [""; 0]);
}

#[test]
fn calling_a_macro_imports_its_definer() {
    let files = |text| {
        imports(&[
            ("lib.rs", "#[macro_use] mod b; mod a;"),
            ("a.rs", text),
            ("b.rs", "macro_rules! made { () => {}; }\npub(crate) use made;"),
        ])
    };
    assert_eq!(files("made!();"), ["a.rs:1 b.rs"]);
    assert_eq!(files("use crate::b::made;\nmade!();"), ["a.rs:1 b.rs", "a.rs:2 b.rs"]);
    assert_eq!(files("fn f() { crate::b::made!(); }"), ["a.rs:1 b.rs"]);
}

#[test]
fn a_table_in_a_macro_is_imported_by_who_expands_it() {
    let found = imports(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a.rs",
            "use crate::b::table;\nuse crate::c;\nmacro_rules! with { () => {} }\ntable!(with);",
        ),
        (
            "b.rs",
            "macro_rules! table { ($w:ident) => { $w! { name => c::hook; } } }\npub(crate) use table;",
        ),
        ("c.rs", "pub fn hook() {}"),
    ]);
    assert_eq!(found, ["a.rs:1 b.rs", "a.rs:4 b.rs", "a.rs:4 c.rs"]);
}

#[test]
fn what_a_macro_makes_belongs_to_the_file_that_calls_it() {
    let found = imports(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::Made;"),
        ("b.rs", "structs! { Made }"),
    ]);
    assert_eq!(found, ["a.rs:1 b.rs"]);
}

#[test]
fn paths_in_attributes_are_imports() {
    assert_eq!(import_from_b("#[arg(parser = crate::b::call)] struct S;"), ["a.rs:1 b/mod.rs"]);
    assert_eq!(import_from_b("#[with = \"crate::b::call\"] struct S;"), ["a.rs:1 b/mod.rs"]);
}

#[test]
fn what_only_tests_have_is_left_out() {
    assert_eq!(import_from_b("#[cfg(test)] use crate::b::Thing;"), [""; 0]);
    assert_eq!(import_from_b("#[cfg(all(test, unix))] mod t { use crate::b::Thing; }"), [""; 0]);
    assert_eq!(
        import_from_b("struct S; impl S { #[cfg(test)] fn f(t: crate::b::Thing) {} }"),
        [""; 0]
    );
    assert_eq!(import_from_b("#[cfg(not(test))] use crate::b::Thing;"), ["a.rs:1 b/mod.rs"]);
    let found = imports(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "#[cfg(test)] mod tests;"),
        ("a/tests.rs", "use crate::b::Thing;"),
        ("b.rs", "pub struct Thing;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn the_binary_imports_the_library_by_its_name() {
    let found = imports(&[
        ("lib.rs", "pub mod b;"),
        ("main.rs", "mod a;"),
        ("a.rs", "use library::b::Thing;"),
        ("b.rs", "pub struct Thing;"),
    ]);
    assert_eq!(found, ["a.rs:1 b.rs"]);
}

const LAYOUT: Layout = Layout {
    folder: "src",
    library: "library",
    divided: &[],
    layers: &[&["low", "beside"], &["high"]],
    apart: &[("high", "beside")],
    largest_cycle: 2,
};

/// A room `low` with the text, and a room `high` that uses it.
fn violations(low: &str) -> Vec<String> {
    LAYOUT.violations(&tree(&[
        ("lib.rs", "mod low; mod high; mod beside;"),
        ("low.rs", low),
        ("high/mod.rs", "mod inner; pub use inner::Top; use crate::low::Base;"),
        ("high/inner.rs", "pub struct Top;"),
        ("beside.rs", "pub struct Beside;"),
    ]))
}

#[test]
fn imports_of_lower_rooms_are_allowed() {
    assert_eq!(violations("pub struct Base;"), [""; 0]);
}

#[test]
fn an_import_against_the_table_is_named_with_file_and_line() {
    assert_eq!(
        violations("pub struct Base;\n\nuse crate::high::Top;"),
        ["src/low.rs:3 imports high/inner.rs (crate::high::Top)"]
    );
    assert_eq!(
        violations("use crate::beside::Beside;"),
        ["src/low.rs:1 imports beside.rs (crate::beside::Beside)"]
    );
}

#[test]
fn rooms_that_stay_apart_may_not_import_downwards_either() {
    let found = LAYOUT.violations(&tree(&[
        ("lib.rs", "mod low; mod high; mod beside;"),
        ("low.rs", ""),
        ("high.rs", "use crate::beside::Beside;"),
        ("beside.rs", "pub struct Beside;"),
    ]));
    assert_eq!(found, ["src/high.rs:1 imports beside.rs (crate::beside::Beside)"]);
}

#[test]
fn a_modules_name_alone_counts_between_rooms() {
    assert_eq!(violations("use crate::high;"), ["src/low.rs:1 imports high/mod.rs (crate::high)"]);
}

#[test]
fn a_room_must_stand_in_the_table_and_the_table_names_rooms_alone() {
    let found = LAYOUT.violations(&tree(&[
        ("lib.rs", "mod low; mod high; mod new;"),
        ("low.rs", ""),
        ("high.rs", ""),
        ("new.rs", ""),
    ]));
    assert_eq!(
        found,
        [
            "src: no line of the table names the room new",
            "src: the table names beside, which is no room"
        ]
    );
}

#[test]
fn the_folders_of_a_divided_folder_are_rooms() {
    const DIVIDED: Layout = Layout {
        divided: &["parts"],
        layers: &[&["low"], &["parts/lower"], &["parts/upper"], &["parts"]],
        ..LAYOUT
    };
    let files = [
        ("lib.rs", "mod low; mod parts;"),
        ("low.rs", ""),
        ("parts/mod.rs", "mod lower; mod upper; pub use lower::Low; pub use upper::Up;"),
        ("parts/lower.rs", "pub struct Low; use crate::parts::Up;"),
        ("parts/upper/mod.rs", "pub struct Up; use crate::parts::Low;"),
    ];
    let sources: Sources =
        files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
    let found = DIVIDED.violations(&Crate::read(&sources, &DIVIDED));
    assert_eq!(found, ["src/parts/lower.rs:1 imports parts/upper/mod.rs (crate::parts::Up)"]);
}

#[test]
fn a_cycle_of_files_beyond_the_limit_is_named() {
    let read = tree(&[
        ("lib.rs", "mod low; mod high; mod beside;"),
        ("beside.rs", ""),
        ("low.rs", ""),
        ("high/mod.rs", "mod a; mod b; mod c;"),
        ("high/a.rs", "pub struct A; use super::b::B;"),
        ("high/b.rs", "pub struct B; use super::c::C;"),
        ("high/c.rs", "pub struct C; use super::a::A;"),
    ]);
    assert_eq!(read.file_cycles(), [["high/a.rs", "high/b.rs", "high/c.rs"]]);
    assert_eq!(
        LAYOUT.violations(&read),
        ["3 files import each other, 2 may: high/a.rs high/b.rs high/c.rs"]
    );
}

#[test]
fn a_cycle_of_rooms_is_found_though_its_files_make_none() {
    let read = tree(&[
        ("lib.rs", "mod low; mod high; mod beside;"),
        ("beside.rs", ""),
        ("low/mod.rs", "mod a; mod b;"),
        ("low/a.rs", "use crate::high::b::B;"),
        ("low/b.rs", "pub struct B;"),
        ("high/mod.rs", "mod a; pub mod b;"),
        ("high/a.rs", "use crate::low::b::B;"),
        ("high/b.rs", "pub struct B;"),
    ]);
    assert_eq!(read.file_cycles(), Vec::<Vec<&str>>::new());
    assert_eq!(read.room_cycles(), [["high", "low"]]);
}

#[test]
fn only_nodes_that_reach_each_other_are_a_cycle() {
    let edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (5, 6), (6, 7)];
    let mut graph = Graph::new();
    for (from, to) in edges {
        graph.entry(from).or_insert_with(BTreeSet::new).insert(to);
    }
    assert_eq!(cycles(&graph), [vec![1, 2, 3], vec![4, 5]]);
}
