//! Texts of the program and the driver, stored once in the trace and referred to by id.

use crate::hooks::state::Process;
use core::ffi::CStr;

/// Longest name that is kept, in bytes: names of C++ functions are long.
const LONGEST: usize = 4000;

/// The id of a text; 0: none.
pub fn text_id(p: &Process, text: &str) -> u32 {
    p.names.id(text, |definition| p.trace_writer.try_define(definition))
}

/// The id of a C string of the program or the driver.
pub fn c_text_id(p: &'static Process, text: &CStr) -> u32 {
    let text = text.to_string_lossy();
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text_id(p, &text[..end])
}
