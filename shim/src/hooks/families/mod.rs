//! The hooked functions, one file for each family.

pub mod alloc;
pub mod array;
pub mod context;
pub mod graph;
pub mod graphics;
pub mod host;
pub mod info;
pub mod ipc;
pub mod launch;
pub mod module;
pub mod multicast;
pub mod node;
pub mod nvml;
pub mod nvtx;
pub mod ordered;
pub mod pool;
pub mod reserve;
pub mod sparse;
pub mod stream;
pub mod torch;
pub mod torch_calls;
pub mod torch_nodes;
pub mod torch_requests;
pub mod torch_samples;
pub mod torch_streams;
pub mod vmm;
