//! The other commands, from the outside.

mod clients;
mod doctor;
mod gate;
mod pack;
mod phases;
mod python_package;
mod run;
mod summary;
