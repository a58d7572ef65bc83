//! Leaks that are known and wanted: a file of patterns.
//!
//! ```text
//! # the tokenizer's cache
//! function: Tokenizer.encode
//! file: */site-packages/cachetools/*
//! library: libcublas*
//! ```

use std::fmt;

use serde::Serialize;
use wildmatch::WildMatch;

use super::verdict::Leaks;
use crate::symbols::{Frame, base_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameField {
    Function,
    Library,
    File,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suppression {
    part: FrameField,
    pattern: String,
    /// Of the file, from 1.
    line: usize,
}

/// A rule of the suppressions file that matches no leak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct UnusedRule {
    /// Line of the suppressions file.
    pub line: usize,
    pub rule: String,
}

/// The rules of a suppressions file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions {
    rules: Vec<Suppression>,
}

/// A line that is no rule. Lines count from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: `{text}` {why}; a line is `function: PATTERN`, `library: PATTERN` or `file: PATTERN`, with * and ?, or a # comment"
)]
pub struct BadRule {
    pub line: usize,
    pub text: String,
    pub why: &'static str,
}

impl Suppressions {
    pub fn parse(text: &str) -> Result<Suppressions, BadRule> {
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line_text = line.trim();
            if line_text.is_empty() || line_text.starts_with('#') {
                continue;
            }
            let bad = |why| BadRule { line: index + 1, text: line_text.to_string(), why };
            let (part, pattern) = line_text.split_once(':').ok_or_else(|| bad("has no colon"))?;
            let part = match part.trim() {
                "function" => FrameField::Function,
                "library" => FrameField::Library,
                "file" => FrameField::File,
                _ => return Err(bad("begins with no known word")),
            };
            let pattern = pattern.trim();
            if pattern.is_empty() {
                return Err(bad("has no pattern"));
            }
            if pattern.chars().all(|c| c == '*' || c == '?') {
                return Err(bad("fits everything"));
            }
            rules.push(Suppression { part, pattern: pattern.to_string(), line: index + 1 });
        }
        Ok(Suppressions { rules })
    }

    /// The first rule that fits a frame of the stack: its line.
    pub fn rule_for<'f>(&self, frames: impl Iterator<Item = &'f Frame> + Clone) -> Option<usize> {
        let fits = |rule: &&Suppression| frames.clone().any(|frame| rule.fits(frame));
        self.rules.iter().find(fits).map(|rule| rule.line)
    }

    /// Rules that fit none of these leaks, nor any that another rule did not fit before.
    pub fn unused(&self, all: &[Leaks]) -> Vec<UnusedRule> {
        let used = |line| all.iter().flat_map(|found| &found.suppressed).any(|s| s.line == line);
        let unused = self.rules.iter().filter(|rule| !used(rule.line));
        unused.map(|rule| UnusedRule { line: rule.line, rule: rule.to_string() }).collect()
    }
}

impl fmt::Display for Suppression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            FrameField::Function => "function",
            FrameField::Library => "library",
            FrameField::File => "file",
        };
        write!(f, "{part}: {}", self.pattern)
    }
}

impl Suppression {
    fn fits(&self, frame: &Frame) -> bool {
        let path = |path: &str| {
            let whole = if self.pattern.contains('/') { path } else { base_name(path) };
            fits(&self.pattern, whole)
        };
        match self.part {
            FrameField::Function => fits(&self.pattern, &frame.function),
            FrameField::Library => frame.library.as_deref().is_some_and(path),
            FrameField::File => !frame.file.is_empty() && path(&frame.file),
        }
    }
}

/// `*` stands for any characters, `?` for one; nothing else is special: C++ names have brackets.
fn fits(pattern: &str, text: &str) -> bool {
    WildMatch::new(pattern).matches(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::Language;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, fit) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*ab*ab", "xababab", true),
            ("**x", "yyx", true),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern, text), fit, "{pattern} {text}");
        }
    }

    #[test]
    fn rules_fit_frames_and_tell_their_line() {
        let rules =
            "\n# known\n  function: Cache.*\nlibrary: libcublas*\nfile: */lib/x.py\nfile: y.py\n";
        let rules = Suppressions::parse(rules).unwrap();
        let unused = rules.unused(&[]);
        assert_eq!(unused.iter().map(|rule| rule.line).collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(unused[1].rule, "library: libcublas*");
        let frame = |function: &str, file: &str, library: &str| {
            Frame::of(Language::Python, function, file, library)
        };
        let rule = |frame: &Frame| rules.rule_for([frame].into_iter());
        assert_eq!(rule(&frame("Cache.get", "", "")), Some(3));
        assert_eq!(rule(&frame("f", "", "/opt/libcublas.so.12")), Some(4));
        assert_eq!(rule(&frame("f", "/a/lib/x.py", "")), Some(5));
        assert_eq!(rule(&frame("f", "/a/b/y.py", "")), Some(6));
        assert_eq!(rule(&frame("f", "x.py", "/opt/libother.so")), None);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, why) in [
            ("function: f\nfoo", 2, "has no colon"),
            ("leak: f", 1, "begins with no known word"),
            ("\n\nfile:  ", 3, "has no pattern"),
            ("file: **", 1, "fits everything"),
        ] {
            let error = Suppressions::parse(text).unwrap_err();
            assert_eq!((error.line, error.why), (line, why), "{text}");
            assert!(error.to_string().contains("function: PATTERN"));
        }
    }
}
