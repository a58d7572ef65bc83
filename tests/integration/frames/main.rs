//! Call stacks of C, C++, Rust and Python.

mod line_tables;
mod native_frames;
mod native_names;
mod other_pythons;
mod python_frames;
mod stack_hazards;
mod stacks;
