//! Several processes or runs beside each other: ranks, the odd one out, what differs.

pub mod diff;
pub mod ranks;
