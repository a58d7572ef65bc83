//! Texts of the program and the driver, as numbers in the trace.

use crate::hooks::state::Process;
use core::ffi::{CStr, c_char};

/// Longest name that is kept, in bytes: names of C++ functions are long.
const LONGEST: usize = 4000;

/// The number of a text; 0 for none.
pub fn text_id(p: &Process, text: &str) -> u32 {
    p.names.id(text, |definition| p.trace_writer.try_define(definition))
}

/// The number of a text that the program or the driver gave.
///
/// # Safety
/// Null, or a C string.
pub unsafe fn c_text_id(p: &'static Process, text: *const c_char) -> u32 {
    if text.is_null() {
        return 0;
    }
    // SAFETY: a text that ends with NUL, as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text_id(p, &text[..end])
}
