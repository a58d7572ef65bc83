//! The output of `vramtrace diff`: as text and as Markdown.

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, paint};
use crate::analysis::diff::{Change, Difference, LineChange};
use crate::units::{clean, count, size};

/// How much of a comparison is shown.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// The most rows of each table.
    pub top: usize,
}

/// `+12.00 MiB`, `-3.00 KiB`, `0 B`.
pub fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// `+5.0 %`; `new` if there was nothing before, `gone` if there is nothing after. Empty if both are 0.
pub fn percent(change: Change) -> String {
    match change.before {
        0 if change.after > 0 => "new".to_string(),
        0 => String::new(),
        _ if change.after == 0 => "gone".to_string(),
        _ => format!("{:+.1} %", change.part() * 100.0),
    }
}

/// The cells before, after, change in bytes, change in per cent.
fn figures(change: Change) -> [String; 4] {
    [size(change.before), size(change.after), signed(change.bytes()), percent(change)]
}

/// The comparison as text. `names`: the names of the two runs.
pub fn text(differences: &[Difference], names: [&str; 2], how: DiffOptions) -> String {
    let mut out = format!("before  {}\nafter   {}\n", clean(names[0]), clean(names[1]));
    for difference in differences {
        out.push_str(&format!("\n{}\n", paint(BOLD, &difference.name)));
        let mut table = Table::new(4, "lrrrrl");
        table.head(&["", "before", "after", "change", "", ""]);
        let sums = [
            ("in use", difference.in_use),
            ("free in cache", difference.free_in_cache),
            ("highest of the run", difference.peak),
        ];
        for (name, change) in sums {
            add(&mut table, name, change, "");
        }
        out.push_str(&table.render());
        for (title, parts) in
            [("by role", &difference.roles), ("by library", &difference.libraries)]
        {
            let changed: Vec<_> =
                parts.iter().filter(|(_, change)| change.bytes() != 0).take(how.top).collect();
            if changed.is_empty() {
                continue;
            }
            let mut table = Table::new(4, "lrrrrl");
            table.head(&[title, "before", "after", "change", "", ""]);
            for (name, change) in changed {
                add(&mut table, if name.is_empty() { "?" } else { name }, *change, "");
            }
            out.push_str(&format!("\n{}", table.render()));
        }
        out.push_str(&line_table(difference, how));
    }
    out
}

/// A row. `last`: the text of the last column.
fn add(table: &mut Table, name: &str, change: Change, last: &str) {
    let [before, after, by, part] = figures(change);
    let style = if change.bytes() > 0 { BAD } else { PLAIN };
    table.styled([
        (clean(name), PLAIN),
        (before, PLAIN),
        (after, PLAIN),
        (by, style),
        (part, PLAIN),
        (clean(last), PLAIN),
    ]);
}

/// The lines of code whose bytes changed.
fn changed(difference: &Difference) -> Vec<&LineChange> {
    difference.lines.iter().filter(|line| line.bytes.bytes() != 0).collect()
}

/// The table by line of code.
fn line_table(difference: &Difference, how: DiffOptions) -> String {
    let all = changed(difference);
    if all.is_empty() {
        return paint(DIM, "    every line holds what it held\n");
    }
    let mut table = Table::new(4, "lrrrrl");
    table.head(&["by line", "before", "after", "change", "", ""]);
    for line in all.iter().take(how.top) {
        add(&mut table, "", line.bytes, &line.name.words());
    }
    let mut out = format!("\n{}", table.render());
    out.push_str(
        &rest(&all, how.top).map_or(String::new(), |text| format!("    {}\n", paint(DIM, &text))),
    );
    out
}

/// `and 3 more, +12.00 MiB together`. `None`: no line was left out.
fn rest(all: &[&LineChange], top: usize) -> Option<String> {
    let rest = all.get(top..).filter(|rest| !rest.is_empty())?;
    let bytes = rest.iter().map(|line| line.bytes.bytes()).fold(0, i64::saturating_add);
    Some(format!("and {} more, {} together", count(rest.len() as u64), signed(bytes)))
}

/// The comparison as Markdown, for a comment on a pull request. `verdict`: the title.
pub fn markdown(
    differences: &[Difference],
    names: [&str; 2],
    verdict: &str,
    how: DiffOptions,
) -> String {
    let mut out = format!("### GPU memory: {}\n\n", cell(verdict));
    out.push_str(&format!("before: `{}`, after: `{}`\n", cell(names[0]), cell(names[1])));
    for difference in differences {
        out.push_str(&format!("\n**{}**\n\n", cell(&difference.name)));
        out.push_str("| | before | after | change | |\n|---|---:|---:|---:|---:|\n");
        let sums = [
            ("in use", difference.in_use),
            ("free in cache", difference.free_in_cache),
            ("highest of the run", difference.peak),
        ];
        for (name, change) in sums {
            out.push_str(&format!("| {name} | {} |\n", figures(change).join(" | ")));
        }
        for (role, change) in difference.roles.iter().filter(|(_, change)| change.bytes() != 0) {
            out.push_str(&format!("| {} | {} |\n", cell(role), figures(*change).join(" | ")));
        }
        let all = changed(difference);
        if all.is_empty() {
            continue;
        }
        out.push_str("\n| line | library | before | after | change | |\n");
        out.push_str("|---|---|---:|---:|---:|---:|\n");
        for line in all.iter().take(how.top) {
            let (words, library) = (cell(&line.name.words()), cell(&line.name.library));
            let figures = figures(line.bytes).join(" | ");
            out.push_str(&format!("| `{words}` | {library} | {figures} |\n"));
        }
        if let Some(text) = rest(&all, how.top) {
            out.push_str(&format!("\n{text}\n"));
        }
    }
    out
}

/// Text without the characters that end a cell or a code span.
fn cell(text: &str) -> String {
    clean(text).replace('|', "\\|").replace('`', "'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::diff::LineName;

    #[test]
    fn figures_have_a_sign_and_a_unit() {
        assert_eq!([signed(0), signed(1 << 20), signed(-1536)], ["0 B", "+1.00 MiB", "-1.50 KiB"]);
        let part = |before, after| percent(Change { before, after });
        assert_eq!([part(100, 105), part(0, 5), part(5, 0)], ["+5.0 %", "new", "gone"]);
    }

    #[test]
    fn the_sum_of_lines_left_out_does_not_overflow() {
        let bytes = Change { before: 0, after: i64::MAX as u64 };
        let line = LineChange { name: LineName::default(), bytes };
        let text = rest(&[&line, &line, &line], 0).unwrap();
        assert_eq!(text, format!("and 3 more, {} together", signed(i64::MAX)));
    }

    #[test]
    fn markdown_keeps_its_tables_whatever_a_name_is() {
        let bytes = Change { before: 100, after: 200 };
        let name = LineName { function: "a|b`c\n".into(), ..LineName::default() };
        let difference = Difference {
            name: "GPU 0".into(),
            peak: bytes,
            in_use: bytes,
            free_in_cache: Change::default(),
            roles: vec![("weights".into(), bytes)],
            libraries: Vec::new(),
            lines: vec![LineChange { name, bytes }],
        };
        let text = markdown(&[difference], ["a", "b"], "grew", DiffOptions { top: 5 });
        assert!(text.contains("| `a\\|b'c?` |  | 100 B | 200 B | +100 B | +100.0 % |"), "{text}");
        assert!(text.contains("| weights | 100 B | 200 B | +100 B | +100.0 % |"), "{text}");
    }
}
