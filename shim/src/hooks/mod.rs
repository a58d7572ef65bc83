//! What happens at each call, a file a family. The table names the functions here.

pub mod alloc;
pub mod array;
pub mod graph;
pub mod host;
pub mod pool;
pub mod stream;

mod book;
mod place;

pub use book::{Request, Why, give_back, look_again, refuse, take};
pub use place::{NOWHERE, current_context, current_place, place_of};
