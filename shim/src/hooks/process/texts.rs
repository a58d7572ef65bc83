//! Texts of the program and the driver, stored once in the trace and referred to by id.

use crate::hooks::process::state::Process;
use crate::model::names::Use;
use crate::runtime::log;
use core::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use vramtrace_format::Definition;

/// Longest name that is kept, in bytes: names of C++ functions are long.
const LONGEST: usize = 4000;

/// The id of a mark's name; 0: none.
pub fn mark_id(p: &Process, name: &str) -> u32 {
    text_id(p, Use::Mark, name)
}

fn text_id(p: &Process, of: Use, text: &str) -> u32 {
    p.names.id(of, text, |definition| p.trace_writer.try_define(definition))
}

/// The id of the name of a function or module, from the program or the driver.
pub fn c_text_id(p: &'static Process, text: &CStr) -> u32 {
    let text = text.to_string_lossy();
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text_id(p, Use::Code, &text[..end])
}

/// Prints a line on stderr, and notes it in the trace, if `said` is not set yet.
pub fn say_once(p: &Process, said: &AtomicBool, text: impl FnOnce() -> String) {
    if !said.load(Ordering::Relaxed) && !said.swap(true, Ordering::Relaxed) {
        let text = text();
        log::line(format_args!("{text}"));
        p.trace_writer.define(&Definition::Note { text });
    }
}
