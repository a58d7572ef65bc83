//! Texts of the program and the driver, stored once in the trace and referred to by id.

use crate::model::names::{Names, Use};
use crate::runtime::log::{self, Once};
use crate::trace_writer::TraceWriter;
use core::ffi::CStr;
use vramtrace_format::Definition;
use vramtrace_format::shown::cut;

/// Longest name that is kept, in bytes: names of C++ functions are long.
const LONGEST: usize = 4000;

/// The id of a mark's name; 0: none.
pub fn mark_id(names: &Names, writer: &TraceWriter, name: &str) -> u32 {
    names.id(Use::Mark, name, |definition| writer.try_define(definition))
}

/// The id of the name of a function or module, from the program or the driver.
pub fn c_text_id(names: &Names, writer: &TraceWriter, text: &CStr) -> u32 {
    let text = text.to_string_lossy();
    names.id(Use::Code, cut(&text, LONGEST), |definition| writer.try_define(definition))
}

/// Prints a line on stderr, and notes it in the trace.
pub fn say_once(writer: &TraceWriter, which: Once, text: impl FnOnce() -> String) {
    if which.begins() {
        let text = text();
        log::line(format_args!("{text}"));
        writer.define(&Definition::Note { text });
    }
}
