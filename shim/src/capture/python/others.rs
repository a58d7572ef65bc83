//! Interpreters of Python that are not CPython. Their frames are not read: they have none of CPython's
//! structures, and what looks like one may be another one's.

use crate::runtime::elf::Object;

/// Its name, if this library or program is such an interpreter.
pub fn name(object: &Object) -> Option<&'static str> {
    // What embeds PyPy starts it by this function. Its copies of CPython's API have names of their own.
    if object.symbol(b"pypy_execute_source").is_some() {
        return Some("PyPy");
    }
    // GraalPy's copies have CPython's names, with other objects behind them, and are in a library of
    // their own, which is loaded late or never.
    object.is_named("libpythonvm.so").then_some("GraalPy")
}
