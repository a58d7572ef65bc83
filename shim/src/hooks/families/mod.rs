//! The hooked functions, one file for each family.

pub mod alloc;
pub mod array;
pub mod context;
pub mod graph;
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
pub mod torch_entry;
pub mod torch_nodes;
pub mod torch_requests;
pub mod torch_samples;
pub mod torch_streams;
pub mod vmm;

use prelude::*;

/// What most hooks use.
mod prelude {
    pub use crate::driver::api::Api;
    pub use crate::driver::cuda::*;
    pub use crate::driver::depth::inside;
    pub use crate::driver::functions::{answer, driver};
    pub use crate::driver::param::{In, Out};
    pub use crate::hooks::call::request::{Request, Why, refuse, site, site_at};
    pub use crate::hooks::call::{Call, Row, gave};
    pub use crate::hooks::process::stacks::stack;
    pub use crate::hooks::process::state::Process;
    pub use crate::hooks::process::target::{NO_TARGET, current_target, device_id};
    pub use crate::model::contexts::Target;
    pub use crate::model::ledger::Entry;
    pub use vramtrace_format::{ContextId, DeviceId, Event, Kind, PoolId, SiteId, Space, StackId};
}

/// Forwards the call; a refusal is recorded, as of each.
pub fn pass(call: Call<impl Row>) -> CUresult {
    call.forward()
}

/// Forwards the call; the trace records once that it was used.
pub fn note(call: Call<impl Row>) -> CUresult {
    call.p.usage.note(&call.p.trace_writer, call.api());
    call.forward()
}
