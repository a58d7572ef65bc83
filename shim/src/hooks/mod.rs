//! What happens at each call, a file a family. The table names the functions here.

pub mod alloc;
pub mod array;
pub mod context;
pub mod control;
pub mod graph;
pub mod graphics;
pub mod host;
pub mod info;
pub mod ipc;
pub mod launch;
pub mod mark;
pub mod module;
pub mod multicast;
pub mod node;
pub mod nvml;
pub mod ordered;
pub mod pool;
pub mod sparse;
pub mod stream;
pub mod torch;
pub mod vmm;

mod book;
mod place;
mod took;

pub use book::{Request, Why, give_back, look_again, look_if_due, refuse, take};
pub use place::{NOWHERE, current_context, current_place, place_of};
