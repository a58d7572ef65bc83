//! Shared pages outside the trace: one a process, and one a group of processes.

pub mod group;
mod group_layout;
pub mod live;
pub mod live_sites;
pub mod member;
pub mod name;
