//! Simulated CUDA driver and NVML.
