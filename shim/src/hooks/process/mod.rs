//! The state of the process, and what is read of it: devices, pools, NVML, live sites, marks.

pub mod at_exit;
pub mod device_query;
pub mod early_ranges;
pub mod graph_reserves;
pub mod hot_page;
pub mod live_sites;
pub mod mark;
pub mod nvml_reading;
pub mod nvtx_strings;
pub mod oom;
pub mod patched_entries;
pub mod pool_reserves;
pub mod process_view;
pub mod refresh;
pub mod second_driver;
pub mod stacks;
pub mod state;
mod statics;
pub mod target;
pub mod texts;
pub mod timed;
pub mod usage;
pub mod without_state;
