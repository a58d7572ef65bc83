//! The lists of docs/ARCHITECTURE.md, "How to add ...", name as many files as their headings say.

use std::collections::BTreeSet;

/// The files that some steps of a list name.
fn files<'t>(steps: impl Iterator<Item = &'t str>) -> usize {
    let words = steps.flat_map(|step| step.split('`').skip(1).step_by(2));
    let is_file = |word: &&str| {
        let end = word.rsplit_once('.').map(|(_, end)| end);
        end.is_some_and(|end| matches!(end, "rs" | "c" | "md" | "json")) && !word.contains(' ')
    };
    words.filter(is_file).collect::<BTreeSet<_>>().len()
}

/// The heading of a list and what it should say: `a command` and `(6 files, up to 12)`.
fn counted(list: &str) -> (&str, String) {
    let name = list.split("**").next().unwrap();
    let text = list.lines().skip(1).collect::<Vec<_>>().join(" ");
    let steps: Vec<&str> = text.split(". *If needed*").collect();
    // The steps that are always needed come first.
    let least = files(steps[..1].iter().copied());
    let most = files(steps.iter().copied());
    let count = match least == most {
        true => format!("({least} files)"),
        false => format!("({least} files, up to {most})"),
    };
    (name, count)
}

#[test]
fn the_lists_name_as_many_files_as_they_say() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ARCHITECTURE.md"));
    let text = text.unwrap();
    let section = text.split("\n## How to add ...").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lists: Vec<&str> = section.split("\n**").skip(1).collect();
    assert_eq!(lists.len(), 4);
    for list in lists {
        let (name, count) = counted(list);
        let said = list.lines().next().unwrap();
        assert_eq!(said, format!("{name}** {count}"), "docs/ARCHITECTURE.md, How to add");
    }
}

#[test]
fn steps_that_are_not_always_needed_are_counted_apart() {
    let list = "a thing** (1 files)\n1. `a.rs`, by `cargo x y.rs`: and\n   `a.rs`\n2. *If needed*: `<b>.md`, `run`";
    assert_eq!(counted(list), ("a thing", "(1 files, up to 2)".to_string()));
}
