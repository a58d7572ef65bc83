//! The command opens files, and makes, replaces, names and truncates them, in one place, `src/files/`: who writes a
//! directory or a trace may put anything there. A descriptor that can be written comes from there too. `model/` opens
//! none.

use std::path::Path;

use crate::sources;

/// What opens a file or maps it.
const OPENS: &str = "File::open File::options OpenOptions fs::read( fs::read_to_string fs::copy( libc::open( \
    libc::openat( libc::mmap Mmap memmap2 reopen() rustix";

/// What makes, replaces, truncates or renames a file, a directory or a link, or gives it another mode. (A file of
/// `tempfile::tempfile` has no name.)
const MAKES: &str = "File::create fs::write fs::rename fs::hard_link fs::set_permissions .set_permissions( \
    Permissions:: create_dir DirBuilder symlink( NamedTempFile tempdir TempDir:: .persist libc::creat libc::link \
    libc::mk libc::rename libc::symlink libc::chmod libc::fchmod libc::truncate libc::SYS_link libc::SYS_mk \
    libc::SYS_open libc::SYS_rename chown( UnixListener::bind UnixDatagram::bind libc::bind";

/// Files that bind a socket, below a directory that `files` opened.
const BINDS: &str = "metrics/address.rs";

/// The part of a file that is not of its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

fn violations(path: &str, text: &str) -> Vec<String> {
    let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
    let only_in_tests =
        ["analysis/fits/made.rs", "cli/top/recorded.rs", "report/json/schemas.rs"].contains(&path);
    if path.starts_with("files/") || is_test || only_in_tests {
        return Vec::new();
    }
    let lines = without_tests(text).lines().enumerate();
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
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
    let folders = ["src", "model/src"].map(|folder| sources::read(&root.join(folder)));
    let files = folders.iter().flatten();
    let all: Vec<String> = files.flat_map(|(path, text)| violations(path, text)).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn an_open_is_found_outside_of_tests_alone() {
    let text =
        "//! File::open\nfn f() { std::fs::read(path) }\n#[cfg(test)]\nmod tests {\nFile::open";
    assert_eq!(violations("a.rs", text).len(), 1);
    assert!(violations("a.rs", text)[0].starts_with("a.rs:2: fs::read("));
    assert_eq!(violations("files/a.rs", text), [""; 0]);
    for made in ["std::fs::rename(a, b)", "File::create_new(a)", "std::fs::create_dir_all(a)"] {
        assert_eq!(violations("a.rs", made).len(), 1, "{made}");
    }
    assert_eq!(violations("a.rs", "if kind.is_symlink() {}"), [""; 0]);
}
