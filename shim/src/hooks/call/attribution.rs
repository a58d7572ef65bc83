//! Calls that can make the driver take memory for itself: one reading of NVML's figure after each.
//! Growth since the last reading is attributed to the call, with its site and stack
//! ([`crate::model::attribution::driver_internal`]).

use crate::driver::api::Api;
use crate::driver::cuda::CUresult;
use crate::hooks::call::request::site;
use crate::hooks::process::nvml_reading::activity::{ActivityGuard, AttributedReading};
use crate::hooks::process::nvml_reading::reader::NvmlReader;
use crate::hooks::process::refresh::refresh_reserves;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::current_target;
use crate::hooks::process::target::known_device;
use crate::model::attribution::driver_internal::{
    Attribution, DriverActivity, Followed, Originator,
};
use crate::model::contexts::Target;
use vramtrace_format::{Cause, PoolId, StackId};

/// Least time between two readings after calls that create events or set parameters of nodes: programs make
/// thousands, and on an H200 no event took memory that could be measured.
const SELDOM_NS: u64 = 100_000_000;

/// A call under way.
pub struct TrackedCall(Option<ActivityGuard>);

impl TrackedCall {
    pub fn none() -> TrackedCall {
        TrackedCall(None)
    }

    pub fn start(p: &'static Process, target: Target, call: impl Into<Followed>) -> TrackedCall {
        if !NvmlReader::is_wanted(p) {
            return TrackedCall(None);
        }
        let device = known_device(p, target.device);
        TrackedCall(device.and_then(|device| p.nvml.begin(p, device, call.into())))
    }

    /// Ends the tracking after the call. A call that failed may have taken memory too.
    pub fn end(self, p: &'static Process, api: Api, target: Target, name: impl Fn() -> u32) {
        self.end_in_parts(p, api, target, name, |bytes| vec![(self.cause(), bytes)]);
    }

    fn cause(&self) -> Cause {
        self.0.as_ref().map_or(Cause::Other, |taking| taking.call.doing.cause())
    }

    /// As `end`, where only this call can have taken the bytes: `parts` splits them by cause.
    pub fn end_in_parts(
        &self,
        p: &'static Process,
        api: Api,
        target: Target,
        name: impl Fn() -> u32,
        parts: impl Fn(u64) -> Vec<(Cause, u64)>,
    ) {
        let Some(taking) = self.0.as_ref().filter(|taking| p.nvml.may_read(p, taking)) else {
            return;
        };
        let device = taking.device.id;
        let mut on_growth = |showed: Attribution| {
            let site = site(p, api, None, target, PoolId(0), 0);
            let maker = |cause, stack, name| Originator {
                cause,
                context: target.context,
                site,
                stack,
                name,
            };
            match showed {
                Attribution::ByCall(bytes) => {
                    let (stack, name) = (crate::hooks::process::stacks::stack(p), name());
                    for (cause, bytes) in parts(bytes) {
                        p.nvml.book(p, device, maker(cause, stack, name), bytes);
                    }
                }
                Attribution::BySome(cause, bytes) => {
                    p.nvml.book(p, device, maker(cause, StackId(0), 0), bytes);
                }
                // The reading books these.
                Attribution::ByOriginator(..)
                | Attribution::ByOriginators(..)
                | Attribution::Less(_)
                | Attribution::Nothing => {}
            }
        };
        let own = AttributedReading { taking, on_growth: &mut on_growth };
        // During a stream capture the driver is called only where necessary.
        let asks = !p.stream_captures.any();
        let reserves = || {
            if asks {
                refresh_reserves(p, device);
            }
        };
        p.nvml.read_within_budget(p, taking.device, reserves, Some(own));
    }
}

/// Makes a call that can make the driver take memory. `name` returns the id of the function or library
/// concerned.
pub fn watched(
    p: &'static Process,
    api: Api,
    target: Target,
    call: impl Into<Followed>,
    name: impl Fn() -> u32,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let watch = TrackedCall::start(p, target, call);
    let result = real();
    watch.end(p, api, target, name);
    result
}

/// As `watched`, for calls that programs make by the thousand: most are followed by no reading, and the
/// next reading includes what they took.
pub fn watched_seldom<C: Into<Followed>>(
    p: &'static Process,
    api: Api,
    target: impl FnOnce() -> Target,
    call: impl FnOnce() -> C,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !NvmlReader::is_wanted(p) {
        return real();
    }
    let target = target();
    let since = p.clock.now_ns().saturating_sub(p.nvml.read_ns(target.device));
    if since < SELDOM_NS {
        return real();
    }
    watched(p, api, target, call(), || 0, real)
}

/// A call that maps or unmaps memory of another process or API.
pub fn sharing(p: &'static Process, api: Api, real: impl FnOnce() -> CUresult) -> CUresult {
    watched(p, api, current_target(p), DriverActivity::Sharing, nameless, real)
}

/// No name.
pub fn nameless() -> u32 {
    0
}
