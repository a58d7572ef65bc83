//! Calls that can make the driver take memory for itself: one reading of NVML's figure after each.
//! Growth since the last reading is attributed to the call, with its site and stack
//! ([`crate::model::attribution::driver_internal`]).

use crate::driver::cuda::CUresult;
use crate::hooks::call::request::site_at;
use crate::hooks::call::{Call, Row};
use crate::hooks::process::nvml_reading::activity::{ActivityGuard, AttributedReading};
use crate::hooks::process::nvml_reading::reader::NvmlReader;
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::{current_target, known_device};
use crate::model::attribution::driver_internal::{
    Attribution, DriverActivity, Followed, Originator,
};
use crate::model::contexts::Target;
use vramtrace_format::{Cause, StackId};

/// A call under way.
pub struct TrackedCall(Option<ActivityGuard>);

impl TrackedCall {
    pub fn start(p: &'static Process, target: Target, call: impl Into<Followed>) -> TrackedCall {
        if !NvmlReader::is_wanted(p) {
            return TrackedCall(None);
        }
        let device = known_device(p, target.device);
        TrackedCall(device.and_then(|device| p.nvml.begin(p, device, call.into())))
    }

    /// Ends the tracking after the call. A call that failed may have taken memory too.
    pub fn end(self, call: Call<impl Row>, target: Target) {
        self.end_named(call, target, || 0);
    }

    /// The same; `name` returns the id of the function or library concerned, or 0.
    pub fn end_named(self, call: Call<impl Row>, target: Target, name: impl Fn() -> u32) {
        let cause = self.0.as_ref().map_or(Cause::Other, |taking| taking.call.doing.cause());
        self.end_in_parts(call, target, name, |bytes| [(cause, bytes), (cause, 0)]);
    }

    /// The same, where only this call can have taken the bytes: `parts` splits them by cause.
    pub fn end_in_parts(
        &self,
        call: Call<impl Row>,
        target: Target,
        name: impl Fn() -> u32,
        parts: impl Fn(u64) -> [(Cause, u64); 2],
    ) {
        let p = call.p;
        let Some(taking) = self.0.as_ref().filter(|taking| p.nvml.may_read(p, taking)) else {
            return;
        };
        let (device, context) = (taking.device.id, target.context);
        let mut on_growth = |showed: Attribution| {
            let site = site_at(p, call.api(), None, target);
            let book = |cause, stack, name, bytes| {
                p.nvml.book(p, device, Originator { cause, context, site, stack, name }, bytes);
            };
            match showed {
                Attribution::ByCall(bytes) => {
                    let (stack, name) = (stack(p), name());
                    for (cause, bytes) in parts(bytes) {
                        book(cause, stack, name, bytes);
                    }
                }
                Attribution::BySome(cause, bytes) => book(cause, StackId(0), 0, bytes),
                // The reading books these.
                Attribution::ByOriginator(..) | Attribution::Less(_) | Attribution::Nothing => {}
            }
        };
        let own = AttributedReading { taking, on_growth: &mut on_growth };
        // During a stream capture the driver is called only where necessary.
        let reserves = !p.stream_captures.any();
        p.nvml.read_within_budget(p, taking.device, reserves, Some(own));
    }
}

/// Makes a call that can make the driver take memory.
pub fn watched(call: Call<impl Row>, followed: impl Into<Followed>) -> CUresult {
    watched_by(call, followed, || call.forward())
}

/// The same by `real`.
pub fn watched_by(
    call: Call<impl Row>,
    followed: impl Into<Followed>,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let target = current_target(call.p);
    let watch = TrackedCall::start(call.p, target, followed);
    let result = real();
    watch.end(call, target);
    result
}

/// A call that maps or unmaps memory of another process or API.
pub fn sharing(call: Call<impl Row>) -> CUresult {
    watched(call, DriverActivity::Sharing)
}
