//! A simulated CUDA driver and NVML in one library, used under the names libcuda.so.1 and
//! libnvidia-ml.so.1 (a directory with two links to it, first in LD_LIBRARY_PATH). It stands in
//! for an H200 where there is no GPU: memory is taken, rounded, refused and reported as measured
//! on one (driver 580, CUDA 13.0); copies and fills move real bytes; kernels do nothing.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `VRAMTRACE_SIM=NxSIZE` | N devices of SIZE each, 1x24GiB without it; 1 to 16, 1GiB to 512GiB |
//! | `VRAMTRACE_SIM_STATE=PATH` | processes that name the same file share the devices; without it each has its own |
//! | `VRAMTRACE_SIM_NVML=absent` | NVML cannot be opened; `strangers`: it knows other pids than the processes do, as in a container; `strangers-exclusive`: the same, on cards that one process at a time can use; `no-figures`: it knows no memory by process, as on WSL2; `slow`: its lists take 5 ms, `slow:US`: so many microseconds; `hangs:N`: after N lists it does not answer; `lost:N`: after N lists it says that the GPU is lost (15); `busy:N`: each card and process uses N % of the time |
//! | `VRAMTRACE_SIM_FAULT` | `hang@CALL:N`: the Nth call of this function does not return; `CODE@CALL:N`: from it on each call of a context answers the code, until the context is reset; `exit`: after the program's exit handlers each call answers 4, as the real one does |
//! | `VRAMTRACE_SIM_GRAPHS=1` | executable graphs take memory (`graph_cost`); without it they take none |
//! | `CUDA_VISIBLE_DEVICES` | ordinals or beginnings of UUIDs, as the driver reads it |
//!
//! # What it does, and the measurement behind it
//! | what | here | measured |
//! |---|---|---|
//! | first context of a process on a device | 526.8125 MiB, 518 MiB by NVML | same |
//! | each further one | 523.5625 MiB | same |
//! | plain memory up to 1 MiB | multiples of 512 B in shared pages of 2 MiB | 64 x 1 B: one page; 100,000 x 1 KiB: 98 MiB |
//! | above | whole pages of 2 MiB | 64 x (1 MiB + 1): 128 MiB |
//! | pitch | multiple of 512 | 1024 for 1000 |
//! | pools | grow in steps of 32 MiB; at a synchronisation down to the release threshold; what they do not use is released when the device is full; the used attribute is in requested bytes | same |
//! | graph memory | 32 MiB steps at upload or first launch, until trimmed | 200 MiB: 224 MiB |
//! | arrays | whole blocks of 64 bytes by 8 rows and more; up to 1 MiB in slabs for each context and size of an element; 4096 x 4096 x 16 B: 256 MiB; 5 mip levels of 2048 x 2048 x 16 B: 86 MiB; 64 x 64 KiB: 4 MiB; 1 B x 65,536: 4 MiB |
//! | managed memory | charged when the device touches it, not in NVML's figure for the process | same |
//! | stack limit | SMs x threads per SM x increase, at the call; given back when lowered | 16 KiB: 3,960 MiB |
//! | local memory of a kernel | SMs x threads per SM x (its bytes - the highest so far, at first the stack limit), at its first launch; stays | 2,048: 264 MiB; 16,384: 3,960 MiB |
//! | a kernel that calls malloc | heap limit + 2 MiB at the first launch | same |
//! | streams | 2 MiB for each 4 that live at once; stays | 128: 70 MiB in 34 steps; 52: 28 MiB |
//! | executable graphs | 2,674 B for each node, in pages of 2 MiB, if asked for (`graph_cost`) | 60 of 2,000 kernels: 306 MiB |
//! | physical objects (VMM) | live while a handle or a mapping refers to them; 2 MiB granularity; unmapping nothing is no error | same |
//! | while a stream captures | calls that wait are refused with 900 and end the capture (901) | same |
//! | look-ups | NULL and a status for what is not there; 1 for a version above the driver's | same |
//! | host functions of streams and graphs | run on another thread, on which calls answer 800 | same (H100) |
//! | a forked child | has no driver (3) | same |
//!
//! NVML's total is CUDA's plus 615 MiB, which its second version calls reserved.
//!
//! # What it chooses without a measurement
//! A module takes 2 MiB when something of it is first launched, or a kernel's function is looked
//! up. Freed handles of physical objects are used again at once, which the real driver does later.
//! Streams do their work as it is enqueued, so a freed block is free at once. All streams of a
//! capture add to one chain of nodes. Parallel branches of a graph are sized as if they ran one
//! after the other. The owner of shared memory is charged as long as it keeps it, not as long as
//! others do.
//!
//! # What it does not do
//! Run kernels, nor any function that neither the recorder nor a program or client of the tests
//! calls: textures, copies of boxes, occupancy, peers, graphics. A program finds these as in an older
//! driver: not at all. The private export tables are not there either, so that libcudart refuses it
//! (103) and programs on it need a GPU.
//!
//! # Reading order
//! `entry/table` lists the functions, `entry/export` exports them, `entry/resolve` finds them by name.
//! `driver` is the process's state, `device` and `shared` the devices and who uses them; `memory` the
//! heap that `heap`, `pool`, `managed`, `array`, `host` and `launch` take from, over an `aperture` of
//! addresses. `contexts`, `captures`, `streams` and `graphs` hold what else a program names; `context`,
//! `capture`, `stream`, `graph`, `launch` and `module` are the calls on it. `vmm` and `ipc` map the same
//! bytes elsewhere; `copy` moves bytes; `nvml` is the other API.

#![deny(clippy::undocumented_unsafe_blocks)]
#![warn(unreachable_pub)]

mod abi;
mod aperture;
mod array;
mod capture;
mod captures;
mod context;
mod contexts;
mod copy;
mod device;
mod device_calls;
mod driver;
mod entry;
mod error;
mod fault;
mod graph;
mod graph_cost;
mod graph_memory;
mod graphs;
mod heap;
mod host;
mod host_function;
mod image;
mod ipc;
mod launch;
mod managed;
mod memory;
mod module;
mod nvml;
mod param;
mod pool;
mod pool_state;
mod ranges;
mod shared;
mod shared_file;
mod stream;
mod streams;
mod system;
#[cfg(test)]
mod tests;
mod touched;
mod vmm;
