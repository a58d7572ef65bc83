//! What a stack has outside of the program: what the system and the language start it with.

use super::{Frame, Language};

/// Of the C library, for a program and for a thread.
const STARTS: [&str; 10] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "__libc_start_main@@GLIBC_2.34",
    "start_thread",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
];

/// Rust marks with this what its own backtraces leave out from there on.
const RUST: &str = "__rust_begin_short_backtrace";

/// How many of the frames, innermost first, are the program's. All where none would be left.
pub(super) fn inside<'f>(
    frames: impl DoubleEndedIterator<Item = &'f Frame> + ExactSizeIterator,
) -> usize {
    let all = frames.len();
    let frames: Vec<&Frame> = frames.collect();
    let native = |frame: &&Frame| frame.language == Language::Native;
    let marked = |frame: &&Frame| native(frame) && frame.function.contains(RUST);
    let of_rust = |frame: &&&Frame| native(frame) && frame.file.starts_with("/rustc/");
    let start = |frame: &&&Frame| native(frame) && STARTS.contains(&&*frame.function);
    let inside = match frames.iter().rposition(marked) {
        Some(mark) => mark - frames[..mark].iter().rev().take_while(of_rust).count(),
        None => all - frames.iter().rev().take_while(start).count(),
    };
    if inside == 0 { all } else { inside }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(names: &[(&str, &str)]) -> usize {
        let frame = |&(function, file): &(&str, &str)| {
            let python = file.ends_with(".py");
            let language = if python { Language::Python } else { Language::Native };
            Frame::of(language, function, file, "")
        };
        let frames: Vec<Frame> = names.iter().map(frame).collect();
        inside(frames.iter())
    }

    #[test]
    fn a_c_program_ends_at_main() {
        let libc = [("__libc_start_call_main", "x.h"), ("__libc_start_main", ""), ("_start", "")];
        assert_eq!(left(&[&[("grow", "a.c"), ("main", "a.c")], &libc[..]].concat()), 2);
        assert_eq!(left(&[("work", "a.c"), ("start_thread", ""), ("__clone3", "")]), 1);
        assert_eq!(left(&libc), 3, "nothing else is there");
        assert_eq!(left(&[("clone", "a.py"), ("start_thread", "b.py")]), 2, "not the system's");
        assert_eq!(left(&[]), 0);
    }

    #[test]
    fn a_rust_program_ends_at_its_mark() {
        let names = [
            ("grow", "src/main.rs"),
            ("app::main", "src/main.rs"),
            ("call_once<fn(), ()>", "/rustc/abc/library/core/src/ops/function.rs"),
            ("std::sys::backtrace::__rust_begin_short_backtrace", "/rustc/abc/x.rs"),
            ("std::rt::lang_start", "/rustc/abc/library/std/src/rt.rs"),
            ("main", ""),
            ("_start", ""),
        ];
        assert_eq!(left(&names), 2);
    }
}
