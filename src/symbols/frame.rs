//! One frame of a stack, with its names.

use std::sync::Arc;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Native,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub language: Language,
    /// Demangled; the qualified name where Python has it; `libfoo.so+0x1234` where none is known.
    pub function: Arc<str>,
    /// Source file, as the compiler or Python named it. Empty: not known.
    pub file: Arc<str>,
    pub line: Option<u32>,
    /// Path of the library or executable. `None` for Python, and for code outside any.
    pub library: Option<Arc<str>>,
}

impl Frame {
    /// The last part of the library's path.
    pub fn library_name(&self) -> Option<&str> {
        self.library.as_deref().map(base_name)
    }

    /// `train.py:41`, with the last part of the file's path. `None`: the file is not known.
    pub fn place(&self) -> Option<String> {
        place_in(base_name(&self.file), self.line)
    }

    /// The same with the whole path.
    pub fn full_place(&self) -> Option<String> {
        place_in(&self.file, self.line)
    }
}

fn place_in(file: &str, line: Option<u32>) -> Option<String> {
    match (file, line) {
        ("", _) => None,
        (file, Some(line)) => Some(format!("{file}:{line}")),
        (file, None) => Some(file.to_string()),
    }
}

pub use vramtrace_format::layers::base_name;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_as_people_read_them() {
        let frame = |file: &str, line| Frame {
            language: Language::Python,
            function: "f".into(),
            file: file.into(),
            line,
            library: None,
        };
        assert_eq!(frame("/home/me/train.py", Some(41)).place().unwrap(), "train.py:41");
        assert_eq!(
            frame("/home/me/train.py", Some(41)).full_place().unwrap(),
            "/home/me/train.py:41"
        );
        assert_eq!(frame("<string>", None).place().unwrap(), "<string>");
        assert_eq!(frame("", Some(1)).place(), None);
    }
}
