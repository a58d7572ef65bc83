//! Shared pages outside the trace: one a process, and one a group of processes.

pub mod group;
pub mod live;
pub mod member;
pub mod name;
