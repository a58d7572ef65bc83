//! How calls reach us.
//!
//! Three doors lead to the driver, and each is answered with our function of the same name:
//! the linker's (we export the names), `dlsym`'s and `cuGetProcAddress`'s. What happens at each
//! name is said in one place, the [`table`].

// A test binary exports nothing, so nobody calls the doors there.
#![cfg_attr(test, allow(dead_code))]

mod api;
pub mod call;
pub mod cuda;
mod depth;
mod dlopen;
mod dlsym;
mod doorway;
mod driver;
pub mod elf;
pub mod errno;
mod exports;
pub mod loader;
mod nvtx;
mod proc_address;
mod real;
pub mod shield;
mod state;
mod table;
pub mod torch;
mod uncancelled;

pub use api::{Api, Family, Home};
pub use call::Call;
pub use depth::{inside, outermost};
pub use dlopen::opened;
pub use driver::{Driver, driver};
pub use state::Entry;
pub use uncancelled::uncancelled;

/// Before the program's first instruction. It only accelerates: everything here is found at first
/// use too.
#[cfg(not(test))]
#[ctor::ctor(unsafe)]
fn start() {
    loader::warm();
}
