//! A simulated CUDA driver and NVML in one library, used under the names libcuda.so.1 and
//! libnvidia-ml.so.1.

mod abi;
mod aperture;
mod array;
mod capture;
mod context;
mod copy;
mod device;
mod device_calls;
mod driver;
mod error;
mod graph;
mod graph_memory;
mod heap;
mod host;
mod image;
mod ipc;
mod managed;
mod memory;
mod module;
mod nvml;
mod pool;
mod ranges;
mod resolve;
mod shared;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod vmm;
