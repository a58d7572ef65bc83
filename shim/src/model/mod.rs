//! The model of the process's GPU memory. Nothing here calls the driver or names a CUDA type.

pub mod attribution;
pub mod block_sampling;
pub mod cap;
pub mod contexts;
pub mod devices;
pub mod exports;
pub mod graphs;
pub mod history;
pub mod launched_kernels;
pub mod ledger;
pub mod names;
pub mod pool_readers;
pub mod pools;
pub mod sites;
pub mod stream_captures;
pub mod stream_targets;
pub mod torch_lanes;
pub mod torch_requests;
pub mod torch_totals;
pub mod totals_due;
pub mod vmm;
