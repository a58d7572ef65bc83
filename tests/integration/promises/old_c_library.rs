//! The library runs with glibc 2.28, where functions for threads and for loading are in libraries of their own. It needs
//! none of these: it looks their functions up when it first calls them (`shim/src/runtime/late_binding.rs`).

use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn, FileHeader, Sym};
use object::{Endianness, elf};
use testkit::shim;

/// The oldest C library that releases are linked for.
const OLDEST: (u32, u32) = (2, 28);
/// Before glibc 2.33 the linker takes them from a part of the C library that is linked into the program.
const LINKED_IN_BEFORE: [&str; 6] = ["stat", "fstat", "lstat", "stat64", "fstat64", "lstat64"];

/// `GLIBC_2.34` as (2, 34).
fn version_of(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[test]
fn needs_no_function_that_came_to_the_c_library_later() {
    let data = &std::fs::read(shim()).unwrap()[..];
    let file = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = file.endian().unwrap();
    let sections = file.sections(endian, data).unwrap();
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).unwrap();
    let versions = sections.versions(endian, data).unwrap().expect("versions of symbols");
    let mut seen = 0;
    let mut newer = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        // A weak one may be missing.
        if !symbol.is_undefined(endian) || symbol.st_bind() == elf::STB_WEAK {
            continue;
        }
        let name = std::str::from_utf8(symbols.symbol_name(endian, symbol).unwrap()).unwrap();
        let version = versions.version(versions.version_index(endian, index).into()).unwrap();
        let Some(version) =
            version.and_then(|version| version_of(std::str::from_utf8(version.name()).unwrap()))
        else {
            continue;
        };
        seen += 1;
        if version > OLDEST && !LINKED_IN_BEFORE.contains(&name) {
            newer.push(format!("{name} of glibc {}.{}", version.0, version.1));
        }
    }
    assert!(seen > 50, "only {seen} functions of the C library");
    assert!(newer.is_empty(), "needs {}: shim/src/runtime/late_binding.rs", newer.join(", "));
}

#[test]
fn needs_the_c_library_and_the_loader_alone() {
    let data = &std::fs::read(shim()).unwrap()[..];
    let file = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = file.endian().unwrap();
    let sections = file.sections(endian, data).unwrap();
    let (dynamic, strings) = sections.dynamic(endian, data).unwrap().expect("a dynamic section");
    let strings = sections.strings(endian, data, strings).unwrap();
    let needed: Vec<_> = dynamic
        .iter()
        .filter(|entry| entry.d_tag(endian) == DT_NEEDED)
        .map(|entry| String::from_utf8_lossy(entry.string(endian, strings).unwrap()).into_owned())
        .collect();
    let others: Vec<_> = needed
        .iter()
        .filter(|name| *name != "libc.so.6" && !name.starts_with("ld-linux"))
        .collect();
    assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
    assert!(others.is_empty(), "needs {others:?}: shim/src/runtime/late_binding.rs");
}
