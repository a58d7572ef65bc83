//! The first text of the page: the post-mortem as `vramtrace report` prints it.

use anstream::adapter::strip_str;
use serde::Serialize;

use crate::analysis::Process;
use crate::report::text;

/// A paragraph: `CAUSE` and its lines. The first has no label.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Paragraph {
    pub label: String,
    pub lines: Vec<String>,
}

/// Why a run ended out of memory, as `vramtrace report` prints it. Empty for other runs.
pub(super) fn out_of_memory(process: &Process) -> Vec<Paragraph> {
    paragraphs(&strip_str(&text::oom::fatal(process)).to_string())
}

/// The labels that `report::text::oom` prints.
const LABELS: [&str; 6] = ["LINE", "CAUSE", "STEP", "FIX", "WHAT IF", "NEXT"];

/// Divides the printed text at its labels. An indented line belongs to the label above it.
fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut all: Vec<Paragraph> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let label = LABELS.into_iter().find(|label| line.starts_with(label));
        match (label, all.last_mut()) {
            (None, Some(last)) if line.starts_with(' ') => last.lines.push(line.trim().to_string()),
            (label, _) => {
                let label = label.unwrap_or_default();
                let rest = line[label.len()..].trim().to_string();
                all.push(Paragraph { label: label.to_string(), lines: vec![rest] });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_with_their_label() {
        let found = paragraphs("\nOUT OF MEMORY on GPU 0\nCAUSE  too much\nFIX    a\n       b\n");
        let of = |label: &str, lines: &[&str]| Paragraph {
            label: label.into(),
            lines: lines.iter().map(|line| line.to_string()).collect(),
        };
        let expected = [
            of("", &["OUT OF MEMORY on GPU 0"]),
            of("CAUSE", &["too much"]),
            of("FIX", &["a", "b"]),
        ];
        assert_eq!(found, expected);
    }
}
