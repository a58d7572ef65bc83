//! The driver and NVML: their types, the table of hooked entry points, the real functions, and the
//! guard that marks a thread as inside a hook. The only room that calls the driver on its own.

pub mod api;
pub mod cuda;
pub mod depth;
pub mod functions;
pub mod nvml;
pub mod nvml_thread;
pub mod param;
pub mod pointers;
pub mod table;
