//! What the facts of a trace mean: whole processes read, the largest holders, the sum that leads
//! to what nvidia-smi shows, the odd one out among ranks.

mod holders;
mod odd;
mod process;
mod reconcile;

pub use holders::{Holder, largest};
pub use odd::odd_ones_out;
pub use process::{Ending, Moment, Process, read_all};
pub use reconcile::{Basis, Reconciled, reconcile};
