//! What the documents show is what is printed. The commands of every `console` block of README.md
//! and docs/ are run, in order, in a directory of the page; the output that follows them in the
//! page must be the one that they print.
//!
//! Figures that differ from run to run (pids, times, rates, dates) are compared by their place only.
//! `BLESS=1 cargo test --test cli pages::` writes the outputs into the pages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use testkit::{Said, Scratch, bin_dir, flat, repository, shim, sim};

use super::shell_blocks::{blocks, shell};

/// The pages, with the folder that each runs in.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut all = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// One command of a page, and the output that stands below it.
struct Shown {
    command: String,
    output: String,
    /// Lines of the page that the output takes.
    lines: std::ops::Range<usize>,
}

fn shown(page: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    for (first, block) in blocks(page, "console") {
        let mut continued = false;
        for (line, behind) in block.into_iter().zip(first + 1..) {
            let last = all.last_mut();
            if continued {
                let last = last.unwrap();
                last.command = format!("{}\n{line}", last.command);
                last.lines = behind..behind;
                continued = line.ends_with('\\');
            } else if let Some(command) = line.strip_prefix("$ ") {
                let (command, output) = (command.into(), String::new());
                all.push(Shown { command, output, lines: behind..behind });
                continued = line.ends_with('\\');
            } else {
                let last = last.expect("a block begins with `$ COMMAND`");
                last.output += &format!("{line}\n");
                last.lines.end = behind;
            }
        }
    }
    all
}

/// In a directory with the programs of the pages, as a reader has it.
fn printed(command: &str, scratch: &Scratch) -> String {
    let text = Said::by(&mut shell(&format!("set +e; exec 2>&1\n{command}"), &scratch.0, &[])).out;
    let ours = bin_dir().canonicalize().unwrap();
    let text = text.replace(scratch.0.to_str().unwrap(), "/home/me/project");
    let mut text = text.replace(ours.to_str().unwrap(), "/opt/vramtrace");
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Without what differs from run to run.
fn steady(text: &str) -> String {
    let words: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
    let mut out = String::new();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).map_or("", |word| word.trim_end());
        let before = at.checked_sub(1).map_or("", |at| words[at].trim_end());
        let first = next.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '%');
        let is_time = matches!(first, "s" | "ms" | "min" | "h" | "%") || next.starts_with("MiB/s");
        let digits = word.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '(');
        let bare = word.trim_end();
        let is_number = bare.len() > 2 && bare.bytes().all(|byte| byte.is_ascii_digit());
        // A directory by date; a trace by host, pid and date.
        let named = ["vramtrace-2", "/vramtrace."].iter().find_map(|part| word.split_once(part));
        if before.ends_with("pid") || is_number || digits && is_time {
            out.push('#');
        } else if let Some((folder, _)) = named {
            out.push_str(folder);
            out.push_str("/vramtrace#");
        } else {
            out.push_str(word.trim_end_matches([' ', '\n']));
        }
        if word.ends_with('\n') {
            out.push('\n');
        } else if !out.ends_with(' ') {
            // Columns are as wide as their figures.
            out.push(' ');
        }
    }
    out.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

fn run(page: &Path, wrong: &Mutex<Vec<String>>) {
    let text = std::fs::read_to_string(page).unwrap();
    let all = shown(&text);
    if all.is_empty() {
        return;
    }
    let scratch = Scratch::with_programs();
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let mut changes = Vec::new();
    for one in &all {
        let output = printed(&one.command, &scratch);
        if steady(&output) != steady(&one.output) {
            let shown = page.file_name().unwrap().display().to_string();
            wrong.lock().unwrap().push(format!(
                "{shown}:{}: $ {}\n-- the page shows\n{}-- it prints\n{output}",
                one.lines.start, one.command, one.output
            ));
            changes.push((one.lines.clone(), output));
        }
    }
    if std::env::var_os("BLESS").is_some() {
        for (range, output) in changes.into_iter().rev() {
            lines.splice(range, output.lines().map(String::from));
        }
        std::fs::write(page, lines.join("\n") + "\n").unwrap();
    }
}

/// Names of methods have their class from Python 3.11 on.
fn python_names_classes() -> bool {
    let code = "import sys; sys.exit(sys.version_info < (3, 11))";
    Command::new("python3").args(["-c", code]).status().is_ok_and(|status| status.success())
}

#[test]
fn what_the_pages_show_is_what_is_printed() {
    if !python_names_classes() {
        testkit::skip("pages: python3 is older than 3.11, and names methods without their class");
        return;
    }
    shim();
    sim();
    // The commands wait for programs: the pages are run by several threads.
    let pages = Mutex::new(pages());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(page) = { pages.lock().unwrap().pop() } {
                    run(&page, &wrong);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_problem_page_runs_commands() {
    let folder = repository().join("docs/problems");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!shown(&text).is_empty(), "{} shows no command", path.display());
    }
}

#[test]
fn figures_that_differ_are_compared_by_their_place() {
    assert_eq!(steady("pid 12 at 1.5 s, peak\n"), steady("pid 4711 at 22.04 s, peak\n"));
    assert_ne!(steady("peak 1.5 GiB\n"), steady("peak 1.6 GiB\n"));
    let named = |pid| format!("next vramtrace oom a/vramtrace.vm.{pid}.20260101-1200.vtrace\n");
    assert_eq!(steady(&named(1)), steady(&named(22)));
    let dated = |n| format!("trace: vramtrace-2026010{n}-120000/x\n");
    assert_eq!(steady(&dated(1)), steady(&dated(2)));
}

/// Of `[text](target)`; links out of the repository are left alone.
fn links(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut code = false;
    for line in page.lines() {
        if line.starts_with("```") {
            code = !code;
        }
        let mut rest = if code { "" } else { line };
        while let Some((_, after)) = rest.split_once("](") {
            let (target, after) = after.split_once(')').unwrap_or((after, ""));
            all.push(target.to_string());
            rest = after;
        }
    }
    all.retain(|target| !target.contains("://") && !target.starts_with("mailto:"));
    all
}

/// As GitHub and mdBook make it of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, part) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            if !target.exists() {
                wrong.push(format!("{}: {link}", page.display()));
            } else if !part.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#'));
                if !headings.map(|line| anchor(line.trim_start_matches('#'))).any(|it| it == part) {
                    wrong.push(format!("{}: {link}: no such heading", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_book_names_every_page() {
    let docs = repository().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let named: Vec<PathBuf> =
        links(&summary).iter().map(|link| docs.join(link).canonicalize().unwrap()).collect();
    for page in pages() {
        let inside = page.starts_with(&docs) && !page.ends_with("SUMMARY.md");
        assert!(!inside || named.contains(&page), "docs/SUMMARY.md lacks {}", page.display());
    }
}

#[test]
fn the_first_screen_of_the_readme_shows_what_oom_prints() {
    let text = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let first: Vec<&str> = text.lines().take(40).collect();
    let (begin, shown) = &blocks(&text, "text")[0];
    let scratch = Scratch::new();
    scratch.text("demo --out .");
    let fits = flat(&scratch.text("fits --short batches --card 24GiB"));
    let answer = fits.split(" on ").next().unwrap();
    assert!(first.iter().any(|line| line.contains(&format!("\"{answer}\""))), "{answer}");
    let printed = flat(&scratch.text("oom --short recorded.vtrace"));
    assert!(begin + shown.len() < 40 && shown.len() <= 10, "{shown:?}");
    assert!(shown[0].starts_with("OUT OF MEMORY"), "{shown:?}");
    let (commands, lines): (Vec<&str>, Vec<&str>) =
        shown.iter().partition(|line| line.starts_with('$'));
    for line in lines {
        assert!(printed.contains(&flat(line)), "{line}: {printed}");
    }
    // The setting that is pasted is the one that is proposed.
    let pasted = commands[0].strip_prefix("$ export ").unwrap();
    assert!(printed.contains(&format!("try {pasted} ")), "{pasted}: {printed}");
    for part in [
        "pip install .",
        "vramtrace run python train.py",
        "--cap 8GiB",
        "page.png",
        "vramtrace demo",
        "vramtrace snapshot.pickle",
        "docs/problems/cluster.md",
        "**Cost**",
        "AMD",
        "nvitop",
        "HAMi",
    ] {
        let is_there = first.iter().any(|line| line.contains(part));
        assert!(is_there, "{part} is not in the first 40 lines");
    }
}
