//! What commands write to stdout and stderr.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use serde::Serialize;
use vramtrace_reader::units::{clean, is_invisible};

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

/// Whatever a trace held, nothing of it moves the cursor, sets a title or turns text around. Of
/// escapes only colours stay, which are ours.
fn obeyed_by_no_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let stays = match c {
            '\n' | '\t' => true,
            '\u{1b}' => is_colour(&text[at + 1..]),
            c => !c.is_control() && !is_invisible(c),
        };
        out.push(if stays { c } else { '?' });
    }
    out
}

/// `[1;31m`.
fn is_colour(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix('[') else { return false };
    rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
}

/// A document as text, with its last newline. Characters that terminals obey stand in it as JSON
/// escapes.
pub fn json(document: &impl Serialize) -> Result<String, Failure> {
    let mut out = String::new();
    for c in serde_json::to_string_pretty(document)?.chars() {
        match c {
            '\n' => out.push(c),
            c if c.is_control() || is_invisible(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('\n');
    Ok(out)
}

/// One `vramtrace: ...` line on stderr.
pub fn message(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<String> = text.lines().map(clean).collect();
    // A closed stderr is no reason to die.
    let _ = writeln!(anstream::stderr(), "vramtrace: {}", lines.join("\n"));
}
