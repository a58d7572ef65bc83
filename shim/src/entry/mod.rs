//! How calls reach us.
//!
//! Three doors lead to the driver, and each is answered with our function of the same name:
//! the linker's (we export the names), `dlsym`'s and `cuGetProcAddress`'s. What happens at each
//! name is said in one place, the [`table`].

// A test binary exports nothing, so nobody calls the doors there.
#![allow(dead_code)]

mod api;
pub mod call;
pub mod cuda;
mod depth;
mod driver;
mod elf;
mod errno;
mod exports;
pub mod loader;
mod real;
mod state;
mod table;

pub use api::{Api, Family, Home};
pub use call::Call;
pub use depth::inside;
pub use driver::{Driver, driver};
pub use state::Entry;

/// Whether the library is in this process, as far as a call or a look-up has shown.
pub fn is_loaded(home: Home) -> bool {
    home.is_found()
}
