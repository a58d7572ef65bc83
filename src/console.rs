//! What commands write to stdout and stderr.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use serde::Serialize;
use vramtrace_format::shown::{is_text, shown};
use vramtrace_reader::units::clean;

use crate::error::Failure;

/// On stdout; colours only where they are seen.
pub fn print(text: &str) -> Result<(), Failure> {
    let text = obeyed_by_no_terminal(text);
    let mut out = anstream::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of a pipe has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// The same for what people read: lines that are longer than the terminal is wide are wrapped.
pub fn print_text(text: &str) -> Result<(), Failure> {
    width().map_or_else(|| print(text), |columns| print(&wrapped(text, columns)))
}

/// Narrower terminals get lines of this width.
const NARROWEST: usize = 60;

/// Characters of a line: of a terminal its own; else what `COLUMNS` says. `None`: as many as there are.
pub fn width() -> Option<usize> {
    if std::io::stdout().is_terminal() {
        let (width, _) = terminal_size::terminal_size()?;
        return Some(usize::from(width.0).max(NARROWEST));
    }
    let columns = std::env::var("COLUMNS").ok()?.parse::<usize>().ok()?;
    Some(columns.max(NARROWEST))
}

/// At spaces; what goes on stands two further to the right than its line began.
fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if shown_width(line) <= columns {
            out.push_str(line);
            continue;
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        let further = (indent + 2).min(columns / 2);
        let mut at = 0;
        for word in line.split_inclusive(' ') {
            let length = shown_width(word);
            let bare = shown_width(word.trim_end());
            if at > indent && at + bare > columns {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                out.push_str(&" ".repeat(further));
                at = further;
            }
            out.push_str(word);
            at += length;
        }
    }
    out
}

/// Characters without escapes for colours, and without the newline.
fn shown_width(text: &str) -> usize {
    let text = text.trim_end_matches('\n');
    let mut width = 0;
    let mut escape = false;
    for c in text.chars() {
        match (escape, c) {
            (true, c) => escape = !c.is_ascii_alphabetic(),
            (false, '\u{1b}') => escape = true,
            (false, _) => width += 1,
        }
    }
    width
}

/// Whatever a trace held, nothing of it moves the cursor, sets a title or turns text around. Of
/// escapes only colours stay, which are ours.
fn obeyed_by_no_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let stays = match c {
            '\n' | '\t' => true,
            // `[1;31m`.
            '\u{1b}' => text[at + 1..].strip_prefix('[').is_some_and(|rest| {
                rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
            }),
            c => is_text(c),
        };
        out.push(if stays { c } else { '?' });
    }
    out
}

/// What a file has for other programs, as text of which a terminal obeys nothing.
pub fn for_terminal(bytes: &[u8]) -> String {
    let shown = |c: char| if matches!(c, '\n' | '\t') { c } else { shown(c) };
    String::from_utf8_lossy(bytes).chars().map(shown).collect()
}

/// A document as text, with its last newline. Characters that terminals obey stand in it as JSON
/// escapes.
pub fn json(document: &impl Serialize) -> Result<String, Failure> {
    Ok(escaped(&serde_json::to_string_pretty(document)?))
}

/// The same on one line.
pub fn json_line(document: &impl Serialize) -> Result<String, Failure> {
    Ok(escaped(&serde_json::to_string(document)?))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            c if !is_text(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('\n');
    out
}

/// Characters of a line that are printed: its begin and its end. Input that an error quotes may be megabytes.
const SHOWN: [usize; 2] = [3000, 1000];

fn bounded(line: &str) -> String {
    let [begin, end] = SHOWN;
    let left_out = line.chars().count().saturating_sub(begin + end);
    if left_out == 0 {
        return line.to_string();
    }
    let chars = |from: usize, most| line.chars().skip(from).take(most).collect::<String>();
    let (begin_text, end_text) = (chars(0, begin), chars(begin + left_out, end));
    format!("{begin_text} ... ({left_out} characters left out) ... {end_text}")
}

/// One `vramtrace: ...` line on stderr.
pub fn message(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.lines().map(|line| clean(&bounded(line))).collect();
    // A closed stderr is no reason to die.
    let _ = writeln!(anstream::stderr(), "vramtrace: {}", lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_at_spaces_under_their_beginning() {
        let text = "  one two three four\nshort\n";
        assert_eq!(wrapped(text, 12), "  one two\n    three\n    four\nshort\n");
        assert_eq!(wrapped(text, 80), text);
        let coloured = "\u{1b}[1mone\u{1b}[0m two";
        assert_eq!(wrapped(coloured, 7), coloured, "escapes take no room");
        assert_eq!(wrapped("unbreakable", 4), "unbreakable");
    }

    #[test]
    fn a_terminal_obeys_nothing_of_an_export() {
        let text = b"a\x1b]0;title\x07 \xe2\x80\xae\xe6\xbc\xa2\xc2\x9b31m\xff\x9b\tx\n";
        assert_eq!(for_terminal(text), "a?]0;title? ?漢?31m\u{fffd}\u{fffd}\tx\n");
    }

    #[test]
    fn a_long_line_is_shown_by_its_begin_and_its_end() {
        let line = format!("line 7: bad: \"{}\": give a number", "ä".repeat(20 << 20));
        let shown = bounded(&line);
        assert!(shown.starts_with("line 7: bad: \"ä") && shown.ends_with("\": give a number"));
        assert!(shown.len() < 9000 && shown.contains("characters left out"), "{}", shown.len());
        assert_eq!(bounded("short"), "short");
    }
}
