//! Runs small programs with and without the preload, over the simulated driver.
//!
//! ```
//! use testkit::{Program, Setup};
//!
//! let program = Program::c("families");
//! let bare = program.run(Setup::simulated());
//! let ours = program.run(Setup::simulated().preload());
//! assert_eq!(bare.stdout, ours.stdout);
//! let report = ours.only_report();
//! ```

pub mod address_model;
mod binaries;
mod child;
pub mod erased_trace;
mod group;
mod interactive;
mod kept;
mod machine;
mod program;
mod pythons;
mod reachable;
mod reading;
mod run;
mod scratch;
mod setup;
mod shared_memory;
mod skip;
pub mod torch_stand_ins;
pub mod trace_builder;
mod trace_bytes;
mod verify;
mod waiting;

pub use binaries::{
    bin_dir, forget_variables, repository, shim, sim, sim_dir, temporary, vramtrace,
};
pub use child::{in_child, redirect, user};
pub use group::Group;
pub use interactive::InteractiveProgram;
pub use kept::is_kept;
pub use machine::{compiler, glibc_minor};
pub use program::Program;
pub use pythons::pythons;
pub use reachable::{fifo, reachable, reachable_directory};
pub use reading::{Said, flat, functions, gunzip, has, sum, unpacked};
pub use run::{Run, report};
pub use scratch::Scratch;
pub use setup::Setup;
pub use shared_memory::{SharedMemory, SharedSegment};
pub use skip::{skip, skip_here};
pub use trace_bytes::{make_newer, put_tail, trace_bytes};
pub use vramtrace_format::physical::{GIB, MIB};
pub use waiting::{eventually, permitted};
