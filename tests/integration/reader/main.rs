//! What the commands that read traces say.

mod bad_arguments;
mod diff;
mod driver_holders;
mod driver_pool;
mod endings;
mod engines;
mod erased_phases;
mod failed_ranks;
mod given_files;
mod golden;
mod graph_leaks;
mod holders;
mod hostile_files;
mod import_command;
mod large_figures;
mod leak_verdicts;
mod leaks;
mod missing;
mod newer_records;
mod other_users;
mod outputs;
mod page;
#[cfg(feature = "parquet")]
mod parquet_export;
mod printed_text;
mod recorded_demo;
mod report;
mod roles;
mod run_summaries;
mod shared_figures;
mod stacks_export;
mod steps;
mod timeline_export;
mod verify;
