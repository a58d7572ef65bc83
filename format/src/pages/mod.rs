//! Shared pages outside the trace: one for each process, and one for each group of processes.

pub mod group;
mod group_layout;
pub mod live;
pub mod live_owner;
pub mod live_sites;
pub mod live_switch;
pub mod member;
pub mod name;
