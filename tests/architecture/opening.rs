//! The command opens files in one place, `src/files/`: who writes a directory or a trace may put anything there.

use std::path::Path;

use crate::sources;

/// What opens a file for reading or maps it.
const OPENS: [&str; 12] = [
    "File::open",
    "File::options",
    "OpenOptions",
    "fs::read(",
    "fs::read_to_string",
    "fs::copy(",
    "libc::open(",
    "libc::openat(",
    "libc::mmap",
    "Mmap",
    "memmap2",
    "reopen()",
];

/// Files that may: what they write, and nothing else, is opened there.
const WRITERS: [&str; 2] = ["cli/output.rs", "cli/select.rs"];

/// The part of a file that is not of its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

fn violations(path: &str, text: &str) -> Vec<String> {
    let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
    let only_in_tests = ["cli/top/recorded.rs", "report/json/schemas.rs"].contains(&path);
    if path.starts_with("files/") || WRITERS.contains(&path) || is_test || only_in_tests {
        return Vec::new();
    }
    let lines = without_tests(text).lines().enumerate();
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let found = code.filter_map(|(at, line)| {
        let opens = OPENS.iter().find(|opens| line.contains(*opens))?;
        Some(format!("src/{path}:{}: {opens}: open files through `files`", at + 1))
    });
    found.collect()
}

#[test]
fn files_are_opened_in_one_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let all: Vec<String> =
        sources::read(&folder).iter().flat_map(|(path, text)| violations(path, text)).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn an_open_is_found_outside_of_tests_alone() {
    let text =
        "//! File::open\nfn f() { std::fs::read(path) }\n#[cfg(test)]\nmod tests {\nFile::open";
    assert_eq!(violations("a.rs", text).len(), 1);
    assert!(violations("a.rs", text)[0].starts_with("src/a.rs:2: fs::read("));
    assert_eq!(violations("files/a.rs", text), [""; 0]);
}
