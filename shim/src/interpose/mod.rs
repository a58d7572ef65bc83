//! How calls reach this library otherwise than by the table: the loader's own functions, NVTX, libraries that are linked to an
//! export.

// A test binary exports nothing, so these functions are unused there.
#![cfg_attr(test, allow(dead_code))]

pub mod dlopen;
pub mod linked;
pub mod nvtx;

/// Before the program's first instruction, while no thread changes the loader's list, which is read
/// without its lock. Everything is looked up again at first use if it is missing. Nothing else runs at
/// load: a sanitizer's runtime may not be ready by then.
#[cfg(not(test))]
#[ctor::ctor(unsafe)]
fn start() {
    crate::runtime::loader::warm();
    // This takes the loader's lock. In a child that was forked while another thread held that lock, it is never released.
    crate::runtime::loaded_objects::can_ask();
}
