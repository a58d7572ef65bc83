//! Parses `VRAMTRACE_STACKS` (`native,python`, `python`, `none`), `VRAMTRACE_STACK_DEPTH` and `VRAMTRACE_TENSORS`, for
//! the recorder and for the command, which checks them before a program starts.

use crate::error::{NotUnderstood, one_of};

/// Greatest number of frames of each language in a stack.
pub const DEEPEST: usize = 1024;

/// The languages whose frames are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Languages {
    pub native: bool,
    pub python: bool,
}

/// Parses languages with commas between them, or `none`.
pub fn languages(text: &str) -> Result<Languages, NotUnderstood> {
    let mut all = Languages { native: false, python: false };
    for word in text.split(',').filter(|_| text != "none") {
        match word {
            "native" => all.native = true,
            "python" => all.python = true,
            _ => {
                return NotUnderstood::new(
                    "is not a list of languages; write native, python, native,python or none",
                );
            }
        }
    }
    Ok(all)
}

/// Parses the greatest number of frames of each language, counted from the innermost frame.
pub fn depth(text: &str) -> Result<usize, NotUnderstood> {
    match text.parse() {
        Ok(depth) if (1..=DEEPEST).contains(&depth) => Ok(depth),
        _ => NotUnderstood::new(format!("is not a number of frames from 1 to {DEEPEST}")),
    }
}

/// Whether the blocks of PyTorch's allocator are recorded, and with which stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensors {
    Off,
    /// Python frames; native frames on a thread that runs no Python code.
    Python,
    /// Python and native frames.
    Full,
}

/// Parses `VRAMTRACE_TENSORS`.
pub fn tensors(text: &str) -> Result<Tensors, NotUnderstood> {
    let all = [("off", Tensors::Off), ("python", Tensors::Python), ("full", Tensors::Full)];
    one_of(text, &all, "is not python, full or off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_as_written() {
        let both = |native, python| Ok(Languages { native, python });
        assert_eq!(languages("none"), both(false, false));
        assert_eq!(languages("python"), both(false, true));
        assert_eq!(languages("native"), both(true, false));
        assert_eq!(languages("python,native"), both(true, true));
        for wrong in ["", "Python", "python,", "none,python", "native python", "all"] {
            let message = languages(wrong).unwrap_err().to_string();
            assert!(message.contains("native,python or none"), "{wrong}");
        }
    }

    #[test]
    fn tensors_as_written() {
        assert_eq!(tensors("python"), Ok(Tensors::Python));
        assert_eq!((tensors("full"), tensors("off")), (Ok(Tensors::Full), Ok(Tensors::Off)));
        for wrong in ["", "none", "native", "Full", "python,full"] {
            let message = tensors(wrong).unwrap_err().to_string();
            assert!(message.contains("python, full or off"), "{wrong}");
        }
    }

    #[test]
    fn depths_as_written() {
        assert_eq!((depth("1"), depth("1024")), (Ok(1), Ok(1024)));
        for wrong in ["", "0", "1025", "-1", "ten", "1.5"] {
            assert!(depth(wrong).unwrap_err().to_string().contains("1 to 1024"), "{wrong}");
        }
    }
}
