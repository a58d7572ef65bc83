//! Caps of a process and of a group: what they refuse, and the messages when memory runs out.

mod blind_members;
mod cap_policies;
mod control;
mod groups;
mod hammer;
mod hostile_pages;
mod metrics;
mod namespaces;
mod odd_processes;
mod oom_command;
mod oom_message;
mod page_damage;
mod replaced_traces;
mod reported_memory;
mod reserved;
mod secure_directories;
mod services;
mod swallowed;
mod switch;
mod top;
