//! The command opens files, and makes, replaces, names and truncates them, in one place, `src/files/`: who writes a
//! directory or a trace may put anything there. A descriptor that can be written comes from there too. `model/` opens
//! none.

use std::path::Path;

use crate::lines::without_tests;
use crate::sources::{self, Sources};

/// What opens a file or maps it.
const OPENS: &str = "File::open File::options OpenOptions fs::read( fs::read_to_string fs::copy( libc::open( \
    libc::openat( libc::mmap Mmap memmap2 reopen() rustix::fs rustix::mm";

/// What makes, replaces, truncates or renames a file, a directory or a link, or gives it another mode. (A file of
/// `tempfile::tempfile` has no name.)
const MAKES: &str = "File::create fs::write fs::rename fs::hard_link fs::set_permissions .set_permissions( \
    Permissions:: create_dir DirBuilder symlink( NamedTempFile tempdir TempDir:: .persist libc::creat libc::link \
    libc::mk libc::rename libc::symlink libc::chmod libc::fchmod libc::truncate libc::SYS_link libc::SYS_mk \
    libc::SYS_open libc::SYS_rename chown( UnixListener::bind UnixDatagram::bind libc::bind";

/// Files that bind a socket, below a directory that `files` opened.
const BINDS: &str = "metrics/address.rs";

/// Of a file without its tests.
fn violations((path, text): (&String, &String)) -> Vec<String> {
    if path.starts_with("files/") {
        return Vec::new();
    }
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    let found = code.filter_map(|(at, line)| {
        let mut all = OPENS.split(' ').chain(MAKES.split(' '));
        let call = all.find(|call| line.contains(call) && !line.contains(&format!("is_{call}")))?;
        let binds = call.ends_with("bind") && path == BINDS;
        (!binds).then(|| format!("{path}:{}: {call}: open and make files through `files`", at + 1))
    });
    found.collect()
}

#[test]
fn files_are_opened_and_made_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = ["src", "model/src"].map(|at| without_tests(&sources::read(&root.join(at))));
    let all: Vec<String> = crates.iter().flatten().flat_map(violations).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn an_open_is_found_outside_of_tests_alone() {
    let found = |path: &str, text: &str| {
        let sources = Sources::from([(path.to_string(), text.to_string())]);
        without_tests(&sources).iter().flat_map(violations).collect::<Vec<String>>()
    };
    let text = "//! File::open\nfn f() { std::fs::read(path) }\n#[cfg(test)]\nmod tests { use File::open; }";
    let [only] = &found("a.rs", text)[..] else { panic!("one") };
    assert!(only.starts_with("a.rs:2: fs::read("), "{only}");
    assert_eq!(found("files/a.rs", text), [""; 0]);
    for made in ["std::fs::rename(a, b)", "File::create_new(a)", "std::fs::create_dir_all(a)"] {
        assert_eq!(found("a.rs", made).len(), 1, "{made}");
    }
    assert_eq!(found("a.rs", "if kind.is_symlink() {}"), [""; 0]);
}
