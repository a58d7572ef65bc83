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

/// Every command that reads a trace, which follows these words.
const READING: [&str; 24] = [
    "report --full",
    "report --json",
    "report --by phase",
    "report --by phase --json",
    "report --by step",
    "report --by step --json",
    "report --html --force -o page.html",
    "holders",
    "holders --json --at end",
    "leaks",
    "leaks --json",
    "oom",
    "oom --json",
    "frag",
    "frag --json",
    "whatif --conf default",
    "whatif --json --conf default",
    "export --format csv -o -",
    "export --format folded -o -",
    "export --format perfetto -o -",
    "export --format pprof -o -",
    "export --format torch-snapshot -o -",
    "flame -o -",
    "pack --force -o packed",
];
