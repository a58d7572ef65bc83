//! What is recorded is right, survives, and changes nothing for the program.

mod api_families;
mod bad_stderr;
mod contexts;
mod corner_cases;
mod descriptors;
mod driver_internal;
mod full_tables;
mod graphs;
mod kill;
mod longjmp;
mod neighbours;
mod no_malloc;
mod no_memory;
mod process_exit;
mod recorder_cost;
mod sanitizers;
mod shared_memory;
mod sick_driver;
mod small_stacks;
mod symbol_lookup;
mod tasks;
mod trace_file_damage;
mod trace_names;
mod trace_size_limit;
mod two_drivers;
mod virtual_memory;
