//! The budget of lines: each room has at most the lines of code and of tests that `lines.bounds` states. Bounds only fall:
//! a room that needs more takes it from another room in the same commit.
//!
//! Code is a line with something else than a comment, outside of tests. Tests are files below `tests/` and `benches/`, and
//! items that exist under `cfg(test)` alone, with the files of their modules. In other languages each line counts that
//! is not blank. Documents are counted in words, data in bytes.
//!
//! `VRAMTRACE_WRITE_BOUNDS=1 cargo test --test architecture lines::` lowers the bounds to what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::sources::{self, Sources};
use crate::tokens::only_in_tests;

/// What a room may be below its bound before the bound must be lowered.
const SLACK: usize = 40;

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Count {
    code: usize,
    tests: usize,
}

/// The kind of each line of a file. Absent: blank, or a comment.
#[derive(Default)]
struct Lines {
    code: BTreeSet<usize>,
    tests: BTreeSet<usize>,
    /// Modules in other files that only tests have.
    test_modules: Vec<String>,
}

impl Lines {
    fn of(text: &str) -> Lines {
        let mut lines = Lines::default();
        lines.walk(text.parse().expect("a source file"), false);
        lines.code = &lines.code - &lines.tests;
        lines
    }

    fn walk(&mut self, tokens: TokenStream, in_tests: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_doc_comment(&tokens[at]) {
                // `#`, then `!` if it is an inner one, then the bracket.
                at += if matches!(tokens[at + 1], TokenTree::Group(_)) { 2 } else { 3 };
                continue;
            }
            let end = match is_test_attribute(&tokens[at..]) && !in_tests {
                true => at + end_of_item(&tokens[at..]),
                false => at + 1,
            };
            let in_tests = in_tests || end > at + 1;
            if in_tests && let Some(name) = module_elsewhere(&tokens[at..end]) {
                self.test_modules.push(name);
            }
            for token in &tokens[at..end] {
                self.add(token, in_tests);
            }
            at = end;
        }
    }

    fn add(&mut self, token: &TokenTree, in_tests: bool) {
        let lines = if in_tests { &mut self.tests } else { &mut self.code };
        let mut cover = |span: proc_macro2::Span| lines.extend(span.start().line..=span.end().line);
        match token {
            TokenTree::Group(group) if group.delimiter() != Delimiter::None => {
                cover(group.span_open());
                cover(group.span_close());
                self.walk(group.stream(), in_tests);
            }
            other => cover(other.span()),
        }
    }
}

/// A comment is read as `#[doc = ..]`, whose tokens all stand where the comment does.
fn is_doc_comment(token: &TokenTree) -> bool {
    let TokenTree::Punct(hash) = token else { return false };
    if hash.as_char() != '#' {
        return false;
    }
    let text = token.span().source_text().unwrap_or_default();
    text.starts_with("//") || text.starts_with("/*")
}

fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = tokens else { return false };
    let attribute: TokenStream = tokens[..2].iter().cloned().collect();
    hash.as_char() == '#'
        && group.delimiter() == Delimiter::Bracket
        && syn::parse::Parser::parse2(syn::Attribute::parse_outer, attribute)
            .is_ok_and(|attributes| only_in_tests(&attributes))
}

/// How many tokens the item has that begins with this attribute: up to its braces, `;` or `,`.
fn end_of_item(tokens: &[TokenTree]) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => matches!(punct.as_char(), ';' | ','),
        _ => false,
    };
    tokens.iter().position(ends).map_or(tokens.len(), |at| at + 1)
}

/// The name in `mod name;`.
fn module_elsewhere(item: &[TokenTree]) -> Option<String> {
    let [.., TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)] = item else {
        return None;
    };
    (word == "mod" && end.as_char() == ';').then(|| name.to_string())
}

/// The files that a module of this file may be in.
fn files_of_module(file: &str, module: &str) -> [String; 2] {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let home = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_string(),
        name => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    let from_root = |path: String| path.trim_start_matches('/').to_string();
    [format!("{home}/{module}.rs"), format!("{home}/{module}/mod.rs")].map(from_root)
}

/// A folder directly below a crate's sources, or the crate for the files there.
fn room(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.iter().position(|part| *part == "src") {
        Some(at) if parts[0] != "tests" && parts[0] != "fuzz" && parts[0] != "models" => {
            let below = if parts.len() > at + 2 { parts[at + 1] } else { "" };
            format!("{}/{below}", parts[..at].first().unwrap_or(&"src"))
        }
        _ => format!("{}/", parts[0]),
    }
}

/// The lines of each file, and the files that are of tests alone.
fn kinds(files: &Sources) -> (BTreeMap<&String, Lines>, BTreeSet<&String>) {
    let lines: BTreeMap<&String, Lines> =
        files.iter().map(|(path, text)| (path, Lines::of(text))).collect();
    let is_test_file = |path: &&String| {
        path.split('/').rev().skip(1).any(|folder| matches!(folder, "tests" | "benches"))
    };
    let mut tests: BTreeSet<&String> = files.keys().filter(is_test_file).collect();
    for (path, found) in &lines {
        for module in &found.test_modules {
            let [file, folder] = files_of_module(path, module);
            let below = folder.trim_end_matches("mod.rs");
            let is_of_module = |other: &&String| **other == file || other.starts_with(below);
            tests.extend(files.keys().filter(is_of_module));
        }
    }
    (lines, tests)
}

/// The files that are not of tests alone, with blank lines for what only tests have.
pub fn without_tests(files: &Sources) -> Sources {
    let (lines, tests) = kinds(files);
    let mut left = Sources::new();
    for (path, text) in files.iter().filter(|(path, _)| !tests.contains(path)) {
        let kept = |(at, line)| if lines[path].tests.contains(&at) { "" } else { line };
        let text: Vec<&str> = (1..).zip(text.lines()).map(kept).collect();
        left.insert(path.clone(), text.join("\n"));
    }
    left
}

fn rust(files: &Sources) -> BTreeMap<String, Count> {
    let (lines, tests) = kinds(files);
    let mut rooms = BTreeMap::<String, Count>::new();
    for (path, found) in &lines {
        let count = rooms.entry(room(path)).or_default();
        match tests.contains(path) {
            true => count.tests += found.code.len() + found.tests.len(),
            false => {
                count.code += found.code.len();
                count.tests += found.tests.len();
            }
        }
    }
    rooms
}

/// The counts of the repository, by what is counted.
fn counted() -> BTreeMap<String, Count> {
    let all = sources::files(Path::new(env!("CARGO_MANIFEST_DIR")));
    let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let is = |path: &str, ends: &[&str]| {
        path.rsplit_once('.').is_some_and(|(_, end)| ends.contains(&end))
    };
    let sources = all.iter().filter(|(path, _)| is(path, &["rs"]));
    let mut counts = rust(&sources.map(|(path, at)| (path.clone(), text(at))).collect());
    let rust = counts.values().fold(Count::default(), |sum, more| Count {
        code: sum.code + more.code,
        tests: sum.tests + more.tests,
    });
    counts.insert("all".into(), rust);
    let mut sum = |name: &str, chosen: &dyn Fn(&str) -> bool, size: &dyn Fn(&PathBuf) -> usize| {
        let code = all.iter().filter(|(path, _)| chosen(path)).map(|(_, at)| size(at)).sum();
        counts.insert(name.into(), Count { code, tests: 0 });
    };
    let lines = |path: &PathBuf| text(path).lines().filter(|l| !l.trim().is_empty()).count();
    let words = |path: &PathBuf| text(path).split_whitespace().count();
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |about| about.len() as usize);
    sum("lines: Python, C, shell", &|path| is(path, &["py", "c", "h", "cpp", "sh"]), &lines);
    sum("lines: TypeScript", &|path| is(path, &["ts", "js", "mjs"]), &lines);
    sum("words: README.md", &|path| path == "README.md", &words);
    sum("words: docs/ARCHITECTURE.md", &|path| path == "docs/ARCHITECTURE.md", &words);
    let is_document = |path: &str| path.starts_with("docs/") && is(path, &["md"]);
    sum("words: docs", &|path| is_document(path) && path != "docs/ARCHITECTURE.md", &words);
    let is_data = |path: &str| {
        let folder = ["assets/", "docs/schemas/", "fuzz/corpus/", "tests/data/"];
        folder.iter().any(|folder| path.starts_with(folder))
    };
    sum("bytes: assets, schemas, corpus, tests/data", &is_data, &bytes);
    counts
}

fn bounds_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/architecture/lines.bounds")
}

/// Rows of `lines.bounds`: what is counted, its code or size, its tests.
fn parse(text: &str) -> BTreeMap<String, Count> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let row = |line: &str| {
        let mut words = line.rsplitn(3, ' ').map(str::trim);
        let mut number = || words.next().and_then(|word| word.parse().ok());
        let (tests, code) = (number()?, number()?);
        Some((words.next()?.trim().to_string(), Count { code, tests }))
    };
    rows.map(|line| row(line).unwrap_or_else(|| panic!("lines.bounds: {line:?}"))).collect()
}

fn print(counts: &BTreeMap<String, Count>) -> String {
    let mut text = String::from(
        "# Most lines of code and of tests of each room; written and explained by lines.rs. They only fall.\n",
    );
    for (name, Count { code, tests }) in counts {
        writeln!(text, "{name:<44} {code} {tests}").unwrap();
    }
    text
}

/// What exceeds its bound, and bounds that are too high.
fn wrong(counts: &BTreeMap<String, Count>, bounds: &BTreeMap<String, Count>) -> Vec<String> {
    let mut all = Vec::new();
    for name in counts.keys().chain(bounds.keys()).collect::<BTreeSet<_>>() {
        let [count, bound] = [counts, bounds].map(|of| of.get(name).copied().unwrap_or_default());
        let kinds = [("code", count.code, bound.code), ("tests", count.tests, bound.tests)];
        for (kind, count, bound) in kinds {
            if count > bound {
                all.push(format!("{name}: {count} of {kind}, and {bound} are allowed"));
            } else if bound - count > SLACK.max(bound / 100) {
                all.push(format!("{name}: {count} of {kind}: lower its bound of {bound}"));
            }
        }
    }
    all
}

#[test]
fn no_room_exceeds_its_bound() {
    let bounds = parse(&std::fs::read_to_string(bounds_file()).unwrap());
    let counts = counted();
    if std::env::var_os("VRAMTRACE_WRITE_BOUNDS").is_some() {
        let lowered = |(name, count): (&String, &Count)| {
            let bound = bounds.get(name).copied().unwrap_or_default();
            let (code, tests) = (count.code.min(bound.code), count.tests.min(bound.tests));
            (name.clone(), Count { code, tests })
        };
        std::fs::write(bounds_file(), print(&counts.iter().map(lowered).collect())).unwrap();
    }
    let wrong = wrong(&counts, &parse(&std::fs::read_to_string(bounds_file()).unwrap()));
    assert!(wrong.is_empty(), "tests/architecture/lines.bounds:\n{}", wrong.join("\n"));
}

#[test]
fn comments_are_not_counted_and_tests_are_apart() {
    let text = "//! A file.\n\nuse a::b; // why\n/* no\n code */\n/// What.\nfn f() {\n    g(\n        \"a\n//b\",\n    );\n}\n\
        #[cfg(test)]\nuse c;\n#[cfg(all(test, unix))]\nmod other;\n#[cfg(not(test))]\nmod real;\n\
        #[cfg(test)]\nmod tests {\n    //! Doc.\n    fn t() {}\n}\n";
    let lines = Lines::of(text);
    assert_eq!((lines.code.len(), lines.tests.len()), (9, 8), "{:?}", lines.code);
    assert_eq!(lines.test_modules, ["other"]);
}

#[test]
fn files_of_tests_are_found_by_their_modules() {
    let file = |path: &str, text: &str| (path.to_string(), text.to_string());
    let files = BTreeMap::from([
        file("src/a/mod.rs", "#[cfg(test)]\nmod tests;\nfn f() {}\n"),
        file("src/a/tests.rs", "fn a() {}\n"),
        file("src/b.rs", "#[cfg(test)]\nmod tests;\n"),
        file("src/b/tests/mod.rs", "fn b() {}\n"),
        file("src/b/tests/more.rs", "fn c() {}\n"),
        file("shim/src/m/x/y.rs", "fn d() {}\n"),
        file("shim/src/lib.rs", "fn e() {}\n"),
        file("tests/testkit/src/lib.rs", "fn g() {}\n"),
    ]);
    let counts: Vec<_> =
        rust(&files).into_iter().map(|(room, count)| (room, count.code, count.tests)).collect();
    let all = [
        ("shim/", 1, 0),
        ("shim/m", 1, 0),
        ("src/", 0, 2),
        ("src/a", 1, 3),
        ("src/b", 0, 2),
        ("tests/", 0, 1),
    ];
    assert_eq!(counts, all.map(|(room, code, tests)| (room.to_string(), code, tests)));
}

#[test]
fn a_bound_that_is_exceeded_or_too_high_is_named() {
    let of = |code, tests| BTreeMap::from([("a".to_string(), Count { code, tests })]);
    assert_eq!(parse(&print(&of(7, 9))), of(7, 9));
    assert_eq!(wrong(&of(100, 5), &of(100, 5)), [""; 0]);
    assert_eq!(wrong(&of(60, 5), &of(100, 5)), [""; 0]);
    assert_eq!(wrong(&of(101, 5), &of(100, 5)), ["a: 101 of code, and 100 are allowed"]);
    assert_eq!(wrong(&of(100, 5), &of(100, 46)), ["a: 5 of tests: lower its bound of 46"]);
    assert_eq!(wrong(&of(1, 0), &BTreeMap::new()), ["a: 1 of code, and 0 are allowed"]);
}
