//! The driver entry points that the recorder intercepts, from the table in the library.

use std::ffi::{CStr, c_char};
use std::path::Path;

use libloading::Library;
use serde::Serialize;

use crate::driver::loading;

/// The functions of the recorder's table, in its order.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Coverage {
    #[serde(rename = "entry_points")]
    pub entries: Vec<EntryPoint>,
}

#[derive(Clone, Debug, Serialize)]
pub struct EntryPoint {
    pub name: String,
    pub section: String,
    pub how: Handling,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Handling {
    /// Recorded, and capped where it takes memory.
    Followed,
    /// Its first use leaves a mark in the trace.
    Noted,
    /// Passed to the driver.
    Passed,
}

#[derive(Debug, thiserror::Error)]
pub enum CoverageError {
    #[error("{}", loading(.0))]
    NotLoaded(libloading::Error),
    #[error("{}; is it of another version?", loading(.0))]
    NoFunction(libloading::Error),
}

/// Loads the library and reads its table. Loading it starts no recording.
pub fn of(library: &Path) -> Result<Coverage, CoverageError> {
    // SAFETY: our own library, which has no initialiser that touches anything but itself; the
    // text that it returns is a constant that ends with NUL.
    let text = unsafe {
        let library = Library::new(library).map_err(CoverageError::NotLoaded)?;
        let ask = library
            .get::<extern "C" fn() -> *const c_char>(b"vramtrace_coverage")
            .map_err(CoverageError::NoFunction)?;
        CStr::from_ptr(ask()).to_string_lossy().into_owned()
    };
    Ok(parse(&text))
}

/// A line an entry point: name, since, section, hook, separated by tabs.
fn parse(text: &str) -> Coverage {
    let entries = text.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let (name, _since, section, hook) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let how = match hook {
            "pass" => Handling::Passed,
            "note" => Handling::Noted,
            _ => Handling::Followed,
        };
        Some(EntryPoint { name: name.into(), section: section.into(), how })
    });
    Coverage { entries: entries.collect() }
}

impl Coverage {
    pub fn summary(&self) -> String {
        let count = |how| self.entries.iter().filter(|entry| entry.how == how).count();
        format!(
            "{} entry points: {} followed, {} noted, {} passed to the driver",
            self.entries.len(),
            count(Handling::Followed),
            count(Handling::Noted),
            count(Handling::Passed)
        )
    }

    /// Sections in the table's order, with how many of their entries are followed, and of how many.
    pub fn sections(&self) -> Vec<(&str, usize, usize)> {
        let mut sections: Vec<(&str, usize, usize)> = Vec::new();
        for entry in &self.entries {
            if sections.last().is_none_or(|(section, ..)| *section != entry.section) {
                sections.push((&entry.section, 0, 0));
            }
            if let Some((_, followed, all)) = sections.last_mut() {
                *followed += usize::from(entry.how == Handling::Followed);
                *all += 1;
            }
        }
        sections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_counted() {
        let text = "cuMemAlloc_v2\t3020\tA. Takes\talloc::mem_alloc\n\
                    cuMemCreate\t10020\tA. Takes\tpass\n\
                    cuNew\t13000\tL. Others\tnote\n";
        let coverage = parse(text);
        assert_eq!(coverage.sections(), [("A. Takes", 1, 2), ("L. Others", 0, 1)]);
        let summary = "3 entry points: 1 followed, 1 noted, 1 passed to the driver";
        assert_eq!(coverage.summary(), summary);
    }
}
