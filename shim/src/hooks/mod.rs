//! The hooks: what happens at each call. The table in `driver/table.rs` names them.

pub mod call;
pub mod entry;
pub mod families;
pub mod process;
