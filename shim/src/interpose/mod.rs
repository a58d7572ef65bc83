//! How calls reach the library: the linker finds our exports, `dlsym` answers with them.

// A test binary exports nothing, so nobody reaches these there.
#![cfg_attr(test, allow(dead_code))]

pub mod dlopen;
pub mod dlsym;
pub mod linked;
pub mod nvtx;
pub mod trampoline;

/// Before the program's first instruction, while no thread changes the loader's list, which is read
/// without its lock. All of it is found at first use too. Nothing else runs at load: a sanitizer's
/// runtime may not be ready by then.
#[cfg(not(test))]
#[ctor::ctor(unsafe)]
fn start() {
    crate::runtime::loader::warm();
}
