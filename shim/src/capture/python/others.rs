//! Python interpreters other than CPython. Their frames are not read: they do not have CPython's
//! structures, although some export functions with CPython's names.

use crate::runtime::elf::Object;

/// Its name, if this library or program is such an interpreter.
pub fn name(object: &Object) -> Option<&'static str> {
    // Programs that embed PyPy start it by this function. Its copies of CPython's functions have other
    // names.
    if object.symbol(b"pypy_execute_source").is_some() {
        return Some("PyPy");
    }
    // GraalPy's copies have CPython's names, with other objects behind them, and are in a library of
    // their own, which is loaded late or never.
    object.is_named("libpythonvm.so").then_some("GraalPy")
}
