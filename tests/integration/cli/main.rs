//! The other commands, from the outside.

mod clients;
mod command_line;
mod doctor;
mod enable;
mod env;
mod fits;
mod gate;
mod pack;
mod pages;
mod phases;
mod places;
mod python_package;
mod run;
mod run_inherited;
mod run_records;
mod run_terminal;
mod runners;
mod schemas;
mod shell_blocks;
mod summary;
